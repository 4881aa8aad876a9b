"""Fixtures of the text worlds: scripts in processes of their own."""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "trials"))

from processes import Script  # noqa: E402


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Callable[[str], Script]]:
    scripts: list[Script] = []

    def start(code: str) -> Script:
        support = Path(__file__).parents[2] / "support"
        code = f"sys.path.append({str(support)!r})\n" + textwrap.dedent(code)
        scripts.append(Script(tmp_path / f"script{len(scripts)}.py", code))
        return scripts[-1]

    yield start
    for one in scripts:
        one.process.kill()
        for pid in one.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        one.process.communicate()
