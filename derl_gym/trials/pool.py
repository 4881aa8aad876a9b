"""The local pool: jobs in child processes of a fork server, with limits that hold and nothing left behind.

The pool keeps the queue, the retries and the device leases; ``server.py`` forks, kills and reaps. One server
per pool is started at the first job and stays warm. No pickles, no ``multiprocessing``: a user's script needs no
``if __name__ == "__main__"``. POSIX only; the kernel's help against orphans of a killed server is Linux only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
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
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from derl_gym.trials.server import kill_group

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from derl_gym.trials.server import main; main(int(sys.argv[1]))"
)
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
_GRACE = 10.0
"""Seconds past a limit, or past a job's sending, after which a silent server counts as dead."""


class PoolError(RuntimeError):
    """The pool cannot work at all: a preload does not import, or the server does not start."""


@dataclasses.dataclass(frozen=True)
class Job:
    """One call in a process of its own.

    Attributes:
        id: Unique among the jobs of one :meth:`LocalPool.run`.
        target: ``"module:function"``, called as ``function(payload, folder)``; returns a JSON-able dict.
        payload: JSON-able argument.
        folder: Made if need be, and the job's alone: ``log.txt`` (both output streams of all attempts),
            ``result.json`` or ``error.json``.
        timeout: Wall-clock seconds of one attempt, after which its process group is killed.
        env: Environment variables that the child gets on top of the driver's.
    """

    id: str
    target: str
    payload: dict[str, Any]
    folder: Path
    timeout: float | None = None
    env: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job ended, after its last attempt.

    Attributes:
        id: The job's.
        result: What the target returned; ``None`` when it failed.
        failure: One sentence on what went wrong in the last attempt; ``None`` with a result.
        attempts: Attempts made, 1 or more.
        seconds: Wall-clock seconds of the last attempt, from fork to exit.
        pid: Process id of the last attempt; ``None`` when it never started.
    """

    id: str
    result: dict[str, Any] | None
    failure: str | None
    attempts: int
    seconds: float
    pid: int | None


@dataclasses.dataclass
class _Attempt:
    job: Job
    number: int = 1
    device: str | None = None
    pid: int | None = None
    overdue: float = float("inf")


class LocalPool:
    """Runs jobs on this machine, ``workers`` at a time.

    Args:
        workers: Jobs that run at once; ``None``: one per device, or 1 without devices.
        preload: Modules that the server imports before it forks.
        attempts: Attempts per job in all; a failure of any kind is tried again until they are used up.
        devices: Each running job leases one of these for itself and sees it as ``CUDA_VISIBLE_DEVICES``.
        start_timeout: Seconds that the server may take for the preloads.

    A pool belongs to one thread. It is a context manager; :meth:`close` ends its server, and so does the end of
    the driver in whatever way.
    """

    def __init__(
        self,
        workers: int | None = None,
        preload: Sequence[str] = ("derl_gym.inner.train",),
        attempts: int = 2,
        devices: Sequence[str] | None = None,
        start_timeout: float = 600.0,
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
        self._server: _Server | None = None
        self._active: Generator[Outcome, None, None] | None = None

    def run(
        self, jobs: Iterable[Job], on_start: Callable[[Job, int, int], None] | None = None
    ) -> Generator[Outcome, None, None]:
        """Run jobs and yield their outcomes in the order in which they end.

        Closing the generator early, or an exception in it (Ctrl-C), kills what runs; wrap it in
        ``contextlib.closing`` where the loop over it may be left by an exception. A new call closes the last one.

        Args:
            jobs: Started in this order. Ids and folders must differ.
            on_start: Called as ``on_start(job, pid, attempt)`` when an attempt has started.

        Raises:
            ValueError: two jobs share an id or a folder.
            PoolError: the server cannot start; no job is to blame.
        """
        jobs = list(jobs)
        for name in ("id", "folder"):
            values = [str(getattr(job, name)) for job in jobs]
            if len(set(values)) < len(values):
                twice = next(value for value in values if values.count(value) > 1)
                raise ValueError(f"two jobs have the {name} {twice!r}: each needs its own")
        if self._active is not None:
            self._active.close()
        self._active = self._run(jobs, on_start)
        return self._active

    def close(self) -> None:
        """Kill what runs and end the server. A closed pool that is used again starts a new one."""
        if self._active is not None:
            self._active.close()
            self._active = None
        self._stop()

    def __enter__(self) -> LocalPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(
        self, jobs: list[Job], on_start: Callable[[Job, int, int], None] | None
    ) -> Generator[Outcome, None, None]:
        waiting = deque(_Attempt(job) for job in jobs)
        running: dict[str, _Attempt] = {}
        free = list(self.devices or ())
        ended: list[Outcome] = []

        def end(
            attempt: _Attempt, failure: str | None, result: dict[str, Any] | None, seconds: float
        ) -> None:
            if running.pop(attempt.job.id, None) and attempt.device is not None:
                free.append(attempt.device)
            if failure is not None and attempt.number < self.attempts:
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
                        if self.devices is not None:
                            attempt.device = free.pop(0)
                        try:
                            order = _prepare(attempt)
                        except OSError as error:
                            end(attempt, _advise(f"cannot use {attempt.job.folder}: {error}"), None, 0.0)
                            continue
                        server.send(order)
                        attempt.overdue = time.monotonic() + _GRACE
                    while ended:  # slots are filled by now: a slow consumer idles no worker
                        yield ended.pop(0)
                    for message in self._receive(running):
                        attempt = running[
                            next(message[key] for key in ("started", "ended", "refused") if key in message)
                        ]
                        if "started" in message:
                            attempt.pid = message["pid"]
                            limit = attempt.job.timeout
                            attempt.overdue = (
                                float("inf") if limit is None else time.monotonic() + limit + _GRACE
                            )
                            if on_start is not None:
                                on_start(attempt.job, message["pid"], attempt.number)
                        elif "refused" in message:
                            end(attempt, message["reason"], None, 0.0)
                        else:
                            result, failure = _read(attempt.job, message["status"], message["timed_out"])
                            end(attempt, failure, result, message["seconds"])
                except _ServerLost as lost:
                    self._stop(running.values())
                    for attempt in list(running.values()):
                        end(attempt, str(lost), None, 0.0)
        finally:
            if running:
                self._stop(running.values())

    def _receive(self, running: dict[str, _Attempt]) -> list[dict[str, Any]]:
        if not running or self._server is None:
            return []
        # What the server said while the consumer was busy is read before anything counts as overdue.
        overdue = min(attempt.overdue for attempt in running.values())
        messages = self._server.receive(0.0)
        if not messages:
            now = time.monotonic()
            messages = self._server.receive(None if overdue == float("inf") else max(0.0, overdue - now))
            if not messages and time.monotonic() >= overdue:
                raise _ServerLost("the pool's server stopped answering and was killed")
        return messages

    def _start(self) -> _Server:
        self._server = server = _Server()
        try:
            server.send({"preload": self.preload})
            deadline = time.monotonic() + self.start_timeout
            answers: list[dict[str, Any]] = []
            while not answers and (patience := deadline - time.monotonic()) > 0:
                answers = server.receive(patience)
        except _ServerLost as lost:
            output = server.output()
            self._stop()
            raise PoolError(f"the pool's server did not start: {lost}{output}") from None
        except BaseException:
            self._stop()
            raise
        if not answers or "preload_failed" in answers[0]:
            reason = (
                answers[0]["preload_failed"] if answers else f"{self.preload} within {self.start_timeout:g} s"
            )
            output = server.output()
            self._stop()
            raise PoolError(f"the pool's server could not import {reason}{output}")
        return server

    def _stop(self, running: Iterable[_Attempt] = ()) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.stop()
        groups = [attempt.pid for attempt in running if attempt.pid is not None]
        for pid in groups:
            kill_group(pid)
        deadline = time.monotonic() + 2.0
        while any(map(_alive, groups)) and time.monotonic() < deadline:
            time.sleep(0.01)


class _ServerLost(Exception):
    """The server died or hangs; its message says which."""


class _Server:
    """The driver's end of one server process."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._buffer = b""
        self._output = tempfile.TemporaryFile()
        path = json.dumps([os.path.abspath(entry) for entry in sys.path])
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, str(theirs.fileno()), path],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C in a terminal reaches the driver alone
                env={**_ONE_THREAD, **os.environ},
            )
        self.stop = weakref.finalize(
            self, _end_server, self._process, self._socket, self._output, os.getpid()
        )

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

    def output(self) -> str:
        """The last lines that the server printed, to be put behind an error."""
        self._output.seek(0)
        text = self._output.read()[-2000:].decode(errors="replace").strip()
        return f"\n{text}" if text else ""

    def _death(self) -> str:
        try:
            status = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "the pool's server stopped answering and was killed"
        return f"the pool's server was {_ending(status)}"


