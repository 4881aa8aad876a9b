"""One call in each of many slots of a pool, all workers at once, with a limit for each.

A worker has one request under way, so that neither side ever waits for the other to empty a pipe: while some workers
are at work, the answers of the others are read and their next requests sent.
"""

from __future__ import annotations

import select
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from derl_gym.tasks.worlds.base import WorldFailed
from derl_gym.tasks.worlds.process import Died

if TYPE_CHECKING:
    from derl_gym.tasks.worlds.pool import WorldPool

_ERRORS = {error.__name__: error for error in (ImportError, FileNotFoundError, ValueError, NotImplementedError)}


class Batch:
    """What is to be done in some slots, and what has come of it.

    Args:
        pool: Whose slots they are. Its workers are started and buried as need be.
        do: ``"reset"``, ``"step"``, ``"games"`` or ``"walkthrough"``.
        arguments: By slot a game, a command, a part.
    """

    def __init__(self, pool: WorldPool, do: str, arguments: dict[int, str]) -> None:
        self._pool, self._do, self._arguments = pool, do, arguments
        self._queues: dict[int, deque[int]] = {}
        for slot in arguments:
            self._queues.setdefault(pool.seats[slot][0], deque()).append(slot)
        self._answers: dict[int, Any] = {}
        self._deadlines: dict[int, float] = {}
        self._descriptors: dict[int, int] = {}
        self._poll = select.poll()

    def run(self) -> dict[int, Any]:
        """By slot the world's answer, or a WorldFailed.

        Raises:
            RuntimeError: workers died again and again, or cannot be started.
        """
        self._pool.start_workers(number for number in self._queues if self._pool.running[number] is None)
        try:
            for number in self._queues:
                self._send(number)
            while self._deadlines:
                wait = max(0.0, min(self._deadlines.values()) - time.monotonic())
                for descriptor, _ in self._poll.poll(wait * 1000):
                    self._read(self._descriptors[descriptor])
                for number, deadline in list(self._deadlines.items()):
                    if time.monotonic() >= deadline and self._deadlines.get(number) == deadline:
                        self._lose(number, f"it took more than {self._pool.call_seconds:g} s")
        except BaseException:  # interrupted: replies may still come, and must not be taken for the next ones
            for number in self._deadlines:
                if self._pool.running[number] is not None:
                    self._pool.bury(number, "the call was interrupted")
            raise
        return {slot: self._answers[slot] for slot in self._arguments}

    def _send(self, number: int) -> None:
        """The worker's next request, if there is one."""
        worker, queue = self._pool.running[number], self._queues[number]
        if worker is None or not queue:
            self._deadlines.pop(number, None)
            return
        worker.ask(self._pool.seats[queue[0]][1], self._do, self._arguments[queue[0]])
        self._deadlines[number] = time.monotonic() + self._pool.call_seconds
        if self._descriptors.get(worker.descriptor) != number:
            self._poll.register(worker.descriptor, select.POLLIN)
            self._descriptors[worker.descriptor] = number

    def _read(self, number: int) -> None:
        """What the worker has said, if it has said all of it."""
        worker = self._pool.running[number]
        assert worker is not None
        try:
            reply = worker.reply()
        except Died as died:
            self._lose(number, str(died))
            return
        if reply is None:
            return
        slot = self._queues[number].popleft()
        if "error" in reply:
            self._answers[slot] = _failure(self._named(slot), reply["error"])
        else:
            self._answers[slot] = reply["value"]
            self._pool.deaths[number] = 0
        self._send(number)

    def _lose(self, number: int, reason: str) -> None:
        """Give a worker up, and with it its episodes. Resets that it had not come to are done by the next one."""
        worker, queue = self._pool.running[number], self._queues[number]
        assert worker is not None
        self._poll.unregister(worker.descriptor)
        del self._descriptors[worker.descriptor]
        failed = queue.popleft()
        for slot in self._pool.bury(number, reason):
            if self._do == "step" and slot in self._answers:  # its turn was had; what would come after it is lost
                if isinstance(self._answers[slot], WorldFailed) or self._answers[slot]["over"]:
                    del self._pool.lost[slot]
            elif self._do == "step" and slot in self._arguments:
                self._answers[slot] = self._pool.lost.pop(slot)
        if self._do == "reset":
            for slot, answer in self._answers.items():
                if self._pool.seats[slot][0] == number and not isinstance(answer, WorldFailed):
                    self._answers[slot] = went_down(reason)
        self._answers[failed] = WorldFailed(f"{self._named(failed)}: {reason}")
        if self._do == "step":
            queue.clear()
        elif queue:
            self._pool.start_workers([number])
        self._send(number)

    def _named(self, slot: int) -> str:
        argument = self._arguments[slot]
        return f"{self._do} {argument!r}" if len(argument) <= 100 else f"{self._do} {argument[:100]!r}..."


def raised(error: dict[str, str]) -> Exception:
    """The exception that a worker reports, as one of a few types."""
    if error["type"] in _ERRORS:
        return _ERRORS[error["type"]](error["message"])
    return RuntimeError(f"{error['type']}: {error['message']}")


def went_down(reason: str) -> WorldFailed:
    """Why an episode was lost that had done nothing wrong."""
    return WorldFailed(f"its worker was lost in another episode's call: {reason}")


def _failure(what: str, error: dict[str, str]) -> WorldFailed:
    failed = WorldFailed(f"{what}: {error['type']}: {error['message']}".removesuffix(": "))
    failed.__cause__ = raised(error) if error["type"] in _ERRORS else None
    return failed
