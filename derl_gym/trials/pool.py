"""The local pool: jobs in child processes of a fork server, with limits that hold and nothing left behind.

The pool keeps the queue, the retries and the device leases; ``server.py`` forks, kills and reaps. One server
per pool is started at the first job and stays warm. No pickles, no ``multiprocessing``: a user's script needs
no ``if __name__ == "__main__"``. POSIX only; that children die with a killed server is Linux only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import IO, Any

from derl_gym.trials.jobs import (
    Job,
    Outcome,
    Started,
    describe_exit,
    explain,
    prepare_folder,
    read_result,
)
from derl_gym.trials.pools import Pool

__all__ = ["Job", "LocalPool", "Outcome", "PoolError", "warm_servers"]

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from derl_gym.trials.server import main; main(int(sys.argv[1]))"
)
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
_GRACE = 30.0  # seconds past a limit, or past a job's sending, after which a silent server counts as dead


class PoolError(RuntimeError):
    """The pool cannot work at all: a preload does not import, or the server does not start."""


_spare: dict[tuple[str, ...], list[_Server]] | None = None
_at_end: list[Callable[[], object]] = []


@contextlib.contextmanager
def warm_servers() -> Iterator[None]:
    """Within the block, a pool that is closed hands its server on to the next one with the same preloads.

    Loading torch and trl takes seconds; many searches in a row, as in a comparison, then pay for it once. The
    servers end with the block. Blocks may be nested; the outermost counts.
    """
    global _spare
    if _spare is not None:
        yield
        return
    _spare = {}
    try:
        yield
    finally:
        stops = [*(server.stop for kept in _spare.values() for server in kept), *_at_end]
        _spare = None
        _at_end.clear()
        for stop in stops:
            stop()


def kept_warm(stop: Callable[[], object]) -> bool:
    """Within a block of :func:`warm_servers`, have something stopped at its end; whether there is such a block."""
    if _spare is not None:
        _at_end.append(stop)
    return _spare is not None


class _ServerLost(Exception):
    """The server died or hangs; the message says which."""


class _Attempt:
    """One try of a job, from the queue to its end."""

    def __init__(self, job: Job, number: int) -> None:
        self.job = job
        self.number = number
        self.device: str | None = None
        self.pid: int | None = None
        self.overdue = float("inf")

    def sent(self) -> None:
        self.overdue = time.monotonic() + _GRACE

    def started(self, pid: int) -> None:
        self.pid = pid
        limit = self.job.timeout
        self.overdue = float("inf") if limit is None else time.monotonic() + limit + _GRACE


class LocalPool(Pool):
    """Runs jobs on this machine, ``workers`` at a time.

    Args:
        workers: Jobs that run at once; ``None``: one per device, or 1 without devices.
        preload: Modules that the server imports before it forks.
        attempts: Attempts per job in all; a failure of any kind is tried again until they are used up.
        devices: Each running job leases one of these for itself and sees it as ``CUDA_VISIBLE_DEVICES``.
        start_timeout: Seconds that the server may take for the preloads.
        launcher: Command that runs the server's as its child, for a driver that is itself looked after by another
            program: one that kills a driver's children would kill the server before it can do so to what it runs.

    Raises:
        ValueError: fewer devices than workers, or the like.
        PoolError: the operating system has no ``fork``.

    The server and what it runs end with :meth:`close`, and with the driver, however that ends.
    """

    def __init__(
        self,
        workers: int | None = None,
        preload: Sequence[str] = ("derl_gym.inner.train",),
        attempts: int = 2,
        devices: Sequence[str] | None = None,
        start_timeout: float = 600.0,
        launcher: Sequence[str] = (),
    ) -> None:
        if not hasattr(os, "fork"):
            raise PoolError("the local pool needs fork(): Linux, macOS, or WSL on Windows")
        if workers is None:
            workers = len(devices) if devices else 1
        if workers < 1 or attempts < 1:
            raise ValueError(f"workers and attempts must be at least 1, not {workers} and {attempts}")
        if devices is not None and (len(set(devices)) < len(devices) or workers > len(devices)):
            raise ValueError(f"{workers} workers need as many different devices, not {list(devices)}")
        self.workers = workers
        self.preload = tuple(preload)
        self.attempts = attempts
        self.devices = None if devices is None else tuple(devices)
        self.start_timeout = start_timeout
        self.launcher = tuple(launcher)
        self._server: _Server | None = None

    def close(self) -> None:
        """Kill what runs and end the server. A closed pool that is used again starts a new one."""
        if self._active is not None:
            self._active.close()
        if _spare is not None and self._server is not None:
            _spare.setdefault(self.preload, []).append(self._server)
            self._server = None
        self._stop()

    def _events(self, jobs: list[Job], first_attempt: int) -> Generator[Started | Outcome, None, None]:
        last_attempt = first_attempt + self.attempts - 1
        waiting = deque(_Attempt(job, first_attempt) for job in jobs)
        running: dict[str, _Attempt] = {}
        free = list(self.devices or ())
        ended: list[Outcome] = []

        def end(
            attempt: _Attempt, failure: str | None, result: dict[str, Any] | None = None, seconds: float = 0.0
        ) -> None:
            del running[attempt.job.id]
            if attempt.device is not None:
                free.append(attempt.device)
            if failure is not None and attempt.number < last_attempt:
                waiting.appendleft(_Attempt(attempt.job, attempt.number + 1))
            else:
                ended.append(Outcome(attempt.job.id, result, failure, attempt.number, seconds, attempt.pid))

        try:
            while waiting or running or ended:
                try:
                    while waiting and len(running) < self.workers:
                        server = self._server or self._start()
                        attempt = waiting.popleft()
                        running[attempt.job.id] = attempt
                        attempt.device = free.pop(0) if self.devices else None
                        try:
                            order = _order(attempt)
                        except OSError as error:
                            end(attempt, explain(f"{attempt.job.folder} cannot be used: {error}"))
                            continue
                        server.send(order)
                        attempt.sent()
                    while ended:  # the slots are filled by now: a slow consumer idles no worker
                        yield ended.pop(0)
                    for message in self._messages(running):
                        attempt = running[message["id"]]
                        if message["event"] == "started":
                            attempt.started(message["pid"])
                            yield Started(attempt.job, message["pid"], attempt.number, socket.gethostname())
                        elif message["event"] == "refused":
                            end(attempt, explain(message["reason"]))
                        else:
                            result, failure = read_result(attempt.job, message["status"], message["timed_out"])
                            end(attempt, failure, result, message["seconds"])
                except _ServerLost as lost:
                    self._stop(running)
                    for attempt in list(running.values()):
                        end(attempt, explain(str(lost)))
        finally:
            if running:
                self._stop(running)

    def _messages(self, running: dict[str, _Attempt]) -> list[dict[str, Any]]:
        if not running or self._server is None:
            return []
        # What the server said while the consumer was busy is read before anything counts as overdue.
        messages = self._server.receive(0.0)
        if not messages:
            overdue = min(attempt.overdue for attempt in running.values())
            wait = None if overdue == float("inf") else max(0.0, overdue - time.monotonic())
            messages = self._server.receive(wait)
            if not messages and time.monotonic() >= overdue:
                raise _ServerLost("the pool's server stopped answering and was killed")
        return messages

    def _start(self) -> _Server:
        while _spare is not None and _spare.get(self.preload):
            self._server = _spare[self.preload].pop()
            if self._server.alive():
                return self._server
            self._stop()
        try:
            self._server = server = _Server(self.launcher)
            server.send({"preload": self.preload})
            deadline = time.monotonic() + self.start_timeout
            answers: list[dict[str, Any]] = []
            while not answers and time.monotonic() < deadline:
                answers = server.receive(deadline - time.monotonic())
            answer = answers[0] if answers else {"event": f"was not ready within {self.start_timeout:g} s"}
            if answer["event"] != "ready":
                raise _ServerLost(f"the pool's server {answer['event']}")
            return server
        except (_ServerLost, OSError) as error:
            output = "" if self._server is None else self._server.output()
            self._stop()
            raise PoolError(f"{error}{output}") from None
        except BaseException:
            self._stop()
            raise

    def _stop(self, running: dict[str, _Attempt] | None = None) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.stop()
        groups = [attempt.pid for attempt in (running or {}).values() if attempt.pid is not None]
        deadline = time.monotonic() + 0.5
        # A server that was itself killed could not do this; until they are gone they hold memory and devices.
        while any([_kill(group) for group in groups]) and time.monotonic() < deadline:
            time.sleep(0.01)


class _Server:
    """The driver's end of one server process."""

    def __init__(self, launcher: Sequence[str] = ()) -> None:
        self._socket, theirs = socket.socketpair()
        self._buffer = b""
        self._output = tempfile.TemporaryFile()  # noqa: SIM115, closed by stop()
        with theirs:
            self._process = subprocess.Popen(
                [*launcher, sys.executable, "-P", "-c", _BOOT, str(theirs.fileno()), json.dumps(_path())],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C in a terminal reaches the driver alone
                env={**_ONE_THREAD, **os.environ},
            )
        self.stop = weakref.finalize(self, _end_server, self._process, self._socket, self._output, os.getpid())

    def send(self, message: dict[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        try:
            self._socket.settimeout(_GRACE)
            self._socket.sendall(line)
        except OSError as error:
            raise _ServerLost(self._death()) from error

    def receive(self, timeout: float | None) -> list[dict[str, Any]]:
        """Messages that have come, after a wait for the first; none when the time is over."""
        try:
            self._socket.settimeout(timeout)
            data = self._socket.recv(1 << 16)
        except (TimeoutError, BlockingIOError):
            return []
        except OSError:
            data = b""
        if not data:
            raise _ServerLost(self._death())
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def alive(self) -> bool:
        """Whether the process is still there."""
        return self._process.poll() is None

    def output(self) -> str:
        """The last lines that the server printed, to be put behind an error."""
        self._output.seek(0)
        text = self._output.read()[-2000:].decode(errors="replace").strip()
        return f"\n{text}" if text else ""

    def _death(self) -> str:
        try:
            return f"the pool's server ended: {describe_exit(self._process.wait(1.0))}"
        except subprocess.TimeoutExpired:
            return "the pool's server stopped answering and was killed"


def _end_server(process: subprocess.Popen[bytes], end: socket.socket, output: IO[bytes], owner: int) -> None:
    if os.getpid() != owner:  # a forked copy of the driver owns nothing
        return
    end.close()
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    output.close()


def _order(attempt: _Attempt) -> dict[str, Any]:
    job = attempt.job
    return {
        "id": job.id,
        "target": job.target,
        "payload": job.payload,
        "folder": str(prepare_folder(job)),
        "limit": job.timeout,
        "env": job.env if attempt.device is None else {**job.env, "CUDA_VISIBLE_DEVICES": attempt.device},
        "path": _path(),
        "cwd": os.getcwd(),
        "attempt": attempt.number,
    }


def _path() -> list[str]:
    return [os.path.abspath(entry) for entry in sys.path]


def _kill(group: int) -> bool:
    """Kill a process group; whether there was anything left of it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
        return True
    return False
