"""A bandit over a fixed library of programs: UCB1 (Auer, Cesa-Bianchi and Fischer 2002). It writes nothing new."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from derl_agents.base import Agent
from derl_gym.fields import check_fields
from derl_gym.programs import InvalidProgram


class Bandit(Agent):
    """Plays the n arms of the highest upper confidence bounds; arms that were not played yet come first, in order.

    An arm is a program. With the environment's ``cache="equivalent"`` an arm that is played again gives the same score;
    ``cache="off"`` trains it with another seed, which is what a bandit is for.

    Attributes:
        library: The arms.
        scores: Scores by arm.
    """

    name = "bandit"

    @dataclasses.dataclass(frozen=True)
    class Options:
        """The arms and how long each gets another chance."""

        library: Sequence[str] = ()
        """Programs. None given: sums of primitives, pairs with a half weight, and pairs with a guarded product."""
        arms: int = 24
        """First programs of the library, classes of equal programs counted once."""
        exploration: float = 0.1
        """Weight of the confidence bound. UCB1 has 1, for scores that are spread over all of 0 to 1."""

        def __post_init__(self) -> None:
            check_fields(self, at_least={"arms": 1, "exploration": 0})
            object.__setattr__(self, "library", tuple(self.library))

    def __init__(self, envs: Any, options: Options | None = None, *, seed: int = 0, **fields: Any) -> None:
        super().__init__(envs, options, seed=seed, **fields)
        arms: dict[str, str] = {}
        for text in self.options.library or filter(self.well_formed, _library(self.programs.grammar.primitives)):
            try:
                self.programs.encode(text)
            except InvalidProgram as error:
                raise ValueError(f"library: {text!r} cannot be written here: {error}") from error
            arms.setdefault(envs.unwrapped.equivalence_key(text) or text, text)
            if len(arms) == self.options.arms:
                break
        self.library = list(arms.values())
        self.scores: list[list[float]] = [[] for _ in self.library]
        self._asked: list[int] = []

    def propose(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> np.ndarray:
        """The n best arms by their bounds; where there are fewer, they take turns."""
        order = np.argsort([-bound for bound in self.bounds()], kind="stable")
        self._asked = [int(order[slot % len(order)]) for slot in range(self.group_size)]
        return self.encode([self.library[arm] for arm in self._asked])

    def bounds(self) -> list[float]:
        """Upper confidence bounds by arm; infinite for one that was not played."""
        plays = sum(map(len, self.scores))
        return [
            np.mean(scores) + self.options.exploration * np.sqrt(2 * np.log(plays) / len(scores)) if scores else np.inf
            for scores in self.scores
        ]

    def learn(self, actions: np.ndarray, scores: np.ndarray, info: Mapping[str, Any]) -> None:
        """Add the scores to their arms'."""
        for arm, score in zip(self._asked, scores, strict=True):
            self.scores[arm].append(float(score))

    def write_state(self, folder: Path) -> None:
        """The scores, and the arms that were asked."""
        (folder / "bandit.json").write_text(json.dumps({"scores": self.scores, "asked": self._asked}))

    def read_state(self, folder: Path) -> None:
        """Read what :meth:`write_state` wrote."""
        state = json.loads((folder / "bandit.json").read_text())
        if len(state["scores"]) != len(self.library):
            raise ValueError(f"scores of {len(state['scores'])} arms, the library has {len(self.library)}")
        self.scores, self._asked = state["scores"], state["asked"]


def _library(primitives: Sequence[str]) -> Iterator[str]:
    """Programs over the primitives, the simple ones first."""
    for size in range(1, len(primitives) + 1):
        yield from ("+".join(names) for names in itertools.combinations(primitives, size))
    for form in ("{0}+0.5*{1}", "{0}*({1}+1)"):
        yield from (form.format(*names) for names in itertools.permutations(primitives, 2))
