"""Worlds for a run: a pool whose lost episodes are played again to where they were, and a run that fails after that.

Worlds are deterministic, so an episode whose process died goes on as if nothing had happened. One that is lost again
and again fails the whole inner run: an episode without an end has no reward, and is not one of reward 0.
"""

from __future__ import annotations

from derl_gym.tasks.worlds import Turn, WorldFailed, WorldPool

TRIES = 3
"""How often an episode is played to the same place before the run is given up."""


class Stage:
    """Live episodes by slot.

    Args:
        pool: Where they are played.
    """

    def __init__(self, pool: WorldPool) -> None:
        self._pool = pool
        self._played: dict[int, tuple[str, list[str], list[str]]] = {}

    def begin(self, games: dict[int, str]) -> dict[int, Turn]:
        """The first turns of games, by slot.

        Raises:
            WorldFailed: one could not be had in :data:`TRIES` attempts.
        """
        for slot, game in games.items():
            self._played[slot] = (game, [], [])
        return self._settle(self._pool.reset_all(games))

    def step(self, commands: dict[int, str]) -> dict[int, Turn]:
        """The turns after commands, by slot.

        Raises:
            WorldFailed: one could not be had in :data:`TRIES` attempts, or a lost episode went another way when it was
                played again.
        """
        for slot, command in commands.items():
            self._played[slot][1].append(command)
        return self._settle(self._pool.step_all(commands))

    def _settle(self, turns: dict[int, Turn | WorldFailed]) -> dict[int, Turn]:
        """Play again what was lost. An episode goes as far as the commands that it was given."""
        had: dict[int, Turn] = {}
        for tries_left in range(TRIES - 1, -1, -1):
            had |= {slot: turn for slot, turn in turns.items() if isinstance(turn, Turn)}
            lost = {slot: turn for slot, turn in turns.items() if isinstance(turn, WorldFailed)}
            if not lost:
                break
            if not tries_left:
                slot, failed = next(iter(lost.items()))
                raise WorldFailed(f"game {self._played[slot][0]!r} failed {TRIES} times: {failed}")
            turns = {slot: self._again(slot) for slot in lost}
        for slot, turn in had.items():
            self._played[slot][2].append(turn.observation)
        return had

    def _again(self, slot: int) -> Turn | WorldFailed:
        game, commands, observations = self._played[slot]
        turn = self._pool.reset_all({slot: game})[slot]
        for number, command in enumerate(commands):
            if isinstance(turn, WorldFailed):
                return turn
            if turn.over or turn.observation != observations[number]:
                raise WorldFailed(f"game {game!r} goes another way when it is played again, at its step {number}")
            turn = self._pool.step_all({slot: command})[slot]
        return turn