def _end_server(process: subprocess.Popen[bytes], end: socket.socket, output: IO[bytes], owner: int) -> None:
    if os.getpid() != owner:  # a forked copy of the driver owns nothing
        return
    end.close()
    try:
        process.wait(2.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    output.close()


def _prepare(attempt: _Attempt) -> dict[str, Any]:
    """Clear the folder of what an earlier attempt left, and write the order for the server."""
    job = attempt.job
    folder = Path(job.folder).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("result.json", "error.json"):
        (folder / name).unlink(missing_ok=True)
    return {
        "id": job.id,
        "target": job.target,
        "payload": job.payload,
        "folder": str(folder),
        "limit": job.timeout,
        "env": job.env if attempt.device is None else {**job.env, "CUDA_VISIBLE_DEVICES": attempt.device},
        "path": [os.path.abspath(entry) for entry in sys.path],
        "cwd": os.getcwd(),
        "attempt": attempt.number,
    }


def _read(job: Job, status: int, timed_out: bool) -> tuple[dict[str, Any] | None, str | None]:
    """The result of an attempt, or what went wrong in words."""
    folder = Path(job.folder)
    if timed_out:
        failure = f"exceeded its limit of {job.timeout:g} s"
    elif status == 0:
        try:
            return json.loads((folder / "result.json").read_text()), None
        except (OSError, ValueError) as error:
            failure = f"its result cannot be read: {error}"
    else:
        failure = _ending(status)
        if status == 1:
            with contextlib.suppress(OSError, ValueError):
                error = json.loads((folder / "error.json").read_text())
                failure = f"{error['type']}: {error['message'].strip()}".removesuffix(": ")
    return None, f"{_advise(failure)} (log: {folder / 'log.txt'})"


def _ending(status: int) -> str:
    if status == -signal.SIGKILL:
        return "killed by signal 9 (out of memory?)"
    if status < 0:
        return f"killed by signal {-status} ({signal.strsignal(-status)})"
    reason = (
        f" ({os.strerror(status)})"
        if status in (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT)
        else ""
    )
    return f"exited with status {status}{reason}"


def _advise(failure: str) -> str:
    """Shorten a failure, and say what helps against the two that users meet most."""
    failure = failure if len(failure) <= 500 else failure[:500] + " ..."
    low = failure.lower()
    if "out of memory" in low or "memoryerror" in low or "cannot allocate memory" in low:
        return f"{failure}; a smaller micro_batch_size or batch_size, or fewer workers, needs less memory"
    if os.strerror(errno.ENOSPC).lower() in low or os.strerror(errno.EDQUOT).lower() in low:
        return f"{failure}; the disk is full"
    return failure


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return False
    return True
