"""Many episodes at once, in worker processes that may crash or hang: the episode fails, the training goes on.

How many processes, and how much memory? A worker holds as many live episodes as its world allows
(``World.per_worker``), plays them one after the other, and works at the same time as the other workers.

- ALFWorld: 64. Its games share nothing, so two or four workers, as many as there are free cores, play the 64 to 128
  episodes of an update at once: a worker of 90 MB, and 4 to 8 MB more for each live episode. A worker for each would
  take 10 GB. What it costs: a worker that dies takes all its episodes along.
- ScienceWorld: 1. Its simulator has global state, so every live episode needs a Java process of its own, of half a GB.
  With fewer workers than episodes, play them in waves of ``pool.slots``.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import time
import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from derl_gym.tasks.worlds.base import Turn, WorldFailed
from derl_gym.tasks.worlds.batch import Batch, raised, went_down
from derl_gym.tasks.worlds.process import Died, Worker

LOG = logging.getLogger("derl_gym")
DEATHS = 3
"""Deaths of a worker in a row, without one answer in between, after which the pool gives up."""


class WorldPool:
    """Worker processes that play episodes in numbered slots. A context manager; belongs to one thread.

    A slot holds one episode from :meth:`reset_all` to its end. A worker that dies, or takes too long over a call, is
    killed with all that it started and replaced at the next reset; the episodes that it held have failed. Nothing
    outlives the pool or its process.

    Args:
        world: Where the world's class is, as ``"package.module:Class"``; it must be importable.
        options: Its JSON-able keyword arguments.
        workers: Processes.
        call_seconds: Wall-clock seconds that one call of a world may take.
        start_seconds: The same for the start of a worker, imports included.

    Raises:
        ImportError: a package that the world needs is missing, and so on: what its ``start`` raises.
        RuntimeError: the workers cannot be started.
    """

    def __init__(
        self,
        world: str,
        options: dict[str, Any] | None = None,
        workers: int = 1,
        call_seconds: float = 60.0,
        start_seconds: float = 120.0,
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, not {workers}")
        self.world = world
        self.options = dict(options or {})
        self.workers = workers
        self.call_seconds = call_seconds
        self.start_seconds = start_seconds
        self.running: list[Worker | None] = [None] * workers
        """By number; a dead one is replaced when it is needed."""
        self.deaths = [0] * workers
        """In a row."""
        self.lost: dict[int, WorldFailed] = {}
        """Slots whose episodes were lost, until somebody asks for them."""
        self.seats: dict[int, tuple[int, int]] = {}
        """Slot -> a worker's number and a place in it."""
        self._live: set[int] = set()
        self._closed = False
        _pools.add(self)
        self._per_worker = self.start_workers(range(workers))

    @property
    def slots(self) -> int:
        """Episodes that can be live at once; they have the numbers from 0 on."""
        return self.workers * self._per_worker

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that run."""
        return [worker.pid for worker in self.running if worker is not None]

    def reset_all(self, games: dict[int, str]) -> dict[int, Turn | WorldFailed]:
        """Begin an episode of a game in each of the given slots, all workers at once.

        Returns:
            By slot the first turn, or why there is no episode.

        Raises:
            ValueError: there is no such slot.
            RuntimeError: a worker died again and again; no game can be played.
        """
        self._check_slots(games)
        self._live -= set(games)
        for slot in games:
            self.lost.pop(slot, None)
        self._seat(games)
        turns = {slot: _turn(value) for slot, value in Batch(self, "reset", games).run().items()}
        self._live |= {slot for slot, turn in turns.items() if isinstance(turn, Turn) and not turn.over}
        return turns

    def step_all(self, commands: dict[int, str]) -> dict[int, Turn | WorldFailed]:
        """Carry out a command in each of the given slots, all workers at once.

        Returns:
            By slot the turn, or why its episode has failed; both end where a turn is over.

        Raises:
            ValueError: there is no live episode in a slot.
        """
        self._check_slots(commands)
        if idle := sorted(slot for slot in commands if slot not in self._live and slot not in self.lost):
            raise ValueError(f"no live episode in slot {', '.join(map(str, idle))}: it is over, or was never begun")
        lost = {slot: self.lost.pop(slot) for slot in commands if slot in self.lost}
        values = Batch(self, "step", {slot: text for slot, text in commands.items() if slot not in lost}).run()
        turns = lost | {slot: _turn(value) for slot, value in values.items()}
        self._live -= {slot for slot, turn in turns.items() if not isinstance(turn, Turn) or turn.over}
        return {slot: turns[slot] for slot in commands}

    def games(self, part: str) -> list[str]:
        """The ids of a part's games; see :meth:`World.games`, whose errors are raised here."""
        return self._ask("games", part)

    def walkthrough(self, game_id: str) -> list[str]:
        """Commands that win a game; see :meth:`World.walkthrough`. The episode in slot 0 ends."""
        self._live.discard(0)
        return self._ask("walkthrough", game_id)

    def close(self) -> None:
        """End all workers and what they started."""
        self._closed = True
        running = [worker for worker in self.running if worker is not None]
        for worker in running:
            worker.hang_up()
        deadline = time.monotonic() + 2.0
        for worker in running:
            worker.stop(deadline)
        self._forget()

    def __enter__(self) -> WorldPool:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()

    def _seat(self, games: dict[int, str]) -> None:
        """Share slots out evenly among the workers, so that those of a game are together where they can be.

        What a worker has worked out of a game then serves all episodes of a group.
        """
        for slot in games:
            self.seats.pop(slot, None)
        taken = set(self.seats.values())
        free = [[place for place in range(self._per_worker) if (n, place) not in taken] for n in range(self.workers)]
        share = -(-len(games) // self.workers)
        for position, slot in enumerate(sorted(games, key=lambda slot: games[slot])):
            number = position // share
            if not free[number]:
                number = max(range(self.workers), key=lambda number: len(free[number]))
            self.seats[slot] = number, free[number].pop(0)

    def _ask(self, do: str, argument: str) -> Any:
        if 0 not in self.seats:
            self._seat({0: argument})
        value = Batch(self, do, {0: argument}).run()[0]
        if isinstance(value, WorldFailed):
            raise value.__cause__ or value
        return value

    def _check_slots(self, slots: Iterable[int]) -> None:
        if self._closed:
            raise ValueError("the pool is closed")
        if unknown := sorted(slot for slot in slots if not 0 <= slot < self.slots):
            raise ValueError(f"slots are numbered from 0 to {self.slots - 1}, not {', '.join(map(str, unknown))}")

    def bury(self, number: int, reason: str) -> list[int]:
        """Kill a worker; the slots whose live episodes are lost with it."""
        worker = self.running[number]
        assert worker is not None
        self.running[number] = None
        self.deaths[number] += 1
        worker.kill()
        lost = [slot for slot in self._live if self.seats[slot][0] == number]
        self._live -= set(lost)
        self.lost |= {slot: went_down(reason) for slot in lost}
        LOG.warning("a process of %s was ended and its episodes have failed: %s", self.world, reason)
        return lost

    def start_workers(self, numbers: Iterable[int]) -> int:
        """Start workers, all at once, and wait until they are ready. Returns how many episodes each can hold."""
        if self._closed:
            raise ValueError("the pool is closed")
        starting = []
        per_worker = 0
        try:
            for number in numbers:
                if self.deaths[number] >= DEATHS:
                    raise RuntimeError(f"a process of {self.world} ended {DEATHS} times in a row without an answer")
                self.running[number] = worker = Worker(self.world, self.options)
                starting.append(worker)
            deadline = time.monotonic() + self.start_seconds
            for worker in starting:
                per_worker = self._greeting(worker, deadline)
        except BaseException:
            self._kill_all()
            raise
        return per_worker

    def _greeting(self, worker: Worker, deadline: float) -> int:
        poll = select.poll()
        poll.register(worker.descriptor, select.POLLIN)
        try:
            while (hello := worker.reply()) is None:
                if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    raise RuntimeError(f"{self.world} was not ready within {self.start_seconds:g} s")
        except Died as died:
            raise RuntimeError(f"{self.world} cannot be started: {died}") from None
        if "error" in hello:
            raise raised(hello["error"])
        return hello["ready"]["per_worker"]

    def _kill_all(self) -> None:
        for worker in self.running:
            if worker is not None:
                worker.kill()
        self._forget()

    def _forget(self) -> None:
        self.running = [None] * self.workers
        self._live.clear()
        self.lost.clear()


def _turn(value: Any) -> Turn | WorldFailed:
    return value if isinstance(value, WorldFailed) else Turn(**value)


_pools: weakref.WeakSet[WorldPool] = weakref.WeakSet()


def _close_all() -> None:
    for pool in list(_pools):
        pool.close()


def _after_fork() -> None:
    for pool in _pools:
        pool._closed = True
        pool._forget()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_close_all)
