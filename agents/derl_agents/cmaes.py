"""CMA-ES on the unit cube, by the package ``cma`` (extra ``agents``).

A point of the cube is a program (``derl_gym.programs.from_cube``), so the search is a continuous one whose landscape is
broken into steps: a baseline of what a good optimizer of real vectors makes of programs written token by token.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from derl_agents.base import Agent
from derl_gym.fields import check_fields
from derl_gym.programs import from_cube

try:
    import cma
except ImportError as error:
    raise ImportError("the agent cmaes needs the package cma: pip install 'derl-gym[agents]'") from error

SMALLEST = 4
"""Programs of one generation, at least: CMA-ES needs some to rank. Smaller groups are gathered over outer steps."""


class CMAES(Agent):
    """Moves a normal distribution over the unit cube towards the points whose programs scored best.

    One generation is one outer step. Where ``cma`` says that a run has come to its end (no variance left, all scores
    equal for long), the next one starts from a random point.

    Attributes:
        scores: Scores told so far, in order: with the seed they are the whole state, since a run is replayed from them.
        starts: Runs begun so far.
    """

    name = "cmaes"

    @dataclasses.dataclass(frozen=True)
    class Options:
        """The distribution's start."""

        sigma: float = 0.2
        """First standard deviation, in units of the cube's side."""

        def __post_init__(self) -> None:
            check_fields(self, above={"sigma": 0})

    def __init__(self, envs: Any, options: Options | None = None, *, seed: int = 0, **fields: Any) -> None:
        super().__init__(envs, options, seed=seed, **fields)
        self.scores: list[list[float]] = []
        self.starts = 0
        self._queue: list[np.ndarray] = []
        self._told: list[tuple[np.ndarray, float]] = []
        self._asked: list[np.ndarray] = []
        self._run: Any = None

    def propose(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> np.ndarray:
        """The programs at the next n points."""
        self._ask()
        return np.stack([from_cube(self.programs.grammar, point[: self.shape[1]]) for point in self._asked])

    def _ask(self) -> None:
        if not self._queue:
            if self._run is None or self._run.stop():
                self._run = self._start()
            self._queue = self._run.ask()
        self._asked, self._queue = self._queue[: self.group_size], self._queue[self.group_size :]

    def learn(self, actions: np.ndarray, scores: np.ndarray, info: Mapping[str, Any]) -> None:
        """Tell ``cma`` once the generation is whole."""
        self.scores.append([float(score) for score in scores])
        self._told += zip(self._asked, self.scores[-1], strict=True)
        if not self._queue:
            points, values = zip(*self._told, strict=True)
            self._run.tell(list(points), [-value for value in values])  # it minimises
            self._told = []

    def _start(self) -> Any:
        size = max(2, self.shape[1])  # cma does not search in one dimension
        centre = self.rng.uniform(0.25, 0.75, size) if self.starts else np.full(size, 0.5)
        self.starts += 1
        settings = {
            "bounds": [0, 1],
            "popsize": self.group_size * math.ceil(SMALLEST / self.group_size),
            "randn": lambda *shape: self.rng.standard_normal(shape),
            "seed": np.nan,  # leave numpy's global generator alone
            "verbose": -9,
        }
        return cma.CMAEvolutionStrategy(centre, self.options.sigma, settings)

    def write_state(self, folder: Path) -> None:
        """The scores told so far."""
        (folder / "cmaes.json").write_text(json.dumps(self.scores))

    def read_state(self, folder: Path) -> None:
        """Replay the search: every draw and every score as they were."""
        told, end = json.loads((folder / "cmaes.json").read_text()), self.rng.bit_generator.state
        self.rng = np.random.default_rng(self.seed)
        for scores in told:
            self._ask()
            self.learn(np.empty(0), np.array(scores), {})
        if self._pending is not None:
            self._ask()
        if self.rng.bit_generator.state != end:
            raise ValueError("the scores do not lead to the saved state of the random numbers")
