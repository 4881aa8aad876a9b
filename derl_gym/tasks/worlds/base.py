"""What a text world is: games that are played by commands, one turn after the other.

A world of your own is one importable file with one class. It runs in worker processes (``pool.py``), so it may be slow,
hang, leak or crash without harm to the training; it needs no threads and no locks.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar

from derl_gym.references import find_class


class WorldFailed(Exception):
    """An episode that ended through no fault of its policy: a crash, a hang, a game that cannot be loaded.

    The argument says why. Such an episode has no score, and is not one of score 0.
    """


@dataclasses.dataclass(frozen=True)
class Turn:
    """What the world says after a command, and at the start.

    Attributes:
        observation: What there is to read.
        admissible: The commands that have an effect now, sorted and without repetition.
        won: Whether the game is won. Once true it stays true.
        over: Whether the episode has ended, won or lost; there is no step after it.
        score: The world's own progress, 1 at best and negative for some losses; no measure of success.
        task: What is to be done. Given at the start, empty afterwards.
    """

    observation: str
    admissible: list[str]
    won: bool = False
    over: bool = False
    score: float = 0.0
    task: str = ""


class World(abc.ABC):
    """One live episode of some game at a time. Built from JSON-able keyword arguments.

    Attributes:
        parts: Names of the parts that the games come in, ``"train"`` first.
        per_worker: Live episodes, each with a world object of its own, that one process may hold: more than 1 only
            where two objects share no state.
    """

    parts: ClassVar[tuple[str, ...]] = ("train",)
    per_worker: ClassVar[int] = 1

    def start(self) -> None:  # noqa: B027
        """Load what :meth:`reset` needs. Called once in the worker, before anything is played.

        Raises:
            ImportError: a package is missing.
            OSError: a program or the data are missing.
        """

    @abc.abstractmethod
    def games(self, part: str) -> list[str]:
        """The ids of a part's games, sorted: the same on every machine.

        Raises:
            ValueError: there is no such part.
        """

    @abc.abstractmethod
    def reset(self, game_id: str) -> Turn:
        """Begin an episode. What was played before leaves no trace."""

    @abc.abstractmethod
    def step(self, command: str) -> Turn:
        """Carry out a command. One that means nothing is answered in words; it is no error."""

    def walkthrough(self, game_id: str) -> list[str]:
        """Commands that win a game. Ends the live episode.

        Raises:
            NotImplementedError: this world knows none.
            ValueError: it knows none of this game.
        """
        raise NotImplementedError(f"{type(self).__name__} knows no walkthroughs")

    def close(self) -> None:  # noqa: B027
        """Give up what the world holds."""


def load_world(reference: str, options: dict[str, Any] | None = None) -> World:
    """Build the world that ``"package.module:Class"`` names.

    Raises:
        ValueError: when there is no such world.
    """
    return find_class(reference, World, "world")(**(options or {}))  # type: ignore[type-abstract]


def check_part(world: World, part: str) -> None:
    """Refuse a part that the world does not have.

    Raises:
        ValueError: which ones there are.
    """
    if part not in world.parts:
        raise ValueError(f"{type(world).__name__} has the parts {', '.join(world.parts)}, not {part!r}")
