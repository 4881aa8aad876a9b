"""Fixtures of the trials floor: scripts in processes of their own, and small disks to fill."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # targets and preloads are found by name, by children as well

from processes import Script  # noqa: E402


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Callable[[str], Script]]:
    scripts: list[Script] = []

    def start(code: str) -> Script:
        scripts.append(Script(tmp_path / f"script{len(scripts)}.py", code))
        return scripts[-1]

    yield start
    for one in scripts:
        one.process.kill()
        for pid in one.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        one.process.communicate()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if sys.platform != "linux" or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs Linux and root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
