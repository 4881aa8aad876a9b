"""Processes of the trials tests: waiting for them, and scripts whose descendants can be found as orphans."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil

import derl_gym

HERE = Path(__file__).parent


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


class Script:
    """A Python script in a process of its own, whose descendants can be found even as orphans."""

    def __init__(self, path: Path, code: str) -> None:
        self.path = path
        self.mark = uuid.uuid4().hex
        path.write_text(f"import sys\nsys.path.append({str(HERE)!r})\n" + textwrap.dedent(code))
        roots = [str(Path(derl_gym.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, "DERL_GYM_TEST": self.mark, "PYTHONPATH": os.pathsep.join(filter(None, roots))}
        self.process = subprocess.Popen(
            [sys.executable, str(path)],
            stdin=subprocess.PIPE,  # a script may wait for its end, which is when the test says so
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
            start_new_session=True,
        )

    def line(self) -> str:
        """The next line that the script prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the script ended: {self.process.communicate()[1]}")
        return line.strip()

    def end(self) -> str:
        """Wait for a good end; what it printed."""
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, err
        return out

    def family(self) -> list[int]:
        """Living processes that carry the script's mark, the script's own process left out."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                if process.environ().get("DERL_GYM_TEST") == self.mark and alive(process.pid):
                    found.append(process.pid)
        return [pid for pid in found if pid != self.process.pid]
