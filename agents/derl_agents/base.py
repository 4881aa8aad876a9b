"""The ask/tell protocol of a proposer, and the loop that runs one search.

An agent writes reward programs (ask) and reads their validation scores (tell); nothing else passes between
it and the environment, so any optimiser fits. This file knows no agent, no torch and no inner run.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import VectorEnv

from derl_gym.programs import InvalidProgram
from derl_gym.secrets import refuse_secrets

FORMAT = 1
"""Version of an agent's checkpoint folder."""


class Agent(abc.ABC):
    """A proposer of reward programs.

    Callers use :meth:`ask`, :meth:`tell`, :meth:`save` and :meth:`load`, which check their arguments and
    their order. A new agent writes :meth:`propose`, and :meth:`learn`, :meth:`write_state` and
    :meth:`read_state` where it has something to learn or to remember. All randomness comes from ``self.rng``
    (or from generators seeded with ``self.seed`` that the agent saves itself).
    :func:`derl_gym.testing.check_agent` says what is wrong with one.

    Args:
        envs: The vector environment to search in. Only its public face is read: ``num_envs`` and
            ``programs`` here, ``instruction`` and ``equivalence_key`` by some agents.
        options: An instance of the class's ``Options``.
        seed: Seed of everything the agent draws.
        **fields: Single options by name, over ``options`` where both are given.

    Attributes:
        name: Name in ``derl_agents.AGENTS``.
        Options: Plain dataclass, each field with its docstring.
        may_change: Options that a resumed search may give another value.
        programs: The environment's ``ProgramSpace``.
        group_size: n, programs per outer step.
        steps: Outer steps told so far.
    """

    @dataclasses.dataclass(frozen=True)
    class Options:
        """No options."""

    name: ClassVar[str]
    may_change: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, envs: VectorEnv, options: Any = None, *, seed: int = 0, **fields: Any) -> None:
        if not isinstance(envs, VectorEnv):
            raise TypeError(
                f"an agent proposes a group of programs per outer step, so it needs a vector environment "
                f"(gym.make_vec(...)), not {type(envs).__name__}"
            )
        known = {field.name for field in dataclasses.fields(self.Options)}
        if unknown := sorted(set(fields) - known):
            raise TypeError(f"{type(self).__name__} has no option {unknown}; it has {sorted(known)}")
        if options is not None and not isinstance(options, self.Options):
            raise TypeError(
                f"options must be a {type(self).__name__}.Options, not {type(options).__qualname__}; "
                f"single options go by keyword"
            )
        if not 0 <= seed < 2**63:
            raise ValueError(f"seed must be a whole number from 0 to 2**63 - 1, not {seed!r}")
        world: Any = envs.unwrapped
        self.options: Any = dataclasses.replace(options or self.Options(), **fields)
        refuse_secrets(dataclasses.asdict(self.options), f"the options of {type(self).__name__}")
        self.seed = int(seed)
        self.rng = np.random.default_rng(self.seed)
        self.programs = world.programs
        self.group_size = int(envs.num_envs)
        self.steps = 0
        self._pending: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(n, L): programs per outer step, tokens per program."""
        return self.group_size, self.programs.grammar.max_length

    @property
    def pending(self) -> np.ndarray | None:
        """Actions that were asked for and whose scores have not been told, or ``None``."""
        return None if self._pending is None else self._pending.copy()

    def ask(self, observation: Mapping[str, Any] | None = None, info: Mapping[str, Any] | None = None) -> np.ndarray:
        """Propose the programs of one outer step.

        Args:
            observation: What ``reset`` or ``step`` of the environment returned.
            info: The info that came with it.

        Returns:
            int64 token ids, shape (n, L), each row padded with END.

        Raises:
            RuntimeError: The scores of the last ask have not been told.
        """
        if self._pending is not None:
            raise RuntimeError("ask() was called twice in a row: tell() the scores of the asked programs first")
        actions = np.asarray(self.propose(observation or {}, info or {}), dtype=np.int64)
        if actions.shape != self.shape:
            raise ValueError(f"{type(self).__name__}.propose must return shape {self.shape}, not {actions.shape}")
        self._pending = actions
        return actions.copy()

    def tell(
        self, actions: np.ndarray, scores: Sequence[float] | np.ndarray, info: Mapping[str, Any] | None = None
    ) -> None:
        """Report the validation scores of the programs that the last :meth:`ask` returned.

        Args:
            actions: Those programs, as asked.
            scores: n finite numbers. An invalid program has score 0 and stays in the group.
            info: The info of the environment's step.

        Raises:
            RuntimeError: Nothing was asked.
            ValueError: Other programs than the asked ones, another number of scores, or a score that is not finite.
        """
        if self._pending is None:
            raise RuntimeError("tell() without ask(): there are no programs waiting for scores")
        actions, values = np.asarray(actions), np.asarray(scores, dtype=np.float64) + 0.0  # -0.0 becomes 0.0
        if values.shape != (self.group_size,):
            raise ValueError(f"expected {self.group_size} scores, one per asked program, got shape {values.shape}")
        if actions.shape != self.shape:
            raise ValueError(f"expected actions of shape {self.shape} as ask() returned them, got {actions.shape}")
        if not np.array_equal(actions, self._pending):
            raise ValueError("these are not the programs that the last ask() returned")
        if not np.isfinite(values).all():
            raise ValueError(f"scores must be finite, got {values.tolist()}; a failed run has no score")
        self.learn(self._pending, values, info or {})
        self._pending = None
        self.steps += 1

    def save(self, folder: str | Path) -> None:
        """Write everything the agent needs to go on, asked actions included, into an existing folder."""
        folder = Path(folder)
        state = {
            "format": FORMAT,
            "agent": self.name,
            "seed": self.seed,
            "options": dataclasses.asdict(self.options),
            "steps": self.steps,
            "pending": self._pending is not None,
            "rng": self.rng.bit_generator.state,
        }
        (folder / "agent.json").write_text(json.dumps(state, indent=1))
        if self._pending is not None:
            np.save(folder / "actions.npy", self._pending, allow_pickle=False)
        self.write_state(folder)

    def load(self, folder: str | Path) -> None:
        """Take up the state that :meth:`save` wrote, in an agent that has done nothing yet.

        Raises:
            RuntimeError: This agent has already been asked or told.
            FileNotFoundError: The folder holds no agent checkpoint.
            ValueError: It is another agent's, another seed's, has other options or another program shape, or is
                damaged.
        """
        folder = Path(folder)
        if self.steps or self._pending is not None:
            raise RuntimeError("load() needs a fresh agent; this one has already proposed programs")
        if not (folder / "agent.json").is_file():
            raise FileNotFoundError(f"no agent checkpoint in {folder}: agent.json is missing")
        with _damage_named(folder):
            state = json.loads((folder / "agent.json").read_text())
            form, agent, pending = state["format"], state["agent"], None
            saved = {"seed": state["seed"], **state["options"]}
            if state["pending"]:
                pending = np.load(folder / "actions.npy", allow_pickle=False)
        if form != FORMAT:
            raise ValueError(f"{folder} has checkpoint format {form}, this version reads {FORMAT}")
        if agent != self.name:
            raise ValueError(f"{folder} is a checkpoint of agent {agent!r}, this is {self.name!r}")
        mine = {"seed": self.seed, **json.loads(json.dumps(dataclasses.asdict(self.options)))}
        differing = [
            f"{key}: saved {saved.get(key)!r}, now {mine.get(key)!r}"
            for key in sorted(mine.keys() | saved.keys())
            if saved.get(key) != mine.get(key) and key not in self.may_change
        ]
        if differing:
            raise ValueError(f"{folder} was saved with other settings ({'; '.join(differing)})")
        if pending is not None and pending.shape != self.shape:
            raise ValueError(f"{folder} holds actions of shape {pending.shape}, this environment takes {self.shape}")
        with _damage_named(folder):
            self.steps, self._pending = int(state["steps"]), pending
            self.rng.bit_generator.state = state["rng"]
            self.read_state(folder)

    @abc.abstractmethod
    def propose(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> np.ndarray:
        """The programs of one outer step, int64 (n, L). Called by :meth:`ask`."""

    def learn(self, actions: np.ndarray, scores: np.ndarray, info: Mapping[str, Any]) -> None:  # noqa: B027
        """Learn from float64 scores (n,). Called by :meth:`tell`; an agent that does not learn leaves it out."""

    def write_state(self, folder: Path) -> None:  # noqa: B027
        """Write what the subclass remembers (JSON, safetensors or npy; no pickle). Called by :meth:`save`."""

    def read_state(self, folder: Path) -> None:  # noqa: B027
        """Read what :meth:`write_state` wrote. Called by :meth:`load`."""

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Programs as actions (n, L). A text the alphabet cannot write becomes the empty program, which is invalid."""
        rows = []
        for text in texts:
            try:
                rows.append(self.programs.encode(text))
            except InvalidProgram:
                rows.append(np.zeros(self.shape[1], dtype=np.int64))
        return np.stack(rows)

    def well_formed(self, text: str) -> bool:
        """Whether the grammar leads to this program: it parses, has a primitive, and is no longer than allowed."""
        grammar = self.programs.grammar
        try:
            ids, state = grammar.encode(text), grammar.initial
            for token in (*ids[ids > 0].tolist(), 0):
                state = grammar.advance_token(state, token)
        except InvalidProgram:
            return False
        return True


