"""Mathematical equality by math-verify, in one guarded child process per process.

sympy can take for ever and all memory on a few characters, and math-verify's own alarm works on the main thread only.
So the library runs in a child (``worker.py``) that can be killed: started at the first check, safe to use
from several threads and after a fork. What needs no library is in ``compare.py``.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

CPU_SECONDS = 3.0
"""CPU time that one check may take."""
WALL_SECONDS = 60.0
"""Seconds after which a check's process is killed, whatever it is doing; it matters on a very loaded machine only."""
START_SECONDS = 120.0
"""Seconds that the child may take to import math-verify."""

_WORKER = Path(__file__).with_name("worker.py")
_log = logging.getLogger("derl_gym")


class _Died(Exception):
    """The child is gone; the argument is its exit status."""


class _OutOfTime(Exception):
    """The child did not answer in time."""


class GivenUp(Exception):
    """A check needs too much time or memory, or twice ended its process. It is counted, and logged as a warning."""


def verify(answer: str, truth: str, seconds: float = CPU_SECONDS) -> tuple[bool, float]:
    """Whether math-verify finds the answer equal to the truth, both LaTeX without delimiters.

    A process that somebody killed is replaced, and the check repeated.

    Args:
        answer: What is judged.
        truth: What it is compared with; the two are not interchangeable.
        seconds: CPU time that the check may take.

    Returns:
        The verdict, and the CPU seconds that it took.

    Raises:
        GivenUp: see there; :func:`unfinished` counts them.
        ImportError: math-verify is not installed.
        RuntimeError: the process cannot be started.
    """
    global _unfinished
    with _lock:
        for _ in range(2):
            worker = _running()
            try:
                reply = worker.ask({"answer": answer, "truth": truth, "seconds": max(seconds, 0.01)}, WALL_SECONDS)
            except _Died as died:
                _stop()
                why = f"its process ended with status {died}"
                if died.args[0] == -signal.SIGPROF:
                    why = f"it needs more than {seconds:.2g} s"
                    break
            except _OutOfTime:
                _stop()
                why = f"it took more than {WALL_SECONDS:g} s"
                break
            except BaseException:  # interrupted: the reply may still come, and must not be taken for the next one
                _stop()
                raise
            else:
                if "unfinished" not in reply:
                    return reply["equal"], reply["seconds"]
                why = reply["unfinished"]
                break
        _unfinished += 1
    _log.warning("an answer counts as wrong, its check was given up (%s): %.100r, truth %.100r", why, answer, truth)
    raise GivenUp(why)


def unfinished() -> int:
    """How many checks this process has given up."""
    return _unfinished


def stop() -> None:
    """End the child process, if there is one; the next check starts another."""
    with _lock:
        _stop()


class _Worker:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            # sympy orders terms by hash here and there; a verdict must not depend on that.
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
        self._rest = b""
        try:
            hello = self._reply(START_SECONDS)
        except _Died as died:
            self.stop()
            raise RuntimeError(f"the process for math-verify ended with status {died} before it was ready") from None
        except _OutOfTime:
            self.stop()
            raise RuntimeError(f"math-verify was not imported within {START_SECONDS:g} s") from None
        except BaseException:
            self.stop()
            raise
        if "missing" in hello:
            self.stop()
            raise ImportError(
                f"comparing mathematical answers needs math-verify: pip install 'derl-gym[train]' ({hello['missing']})"
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # then the reply says why
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        return self._reply(seconds)

    def _reply(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        descriptor, deadline = self._process.stdout.fileno(), time.monotonic() + seconds
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while b"\n" not in self._rest:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise _OutOfTime
            part = os.read(descriptor, 65536)
            if not part:
                raise _Died(self._process.wait())
            self._rest += part
        line, self._rest = self._rest.split(b"\n", 1)
        return json.loads(line)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self.let_go()

    def let_go(self) -> None:
        """Close the pipes and forget the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.returncode = self._process.returncode or 0


_lock = threading.Lock()
_worker: _Worker | None = None
_unfinished = 0


def _running() -> _Worker:
    global _worker
    if _worker is None:
        _worker = _Worker()
    return _worker


def _stop() -> None:
    global _worker
    worker, _worker = _worker, None
    if worker is not None:
        worker.stop()


def _after_fork() -> None:
    # The child process is the parent's: two that write to it would get each other's verdicts, and a pipe that a
    # forked process holds open would keep it alive when the parent is gone. The lock may be held by a lost thread.
    global _lock, _worker
    worker, _worker, _lock = _worker, None, threading.Lock()
    if worker is not None:
        worker.let_go()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_stop)
