"""Policies for the tests: one that knows the way, one that says the same thing again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from derl_gym.tasks.worlds import Turn, WorldFailed, WorldPool

TURNS = 30


def successes(
    pool: WorldPool, games: Sequence[str], policy: Callable[[str], Iterator[str]], turns: int = TURNS
) -> float:
    """Share of the games that a policy wins, every game once, in waves of as many as the pool has slots.

    Raises:
        WorldFailed: an episode failed; that is no loss.
    """
    won = 0
    for first in range(0, len(games), pool.slots):
        wave = dict(enumerate(games[first : first + pool.slots]))
        says = {slot: policy(game) for slot, game in wave.items()}
        last: dict[int, Turn | WorldFailed] = dict(pool.reset_all(wave))
        for _ in range(turns):
            commands = {}
            for slot, turn in last.items():
                if isinstance(turn, WorldFailed):
                    raise turn
                if not turn.over and (command := next(says[slot], None)) is not None:
                    commands[slot] = command
            if not commands:
                break
            last |= pool.step_all(commands)
        won += sum(isinstance(turn, Turn) and turn.won for turn in last.values())
    return won / len(games)


def saying(*commands: str) -> Callable[[str], Iterator[str]]:
    return lambda game: iter(commands)
