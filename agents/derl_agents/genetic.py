"""Genetic programming over the primitives, by DEAP (extra ``agents``).

Evolving reward functions as expression trees is the oldest ancestor of this search (Niekum, Barto and Spector 2010,
"Genetic programming for reward function search"). A tree and its text say the same thing here, so the population is
kept as texts, and no tree is ever evaluated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from derl_agents.base import Agent
from derl_gym.fields import check_fields
from derl_gym.programs import RewardProgram

try:
    from deap import gp
except ImportError as error:
    raise ImportError("the agent genetic needs the package deap: pip install 'derl-gym[agents]'") from error

CONSTANTS = ("1", "2", "3", "4", "5", "10", "0.1", "0.2", "0.5", "1.5")
BINARY = {"+": 1, "-": 1, "*": 2, "/": 2}
"""Operators with their precedence."""
POWERS = ("**2", "**3", "**0.5")
ATTEMPTS = 20
"""Children that are bred for a slot before it is given to the prior."""


class Genetic(Agent):
    """Breeds programs by crossover and mutation of the best so far.

    The first outer step draws from the grammar's prior, as random search does. From then on every slot holds a child of
    parents that won a tournament: a crossover of two, or a mutation of one. A child that is longer than the grammar
    allows, or of a class that was proposed before, is bred anew, a few times. The population is the best programs of
    the whole search.

    Attributes:
        population: (text, score) of the best programs, best first; the earlier of equals.
        seen: Classes that were proposed, by ``equivalence_key``.
    """

    name = "genetic"

    @dataclasses.dataclass(frozen=True)
    class Options:
        """How it breeds."""

        population: int = 16
        """Programs that may become parents."""
        tournament: int = 3
        """Of so many programs drawn from the population the best becomes a parent."""
        crossover: float = 0.6
        """Share of children with two parents; the others are mutants of one."""
        fresh: float = 0.1
        """Share of slots that are drawn from the grammar's prior instead."""

        def __post_init__(self) -> None:
            ranges = {"population": 1, "tournament": 1, "crossover": 0, "fresh": 0}
            check_fields(self, at_least=ranges)
            for name in ("crossover", "fresh"):
                if getattr(self, name) > 1:
                    raise ValueError(f"{name} must be a share from 0 to 1, not {getattr(self, name)!r}")

    def __init__(self, envs: Any, options: Options | None = None, *, seed: int = 0, **fields: Any) -> None:
        super().__init__(envs, options, seed=seed, **fields)
        self.equivalence_key = envs.unwrapped.equivalence_key
        self.population: list[tuple[str, float]] = []
        self.seen: set[str] = set()
        names = self.programs.grammar.primitives
        self.trees = gp.PrimitiveSet("reward", 0)  # the terminals below are named, not arguments
        for operator in BINARY:
            self.trees.addPrimitive(_never, 2, name=operator)
        for power in POWERS:
            self.trees.addPrimitive(_never, 1, name=power)
        self.trees.addPrimitive(_never, 1, name="neg")
        for text in (*names, *CONSTANTS):
            # Primitives as often as constants, however many there are of each.
            for _ in range(len(CONSTANTS) if text in names else len(names)):
                self.trees.addTerminal(text)

    def propose(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> np.ndarray:
        """Breed n programs."""
        with _python_random(int(self.rng.integers(2**63))):
            return self.encode([self._new() for _ in range(self.group_size)])

    def learn(self, actions: np.ndarray, scores: np.ndarray, info: Mapping[str, Any]) -> None:
        """Let the step's programs compete for a place in the population."""
        born = [(self.programs.decode(row), float(score)) for row, score in zip(actions, scores, strict=True)]
        ranked = sorted(self.population + born, key=lambda member: -member[1])
        self.population = ranked[: self.options.population]

    def _new(self) -> str:
        """A program of a class that was not proposed before, if there is one to be found; counts it as seen."""
        for _ in range(ATTEMPTS):
            breeds = self.population and self.rng.random() >= self.options.fresh
            text = self._child() if breeds else self.programs.grammar.sample(self.rng)
            if self.well_formed(text) and (key := self.equivalence_key(text)) not in self.seen and key is not None:
                self.seen.add(key)
                return text
        return self.programs.grammar.sample(self.rng)

    def _child(self) -> str:
        """A child of the population; it may be no program of the grammar."""
        first, second = (self.tree(self._parent()) for _ in range(2))
        if self.rng.random() < self.options.crossover:
            child, _ = gp.cxOnePoint(first, second)
        else:
            mutations = (
                lambda tree: gp.mutUniform(tree, lambda pset, type_: gp.genGrow(pset, 0, 2, type_), self.trees),
                lambda tree: gp.mutNodeReplacement(tree, self.trees),
                lambda tree: gp.mutInsert(tree, self.trees),
                gp.mutShrink,
            )
            (child,) = mutations[int(self.rng.integers(len(mutations)))](first)
        return self.text(child)

    def _parent(self) -> str:
        best = min(int(place) for place in self.rng.integers(len(self.population), size=self.options.tournament))
        return self.population[best][0]

    def tree(self, text: str) -> gp.PrimitiveTree:
        """The tree of a text that :meth:`text` or the grammar's prior wrote."""
        stack: list[list[Any]] = []
        for op, _, source in RewardProgram.parse(text, k=self.programs.grammar.k).code:
            if op in ("name", "const"):
                stack.append([self.trees.mapping[source]])
            elif op == "neg":
                stack.append([self.trees.mapping["neg"], *stack.pop()])
            elif op == "**":
                (exponent,) = stack.pop()
                stack.append([self.trees.mapping[f"**{exponent.value}"], *stack.pop()])
            else:
                right = stack.pop()
                stack.append([self.trees.mapping[op], *stack.pop(), *right])
        return gp.PrimitiveTree(stack.pop())

    def text(self, tree: gp.PrimitiveTree) -> str:
        """The program of a tree, with no more parentheses than reading it back as this tree takes."""
        stack: list[tuple[str, int]] = []
        for node in reversed(tree):
            if node.arity == 0:
                stack.append((node.value, 4))
            elif node.name in BINARY:
                left, right, rank = stack.pop(), stack.pop(), BINARY[node.name]
                stack.append((_wrapped(left, rank) + node.name + _wrapped(right, rank + 1), rank))
            elif node.name == "neg":
                stack.append((f"(-{_wrapped(stack.pop(), 3)})", 4))
            else:
                stack.append((_wrapped(stack.pop(), 4) + node.name, 3))
        text = stack.pop()[0]
        return text[1:-1] if tree[0].name == "neg" else text

    def write_state(self, folder: Path) -> None:
        """The population and the classes that were proposed."""
        state = {"population": self.population, "seen": sorted(self.seen)}
        (folder / "genetic.json").write_text(json.dumps(state))

    def read_state(self, folder: Path) -> None:
        """Read what :meth:`write_state` wrote."""
        state = json.loads((folder / "genetic.json").read_text())
        self.population = [(text, score) for text, score in state["population"]]
        self.seen = set(state["seen"])


def _never(*arguments: Any) -> Any:
    """Trees are written, not run."""
    raise NotImplementedError


def _wrapped(part: tuple[str, int], least: int) -> str:
    text, rank = part
    return text if rank >= least else f"({text})"


@contextlib.contextmanager
def _python_random(seed: int) -> Iterator[None]:
    """DEAP draws from the ``random`` module: seed it here, and leave it afterwards as it was."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)
