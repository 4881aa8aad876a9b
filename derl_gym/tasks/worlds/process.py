"""One worker process of a pool, seen from the pool: start, ask, read, kill with all that it started.

A worker stays in its caller's process group, so that whoever kills an inner run's group takes the worlds along.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections import defaultdict
from pathlib import Path
from typing import Any

LONGEST_ARGUMENT = 1000
"""Characters of a command that reach a world: a request always fits into an empty pipe, so that sending never waits."""

_BOOT = (
    "import json, sys; parent, reference, options, sys.path[:] = json.loads(sys.argv[1]); sys.argv[1:] = []; "
    "from derl_gym.tasks.worlds.worker import main; main(parent, reference, options)"
)


class Died(Exception):
    """The process is gone; the argument says how it ended."""


class Worker:
    """A running worker. Its ``descriptor`` can be polled; one request is under way at a time.

    Args:
        reference: Where the world's class is.
        options: Its JSON-able keyword arguments.
    """

    def __init__(self, reference: str, options: dict[str, Any]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._rest = b""
        self._started: list[int] = []
        boot = json.dumps([os.getpid(), reference, options, sys.path])
        self._process: subprocess.Popen | None = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT, boot],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,
            # A world's texts may follow the order of a set: the same in every worker.
            env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONHASHSEED": "0"},
        )
        _workers.add(self)
        assert self._process.stdout is not None
        self.descriptor = self._process.stdout.fileno()
        os.set_blocking(self.descriptor, False)

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process is not None
        return self._process.pid

    def ask(self, seat: int, do: str, argument: str) -> None:
        """Send a request. Commands that are longer than any command are cut."""
        assert self._process is not None and self._process.stdin is not None
        request = {"seat": seat, "do": do, "argument": argument[:LONGEST_ARGUMENT]}
        with contextlib.suppress(BrokenPipeError):  # then the reply says why
            self._process.stdin.write(json.dumps(request).encode() + b"\n")

    def reply(self) -> dict[str, Any] | None:
        """What the worker has said, ``None`` while it has not finished its line. Does not wait.

        Raises:
            Died: it ended, or said what is no reply.
        """
        while b"\n" not in self._rest:
            try:
                part = os.read(self.descriptor, 1 << 20)
            except BlockingIOError:
                return None
            if not part:
                raise Died(self._ended())
            self._rest += part
        line, self._rest = self._rest.split(b"\n", 1)
        return json.loads(line)

    def kill(self) -> None:
        """End it at once, with the processes that it started."""
        process = self._process
        if process is None:
            return
        # While it is stopped it can start nothing more.
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGSTOP)
        if process.returncode is None:
            self._started = descendants(process.pid)
        process.kill()
        for pid in self._started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        self.let_go()

    def hang_up(self) -> None:
        """Close its input: once it has answered what is under way, it ends by itself."""
        if self._process is not None and self._process.stdin is not None:
            self._started = descendants(self._process.pid)
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def stop(self, deadline: float) -> None:
        """Wait until it has ended, and kill it where it has not by ``deadline`` (of ``time.monotonic``).

        What it started and left behind is killed in either case.
        """
        while self._process is not None and self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        self.kill()

    def let_go(self) -> None:
        """Close the pipes and forget the process: what a forked copy of the pool's process does, too."""
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout, self._log):
            if pipe is not None:
                pipe.close()
        process.returncode = process.returncode or 0

    def _ended(self) -> str:
        assert self._process is not None
        try:
            status = self._process.wait(5)
        except subprocess.TimeoutExpired:
            return "its process closed its output"
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"its process {how}{self.last_words()}"

    def last_words(self) -> str:
        """The last line that it wrote to stderr, for messages."""
        with contextlib.suppress(OSError, ValueError):
            self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 2000))
            lines = self._log.read().decode(errors="replace").strip().splitlines()
            return f" ({lines[-1].strip()})" if lines else ""
        return ""


def descendants(pid: int) -> list[int]:
    """Process ids of all that a process started, directly or not, as far as it has not been left an orphan."""
    children = defaultdict(list)
    for child, parent in _parents():
        children[parent].append(child)
    found, new = [], [pid]
    while new:
        found += (new := [child for parent in new for child in children[parent]])
    return found


def _parents() -> list[tuple[int, int]]:
    """(process id, its parent's) of every process."""
    if Path("/proc/self/stat").exists():
        pairs = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    # pid (name) state parent ...: a name may hold anything, parentheses too
                    pairs.append(
                        (int(entry), int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1]))
                    )
        return pairs
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, timeout=10).stdout
        return [(int(line.split()[0]), int(line.split()[1])) for line in listed.splitlines()]
    return []


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def _after_fork() -> None:
    # The workers are the parent's: a copy that held their pipes open would keep them alive when the parent is gone.
    for worker in _workers:
        worker.let_go()


os.register_at_fork(after_in_child=_after_fork)
