"""Modes of files and folders, under a umask that would let everybody read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from derl_gym.trials.ledger import Ledger
from derl_gym.trials.pool import Job, LocalPool
from derl_gym.trials.private import make_private, private_folder, write_private


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def assert_private(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path


def test_folders_that_are_made_are_private_and_others_stay(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(mode=0o755)
    private_folder(tmp_path / "there" / "a" / "b")
    private_folder(tmp_path / "there" / "a" / "b")
    assert mode(tmp_path / "there") == 0o755
    assert_private(tmp_path / "there" / "a")


def test_a_tree_is_made_private_but_not_what_links_name(tmp_path: Path) -> None:
    (tmp_path / "shared").write_text("others read this")
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").touch()
    (folder / "link").symlink_to(tmp_path / "shared")
    make_private(folder)
    assert (mode(folder), mode(folder / "deep"), mode(folder / "deep" / "file")) == (0o700, 0o700, 0o600)
    assert mode(tmp_path / "shared") == 0o644


def test_a_file_is_whole_and_private(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old and open")
    write_private(path, "new")
    assert path.read_text() == "new" and mode(path) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_ledger_with_its_log_and_checkpoints(tmp_path: Path) -> None:
    with Ledger(tmp_path / "run", {"a": 1}) as ledger:
        ledger.begin_episode(0, 0)
        ledger.propose(0, 0, np.array([[1]]), ["g1"])
        with ledger.new_checkpoint(0, 0) as folder:
            (folder / "deep").mkdir()
            (folder / "deep" / "state").write_text("secret")
        assert_private(tmp_path / "run")
        assert {path.name for path in ledger.run_dir.glob("ledger.sqlite*")} > {"ledger.sqlite", "ledger.sqlite-wal"}


def test_what_an_inner_run_leaves(tmp_path: Path) -> None:
    payloads = {"ends": {}, "fails": {"fail": True}, "is killed": {"seconds": 60}}
    jobs = [
        Job(name, "careless_targets:writes", payload, tmp_path / "trials" / name, timeout=3.0)
        for name, payload in payloads.items()
    ]
    with LocalPool(workers=3, preload=(), attempts=1) as pool:
        assert [outcome.id for outcome in pool.run(jobs) if outcome.failure is None] == ["ends"]
    assert_private(tmp_path / "trials")
    assert len(list(tmp_path.rglob("policy/weights"))) == 3
