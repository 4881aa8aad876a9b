"""Fixtures of the text worlds: scripts in processes of their own, games of the older distribution."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
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


@pytest.fixture
def old_games(made_games: Path, tmp_path: Path) -> Path:
    """The same games with the older distribution's command."""
    shutil.copytree(made_games, tmp_path / "old")
    for path in (tmp_path / "old").rglob("game.tw-pddl"):
        game = json.loads(path.read_text())
        game["grammar"] = game["grammar"].replace("move {o} to {r}", "put {o} in/on {r}")
        game["walkthrough"] = [
            f"put {step[5:].replace(' to ', ' in/on ')}" if step.startswith("move ") else step
            for step in game["walkthrough"]
        ]
        path.write_text(json.dumps(game))
    return tmp_path / "old"
