"""A search whose scores are made up, and an agent in it that is watched: every call is checked.

What it finds wrong is raised as :class:`Broken`; agents.py says when.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from derl_gym.envs.outer_loop import OuterLoop
from derl_gym.envs.settings import Scored
from derl_gym.programs import InvalidProgram


class Broken(Exception):
    """What is wrong, when it makes no sense to look further."""


class MadeUp(OuterLoop):
    """An outer loop whose scores are made up.

    Attributes:
        fixed: The score of every program; ``None``: a number that depends on the text. 0 is that of invalid programs.
    """

    fixed: float | None = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._warned = True  # of what matters to a training alone

    def score(self, actions: np.ndarray) -> list[Scored]:
        """Scores in microseconds, and nothing in a ledger."""
        self.step += 1
        return [self._made_up(self.programs.decode(row)) for row in actions]

    def _made_up(self, text: str) -> Scored:
        try:
            program = self.parse(text)
        except InvalidProgram as error:
            return Scored(text, "invalid", self.fixed if self.fixed == 0 else 0.0, str(error))  # 0.0 or -0.0
        analysis = program.analyse(self.task.primitives, states=self.states)
        score = int.from_bytes(hashlib.sha256(text.encode()).digest()[:2]) / 2**16
        if self.fixed is not None:
            score = self.fixed
        status = "invalid" if self.fixed == 0 else "scored"
        return Scored(text, status, score, structure=analysis.structure, key=self.class_of(program, analysis))


class Watched:
    """One search with one agent, whose every step is checked."""

    def __init__(self, envs: Any, agent: Any) -> None:
        self.envs, self.agent = envs, agent
        self.given: tuple[Any, Any] = envs.reset(seed=0)
        self.actions: np.ndarray | None = None

    def ask(self) -> np.ndarray:
        """Ask, unless the programs of this outer step were asked for already."""
        if self.actions is None:
            self.actions = self._checked(self._asked(self.agent))
        return self.actions

    def steps(self, n: int) -> list[list[str]]:
        """Texts of the programs of n outer steps."""
        return [self._texts(self._step()[0]) for _ in range(n)]

    def steps_beside(self, other: Any, n: int) -> tuple[list[list[str]], list[list[str]]]:
        """The same, and those of another agent that sees and is told the same, up to the first that differ."""
        programs: list[list[str]] = []
        others: list[list[str]] = []
        for _ in range(n):
            theirs = self._asked(other) if other.pending is None else other.pending
            actions, scores, info = self._step()
            programs.append(self._texts(actions))
            others.append(self._texts(theirs))
            if others != programs:
                break
            self._tell(other, actions, scores, info)
        return programs, others

    def _step(self) -> tuple[np.ndarray, np.ndarray, Any]:
        actions = self.ask()
        observation, scores, _, _, info = self.envs.step(actions)
        info = info.get("final_info", info)
        self._tell(self.agent, actions, scores, info)
        self.given, self.actions = (observation, info), None
        return actions, scores, info

    def _asked(self, agent: Any) -> Any:
        kept = copy.deepcopy(self.given)
        with says("ask() fails"):
            actions = agent.ask(*self.given)
        for name, before, now in zip(("observation", "info"), kept, self.given, strict=True):
            if not equal(before, now):
                raise Broken(f"ask() changes the {name} that it is given: copy it first")
        return actions

    def _tell(self, agent: Any, actions: np.ndarray, scores: np.ndarray, info: Any) -> None:
        given = (actions.copy(), scores.copy(), info)
        kept = copy.deepcopy(given)
        with says("tell() fails"):
            agent.tell(*given)
        for name, before, now in zip(("actions", "scores", "info"), kept, given, strict=True):
            if not equal(before, now):
                raise Broken(f"tell() changes the {name} that it is given: copy them first")
        if agent.pending is not None:
            raise Broken("pending must be None after tell(): a search would step the same programs again")

    def _checked(self, actions: Any) -> np.ndarray:
        shape, tokens = self.envs.action_space.shape, self.envs.unwrapped.programs.grammar.vocab_size
        if not isinstance(actions, np.ndarray):
            raise Broken(f"ask() returns a {type(actions).__name__}, expected a numpy array of token ids {shape}")
        if actions.shape != shape:
            raise Broken(f"ask() returns shape {actions.shape}, expected {shape}: n programs of L token ids")
        if actions.dtype != np.int64:
            raise Broken(f"ask() returns {actions.dtype}, expected int64 token ids")
        if actions.min() < 0 or actions.max() >= tokens:
            raise Broken(f"ask() returns ids from {actions.min()} to {actions.max()}, expected 0 to {tokens - 1}")
        ended = np.maximum.accumulate(actions == 0, axis=1)
        if (actions[ended] != 0).any():
            row = int((ended & (actions != 0)).any(1).argmax())
            raise Broken(f"ask() writes tokens behind <end>: {actions[row].tolist()}; pad with <end> (0)")
        own, actions = actions, actions.copy()
        own[:] = 0
        if not equal(self.agent.pending, actions):
            raise Broken("pending must be the asked programs, whatever the caller does with the array it was given")
        return actions

    def _texts(self, actions: Any) -> list[str]:
        return [self.envs.unwrapped.programs.decode(row) for row in np.asarray(actions)]


@contextlib.contextmanager
def says(what: str) -> Iterator[None]:
    """Whatever the agent raises as a problem."""
    try:
        yield
    except Exception as error:
        raise Broken(f"{what}: {type(error).__name__}: {error}") from error


def equal(a: Any, b: Any) -> bool:
    """Whether two observations, infos or arrays are the same."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        if a is None or b is None:
            return False
        a, b = np.asarray(a), np.asarray(b)
        if a.dtype == object:
            return a.shape == b.shape and all(map(equal, a.ravel(), b.ravel()))
        return np.array_equal(a, b)
    return a == b
