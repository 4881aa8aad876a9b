"""benchmarks/faults.py: that it counts what is lost, repeated or wrong, and one real fault."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from derl_gym.trials.ledger import Ledger

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def module():
    sys.path.append(str(BENCHMARKS))
    yield importlib.import_module("fault_search")
    sys.path.remove(str(BENCHMARKS))


def train(run_dir: Path, ledger: Ledger, identity: str, score: float) -> None:
    """A trial, with the log that its process leaves."""
    ledger.start_trial(identity, program="g1", pid=os.getpid())
    (run_dir / "trials" / identity).mkdir(parents=True, exist_ok=True)
    with (run_dir / "trials" / identity / "log.txt").open("a") as log:
        log.write("== attempt 1, pid 5\n")
    ledger.finish_trial(identity, status="scored", score=score, result={"train_seconds": 1.0, "steps": 2}, seconds=1.0)


def made(run_dir: Path, scores: dict[str, float]) -> Path:
    """A ledger with one outer step of these trials."""
    with Ledger(run_dir, {"a": 1}) as ledger:
        ledger.begin_episode(0, 0)
        ledger.propose(0, 0, np.ones((len(scores), 3), int), ["g1"] * len(scores))
        for slot, (identity, score) in enumerate(scores.items()):
            train(run_dir, ledger, identity, score)
            ledger.settle(0, 0, slot, identity=identity, status="scored", score=score)
    return run_dir


def searched(module, folder: Path, whole: dict) -> Any:
    return module.Search("a fault", "random", "processes", folder, "0", reference=whole)


def test_same_ledger_at_another_time(module, tmp_path: Path) -> None:
    whole = module.recorded(made(tmp_path / "whole", {"a": 0.5, "b": 0.25}))
    search = searched(module, tmp_path, whole)
    made(search.run_dir, {"a": 0.5, "b": 0.25})
    search.look()
    assert search.compare() == module.Found(equal=True)


def test_what_differs_is_counted(module, tmp_path: Path) -> None:
    whole = module.recorded(made(tmp_path / "whole", {"a": 0.5, "b": 0.25, "c": 0.0}))
    search = searched(module, tmp_path, whole)
    made(search.run_dir, {"a": 0.75, "d": 0.25})
    found = search.compare()
    # Slot 2 and the trials b and c are gone, trial d is new; trial a and slot 0 have another score.
    assert (found.lost, found.duplicated, found.wrong, found.equal) == (3, 1, 2, False)
    assert any("trial a differs in score" in note for note in found.notes)
    assert any("proposal (0, 0, 1) differs in identity" in note for note in found.notes)


def test_scored_trial_that_ran_again_is_lost_and_duplicated(module, tmp_path: Path) -> None:
    whole = module.recorded(made(tmp_path / "whole", {"a": 0.5, "b": 0.25}))
    search = searched(module, tmp_path, whole)
    made(search.run_dir, {"a": 0.5, "b": 0.25})
    search.look()
    with (search.run_dir / "trials" / "b" / "log.txt").open("a") as log:
        log.write("== attempt 1, pid 6\n")
    found = search.compare()
    assert (found.lost, found.duplicated, found.wrong, found.equal) == (1, 1, 0, True)


def test_process_that_is_left_is_an_orphan(module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    search = searched(module, tmp_path / "search", {})
    left = subprocess.Popen([sys.executable, "-c", "input()"], env=search.environment, stdin=subprocess.PIPE)
    search.count_orphans()
    assert search.found.orphans == 1 and "input()" in search.found.notes[0]
    search.clear()
    assert left.wait(10) == -9


@pytest.mark.slow
def test_killed_inner_run_is_tried_again(tmp_path: Path) -> None:
    script = [sys.executable, str(BENCHMARKS / "faults.py"), "--searches", "1", "--kinds", "inner run killed"]
    done = subprocess.run([*script, "--out", str(tmp_path / "found.json")], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| inner run killed | 1 | 0 | 0 | 0 | 0 | 1 of 1 |" in done.stdout
    (row,) = json.loads((tmp_path / "found.json").read_text())["searches"]
    assert (row["equal"], row["attempts"]) == (True, 1)
