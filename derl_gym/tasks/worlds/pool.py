"""Many episodes at once, in worker processes that may crash or hang: the episode fails, the training goes on.

How many processes, and how much memory? A worker holds as many live episodes as its world allows
(``World.per_worker``), plays them one after the other, and works at the same time as the other workers.

- ALFWorld: 64. Its games share nothing, so two or four workers, as many as there are free cores, play the 64 to 128
  episodes of an update at once, each in 0.1 GB and some MB per episode.
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
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from derl_gym.tasks.worlds.base import Turn, WorldFailed
from derl_gym.tasks.worlds.process import Died, Worker

LOG = logging.getLogger("derl_gym")
DEATHS = 3
"""Deaths of a worker in a row, without one answer in between, after which the pool gives up."""
_ERRORS = {error.__name__: error for error in (ImportError, FileNotFoundError, ValueError, NotImplementedError)}


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
        self._running: list[Worker | None] = [None] * workers
        self._deaths = [0] * workers
        self._live: set[int] = set()
        self._lost: dict[int, WorldFailed] = {}
        self._closed = False
        _pools.add(self)
        self._per_worker = self._start(range(workers))

    @property
    def slots(self) -> int:
        """Episodes that can be live at once; they have the numbers from 0 on."""
        return self.workers * self._per_worker

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that run."""
        return [worker.pid for worker in self._running if worker is not None]

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
            self._lost.pop(slot, None)
        turns = {slot: _turn(value) for slot, value in self._call("reset", games).items()}
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
        if idle := sorted(slot for slot in commands if slot not in self._live and slot not in self._lost):
            raise ValueError(f"no live episode in slot {', '.join(map(str, idle))}: it is over, or was never begun")
        lost = {slot: self._lost.pop(slot) for slot in commands if slot in self._lost}
        values = self._call("step", {slot: text for slot, text in commands.items() if slot not in lost})
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
        running = [worker for worker in self._running if worker is not None]
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

    def _ask(self, do: str, argument: str) -> Any:
        value = self._call(do, {0: argument})[0]
        if isinstance(value, WorldFailed):
            raise value.__cause__ or value
        return value

    def _check_slots(self, slots: Iterable[int]) -> None:
        if self._closed:
            raise ValueError("the pool is closed")
        if unknown := sorted(slot for slot in slots if not 0 <= slot < self.slots):
            raise ValueError(f"slots are numbered from 0 to {self.slots - 1}, not {', '.join(map(str, unknown))}")

    def _call(self, do: str, arguments: dict[int, str]) -> dict[int, Any]:
        """Ask each slot's worker; by slot its answer, or a WorldFailed.

        A worker has one request under way, so that neither side ever waits for the other to empty a pipe.
        """
        queues: dict[int, deque[int]] = {}
        for slot in arguments:
            queues.setdefault(slot % self.workers, deque()).append(slot)
        self._start(number for number in queues if self._running[number] is None)
        answers: dict[int, Any] = {}
        deadlines: dict[int, float] = {}
        poll, numbers = select.poll(), {}

        def send(number: int) -> None:
            worker = self._running[number]
            if worker is None or not queues[number]:
                deadlines.pop(number, None)
                return
            worker.ask(queues[number][0] // self.workers, do, arguments[queues[number][0]])
            deadlines[number] = time.monotonic() + self.call_seconds
            if numbers.get(worker.descriptor) != number:
                poll.register(worker.descriptor, select.POLLIN)
                numbers[worker.descriptor] = number

        def lose(number: int, reason: str) -> None:
            worker = self._running[number]
            assert worker is not None
            poll.unregister(worker.descriptor)
            del numbers[worker.descriptor]
            failed = queues[number].popleft()
            for slot in self._bury(number, reason):
                if do == "step" and slot in answers:  # its turn was had; what would come after it is lost
                    if isinstance(answers[slot], WorldFailed) or answers[slot]["over"]:
                        del self._lost[slot]
                elif do == "step" and slot in arguments:
                    answers[slot] = self._lost.pop(slot)
            if do == "reset":
                for slot in [slot for slot in answers if slot % self.workers == number]:
                    if not isinstance(answers[slot], WorldFailed):
                        answers[slot] = _went_down(reason)
            answers[failed] = WorldFailed(f"{_named(do, arguments[failed])}: {reason}")
            if do == "step":
                queues[number].clear()
            elif queues[number]:
                self._start([number])
            send(number)

        try:
            for number in queues:
                send(number)
            while deadlines:
                wait = max(0.0, min(deadlines.values()) - time.monotonic())
                for descriptor, _ in poll.poll(wait * 1000):
                    number = numbers[descriptor]
                    worker = self._running[number]
                    assert worker is not None
                    try:
                        reply = worker.reply()
                    except Died as died:
                        lose(number, str(died))
                        continue
                    if reply is not None:
                        slot = queues[number].popleft()
                        answers[slot] = _value(reply, _named(do, arguments[slot]))
                        if "error" not in reply:
                            self._deaths[number] = 0
                        send(number)
                for number, deadline in list(deadlines.items()):
                    if time.monotonic() >= deadline and deadlines.get(number) == deadline:
                        lose(number, f"it took more than {self.call_seconds:g} s")
        except BaseException:  # interrupted: replies may still come, and must not be taken for the next ones
            for number in list(deadlines):
                if self._running[number] is not None:
                    self._bury(number, "the call was interrupted")
            raise
        return {slot: answers[slot] for slot in arguments}

    def _bury(self, number: int, reason: str) -> list[int]:
        """Kill a worker; the slots whose live episodes are lost with it."""
        worker = self._running[number]
        assert worker is not None
        self._running[number] = None
        self._deaths[number] += 1
        worker.kill()
        lost = [slot for slot in self._live if slot % self.workers == number]
        self._live -= set(lost)
        self._lost |= {slot: _went_down(reason) for slot in lost}
        LOG.warning("a process of %s was ended and its episodes have failed: %s", self.world, reason)
        return lost

    def _start(self, numbers: Iterable[int]) -> int:
        """Start workers, all at once, and wait until they are ready. Returns how many episodes each can hold."""
        if self._closed:
            raise ValueError("the pool is closed")
        starting = []
        for number in numbers:
            if self._deaths[number] >= DEATHS:
                self.close()
                raise RuntimeError(f"a process of {self.world} ended {DEATHS} times in a row without an answer")
            self._running[number] = worker = Worker(self.world, self.options)
            starting.append(worker)
        per_worker = 0
        deadline = time.monotonic() + self.start_seconds
        try:
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
            kind, message = hello["error"]["type"], hello["error"]["message"]
            raise _ERRORS.get(kind, RuntimeError)(message if kind in _ERRORS else f"{kind}: {message}")
        return hello["ready"]["per_worker"]

    def _kill_all(self) -> None:
        for worker in self._running:
            if worker is not None:
                worker.kill()
        self._forget()

    def _forget(self) -> None:
        self._running = [None] * self.workers
        self._live.clear()
        self._lost.clear()


def _turn(value: Any) -> Turn | WorldFailed:
    return value if isinstance(value, WorldFailed) else Turn(**value)


def _value(reply: dict[str, Any], what: str) -> Any:
    if "error" not in reply:
        return reply["value"]
    kind, message = reply["error"]["type"], reply["error"]["message"]
    failed = WorldFailed(f"{what}: {kind}: {message}".removesuffix(": "))
    failed.__cause__ = _ERRORS[kind](message) if kind in _ERRORS else None
    return failed


def _went_down(reason: str) -> WorldFailed:
    return WorldFailed(f"its worker was lost in another episode's call: {reason}")


def _named(do: str, argument: str) -> str:
    return f"{do} {argument!r}" if len(argument) <= 100 else f"{do} {argument[:100]!r}..."


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
