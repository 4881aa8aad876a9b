"""Fixtures that several rooms share."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

# Inner runs import the toy tasks by name; the pool hands sys.path over.
sys.path.insert(0, str(Path(__file__).parent / "support"))


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a test writes by default (runs/) lands in the checkout."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data and models, where there is one."""
    folder = os.environ.get("DERL_GYM_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs $DERL_GYM_DATA, the folder with real data and models")
    return Path(folder)
