"""What a task says that this machine lacks: packages, programs and data, each by what to do about it."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import toy_agents

from derl_gym.tasks.alfworld import ALFWorldL0, ALFWorldL1, ALFWorldL2
from derl_gym.tasks.arithmetic import Arithmetic
from derl_gym.tasks.mathematics import GSM8K
from derl_gym.tasks.scienceworld import ScienceWorldL0
from derl_gym.tasks.worlds import alfworld as alfworld_module

INSTALL = "ALFWorld is not installed: pip install 'derl-gym[alfworld]', with a C++ compiler and cmake at hand"


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data in any of the usual places."""
    for name in ("ALFWORLD_DATA", "DERL_GYM_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setattr(alfworld_module, "find_spec", lambda name: None if name == package else find_spec(name))


def test_a_task_without_needs_of_its_own_loads_its_data(tmp_path: Path) -> None:
    assert Arithmetic().missing() == [] and toy_agents.Coins().missing() == []
    with pytest.raises(FileNotFoundError, match="no gsm8k data"):
        GSM8K(data_dir=str(tmp_path)).missing()
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k" / "train.jsonl").write_text(json.dumps({"question": "1 + 1?", "answer": "#### 2"}))
    assert GSM8K(data_dir=str(tmp_path), check_data=False).missing() == ["its data are empty"], "one for two splits"


def test_a_world_that_does_not_start_says_why() -> None:
    (lacking,) = toy_agents.Coins(options={"no": "such option"}).missing()
    assert "unexpected keyword argument 'no'" in lacking or "takes no arguments" in lacking


@pytest.mark.parametrize("package", ["alfworld", "textworld"])
def test_alfworlds_package_and_games_are_named_both(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    without(monkeypatch, package)
    install, games = ALFWorldL0().missing()
    assert install.startswith(INSTALL)
    assert games.startswith(f"no ALFWorld games in {nowhere}/.cache/alfworld: run alfworld-download, or give data_dir=")


def test_the_wrong_folder(tmp_path: Path, alfworld: None) -> None:
    (lacking,) = ALFWorldL0(data_dir=str(tmp_path)).missing()
    assert lacking.startswith(f"no ALFWorld games in {tmp_path}: ")
    for part in ("train", "valid_seen"):
        (tmp_path / part).mkdir()
    assert ALFWorldL0(data_dir=str(tmp_path)).missing() == [
        f"{tmp_path}/train has 0 games, not the 3553 of ALFWorld's train: run alfworld-download again, or for games "
        "of your own give check_data=False"
    ]
    (lacking,) = ALFWorldL1(data_dir=str(tmp_path), check_data=False).missing()
    assert lacking == f"{tmp_path}/valid_unseen is gone: ALFWorld's games were there"
    (lacking,) = ALFWorldL0(data_dir=str(tmp_path), check_data=False).missing()
    assert lacking == f"{tmp_path} holds no games of train, valid_seen"


def test_alfworld_with_games_and_engine_lacks_nothing(made_games: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"data_dir": str(made_games), "check_data": False}
    assert ALFWorldL2(**own).missing() == []
    without(monkeypatch, "alfworld")
    (lacking,) = ALFWorldL2(**own).missing()
    assert lacking.startswith(INSTALL)


def test_scienceworld_lacks_nothing_once_java_has_started(scienceworld: None) -> None:
    assert ScienceWorldL0().missing() == []


def test_a_java_that_does_not_start(scienceworld: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "java").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "java").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (lacking,) = ScienceWorldL0().missing()
    assert lacking.startswith(f"ScienceWorld needs Java: {tmp_path}/java does not start")
