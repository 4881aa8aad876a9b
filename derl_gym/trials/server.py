"""The fork server: one process that imports the heavy libraries once and forks a child for every job.

The pool starts it and talks to it in JSON lines over a socket. It starts no thread, so forking is safe, and it
runs no job itself. When the driver goes away, in whatever way, every child's process group is killed.

To the server: ``{"preload": [module, ...]}`` once, then jobs (``_order`` in ``pool.py``). From it: the event
``"ready"``, or one that says why not; then ``"started"`` (id, pid) and ``"ended"`` (id, status, timed_out,
seconds) for every job, or ``"refused"`` (id, reason).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from derl_gym.secrets import redacted
from derl_gym.trials.private import write_private

PR_SET_PDEATHSIG = 1


def kill_group(group: int) -> None:
    """Kill what is left of a process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


class Server:
    """The loop: take jobs, fork, reap, hold the limits."""

    def __init__(self, driver: socket.socket) -> None:
        self.driver = driver
        self.parent = os.getppid()
        self.buffer = b""
        self.running: dict[int, dict[str, Any]] = {}
        self.wake, self.wake_in = socket.socketpair()
        self.wake.setblocking(False)
        self.wake_in.setblocking(False)
        self.stopping = False
        self.prctl = _prctl()

    def serve(self) -> None:
        """Work until the driver closes its end, dies, or SIGTERM comes."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_in.fileno())
        try:
            while not self.stopping and os.getppid() == self.parent:
                # At least once a second: the parent is looked at, for a forked copy of the driver that
                # outlives it would keep the socket open.
                ready, _, _ = select.select([self.driver, self.wake], [], [], self._patience())
                if self.wake in ready:
                    with contextlib.suppress(BlockingIOError):
                        self.wake.recv(4096)
                self._reap()
                self._enforce_limits()
                if self.driver in ready and not self._take_jobs():
                    break
        except (BrokenPipeError, ConnectionResetError):
            pass  # the driver died while a message was on its way to it
        finally:
            self._kill_all()

    def _stop(self, *_: Any) -> None:
        self.stopping = True

    def _patience(self) -> float:
        now = time.monotonic()
        return max(0.0, min([1.0, *(run["deadline"] - now for run in self.running.values() if not run["timed_out"])]))

    def _take_jobs(self) -> bool:
        data = self.driver.recv(1 << 16)
        if not data:
            return False
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            self._start(json.loads(line))
        return True

    def _start(self, job: dict[str, Any]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            reason = f"the system refused a new process: {error.strerror}"
            self.send("refused", id=job["id"], reason=reason)
            return
        if pid == 0:
            self._become_child(job, server)
        now = time.monotonic()
        limit = job["limit"]
        self.running[pid] = {
            "id": job["id"],
            "begin": now,
            "deadline": float("inf") if limit is None else now + limit,
            "timed_out": False,
        }
        self.send("started", id=job["id"], pid=pid)

    def _become_child(self, job: dict[str, Any], server: int) -> NoReturn:
        """In the forked child: cut what ties it to the server, then run the job. Never returns."""
        try:
            os.setsid()
            self.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != server:  # it died before the line above
                os._exit(1)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for connection in (self.driver, self.wake, self.wake_in):
                connection.close()
            run_job(job)
        finally:
            os._exit(1)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            run = self.running.pop(pid, None)
            if run is None:
                continue  # something that a preloaded module had started
            kill_group(pid)  # what the job started and left behind
            self.send(
                "ended",
                id=run["id"],
                status=os.waitstatus_to_exitcode(status),
                timed_out=run["timed_out"],
                seconds=time.monotonic() - run["begin"],
            )

    def _enforce_limits(self) -> None:
        now = time.monotonic()
        for pid, run in self.running.items():
            if now >= run["deadline"] and not run["timed_out"]:
                run["timed_out"] = True
                _kill_child(pid)

    def _kill_all(self) -> None:
        for pid in self.running:
            _kill_child(pid)
        for pid in self.running:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
            kill_group(pid)

    def send(self, event: str, **fields: Any) -> None:
        """One JSON line to the driver."""
        self.driver.sendall(json.dumps({"event": event, **fields}).encode() + b"\n")


def _kill_child(pid: int) -> None:
    kill_group(pid)
    with contextlib.suppress(ProcessLookupError):  # so young that it has no group of its own yet
        os.kill(pid, signal.SIGKILL)


def run_job(job: dict[str, Any]) -> NoReturn:
    """In the child: call the target, leave ``result.json`` or ``error.json`` in the job's folder, exit.

    The exit status is 0 with a result, 1 with an error, or the ``errno`` when not even that could be written
    (28 is a full disk).
    """
    folder = Path(job["folder"])
    status = 1
    try:
        try:
            _redirect(folder / "log.txt", f"== attempt {job['attempt']}, pid {os.getpid()}")
            with contextlib.suppress(OSError):  # memory short: let the kernel end the run, not the search
                Path("/proc/self/oom_score_adj").write_text("500")
            os.chdir(job["cwd"])
            os.environ.update(job["env"])
            sys.path[:] = job["path"]
            result = _resolve(job["target"])(job["payload"], folder)
            if not isinstance(result, dict):
                raise TypeError(f"{job['target']} must return a dict, not {type(result).__name__}")
            _write(folder / "result.json", result)
            status = 0
        except BaseException as error:
            print(redacted(traceback.format_exc()), file=sys.stderr)
            message = {
                "type": type(error).__name__,
                "message": str(error),
                "traceback": traceback.format_exc(),
            }
            _write(folder / "error.json", message)
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError as error:
        status = status and (error.errno or 1)
    finally:
        os._exit(status)


def _resolve(target: str) -> Callable[[dict[str, Any], Path], Any]:
    module, _, name = target.partition(":")
    if not (module and name):
        raise ValueError(f"a target is written 'module:function', not {target!r}")
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _write(path: Path, value: dict[str, Any]) -> None:
    write_private(path, redacted(json.dumps(value)))


def _redirect(log: Path, header: str) -> None:
    """Descriptors 0, 1 and 2, so that libraries in C and grandchildren write to the log as well."""
    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(null)
    os.close(out)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.stderr.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    print(header)


def _prctl() -> Callable[[int, int], Any]:
    """Linux' ``prctl``, looked up before any fork; elsewhere a function that does nothing."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            return ctypes.CDLL(None, use_errno=True).prctl
    return lambda option, value: None


def main(descriptor: int) -> None:
    """Entry point: read the preload line, import, then serve.

    Args:
        descriptor: Inherited file descriptor of the socket to the driver.
    """
    server = Server(socket.socket(fileno=descriptor))
    # While it imports, it cannot look after its driver, and must not outlive it; afterwards it has children to kill.
    server.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server.parent:
        return
    while b"\n" not in server.buffer:
        data = server.driver.recv(1 << 16)
        if not data:
            return
        server.buffer += data
    line, _, server.buffer = server.buffer.partition(b"\n")
    for module in json.loads(line)["preload"]:
        try:
            importlib.import_module(module)
        except BaseException as error:
            traceback.print_exc()
            server.send(f"could not import {module}: {type(error).__name__}: {error}")
            return
    gc.collect()
    gc.freeze()  # children share these pages as long as nobody's collector touches them
    server.prctl(PR_SET_PDEATHSIG, 0)
    server.send("ready")
    server.serve()
