"""Fixtures that several rooms share."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

# A shell's background job ignores SIGINT, and its children would inherit that: those that the tests interrupt must not.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Before anything loads torch: inner runs in this process are small, and two threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Inner runs import the toy tasks by name; the pool hands sys.path over.
sys.path.insert(0, str(Path(__file__).parent / "support"))


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a test writes by default (runs/) lands in the checkout."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module", autouse=True)
def _warm_servers(request: pytest.FixtureRequest):
    """torch and trl are loaded once for all the searches of a test file; the pool's own tests want none of it."""
    from derl_gym.trials.pool import warm_servers

    with contextlib.nullcontext() if "trials" in request.path.parts else warm_servers():
        yield


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data and models, where there is one."""
    folder = os.environ.get("DERL_GYM_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs $DERL_GYM_DATA, the folder with real data and models")
    return Path(folder)