@contextlib.contextmanager
def _damage_named(folder: Path) -> Iterator[None]:
    """Whatever a truncated, edited or missing file does to its reader, in words that name the checkpoint."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"the agent checkpoint in {folder} is damaged: {type(error).__name__}: {error}") from error


@dataclasses.dataclass
class SearchResult:
    """What one search proposed and scored, outer step by outer step.

    Attributes:
        programs: Program texts, one list of n per outer step.
        scores: Validation scores, one float64 array (n,) per outer step.
    """

    programs: list[list[str]] = dataclasses.field(default_factory=list)
    scores: list[np.ndarray] = dataclasses.field(default_factory=list)

    @property
    def means(self) -> list[float]:
        """Mean score of the proposals of each outer step (the paper's figures 3 and 4)."""
        return [float(scores.mean()) for scores in self.scores]

    @property
    def best(self) -> tuple[str, float]:
        """The program with the highest score over all steps, and the score; the first of equals."""
        step = int(np.argmax([scores.max() for scores in self.scores]))
        return self._best_of(step)

    @property
    def best_of_last_step(self) -> tuple[str, float]:
        """The program with the highest score in the last step: the paper's DERL-base selection (section 4.2)."""
        return self._best_of(len(self.scores) - 1)

    def _best_of(self, step: int) -> tuple[str, float]:
        slot = int(np.argmax(self.scores[step]))
        return self.programs[step][slot], float(self.scores[step][slot])


def search(
    envs: VectorEnv,
    agent: Agent,
    *,
    seed: int | None = None,
    on_step: Callable[[int, list[str], np.ndarray, Mapping[str, Any]], None] | None = None,
) -> SearchResult:
    """Run one search: ask, step, tell, until the environment's episode ends.

    The agent is saved after every ask, with the asked programs. A search that was interrupted goes on from
    there: the recorded steps before the checkpoint are stepped again, which costs nothing since the environment
    gives their results back, and the agent is asked for no program twice.

    Args:
        envs: The vector environment; its run directory holds the checkpoints.
        agent: A fresh agent, made for ``envs``.
        seed: Seed of the episode.
        on_step: Called as ``on_step(step, programs, scores, info)`` after every outer step, replayed ones too.

    Returns:
        Every program and score of the episode.
    """
    world: Any = envs.unwrapped
    observation, info = envs.reset(seed=seed)
    result, step, done, replayed = SearchResult(), 0, False, []
    if (checkpoint := world.last_checkpoint()) is not None:
        agent.load(checkpoint[1])
        replayed = world.recorded_actions()[: checkpoint[0]]
    while not done:
        told = step < len(replayed)
        if not told and agent.pending is None:
            agent.ask(observation, info)
            with world.checkpoint() as folder:
                agent.save(folder)
        actions = np.asarray(replayed[step] if told else agent.pending)
        observation, scores, terminated, truncated, info = envs.step(actions)
        info = info.get("final_info", info)  # the last step resets the environment by itself
        if not told:
            agent.tell(actions, scores, info)
        result.programs.append([world.programs.decode(row) for row in actions])
        result.scores.append(np.asarray(scores, dtype=np.float64).copy())
        if on_step is not None:
            on_step(step, result.programs[-1], result.scores[-1], info)
        step, done = step + 1, bool(np.all(terminated | truncated))
    return result
