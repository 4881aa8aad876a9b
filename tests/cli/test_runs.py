"""The commands that train, for real, on a toy task."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from derl_gym.cli import main
from derl_gym.trials.ledger import Ledger

pytestmark = pytest.mark.slow
DIGITS = "toy_ids:DERL-Digits-v0"
SUPPORT = Path(__file__).parents[1] / "support"


def recorded(run_dir):
    with Ledger(run_dir, readonly=True) as ledger:
        names = ("step", "slot", "program", "status", "score", "identity")
        return [tuple(row[name] for name in names) for row in ledger.proposals()]


def test_score_prints_every_program(tmp_path, capsys):
    assert main(["score", DIGITS, "outcome", "g1/g2", "--seeds", "2", "--out", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert "outcome" in captured.out and "unstable" in captured.out and f"results: {tmp_path}" in captured.out
    rows = recorded(tmp_path)
    assert [row[2] for row in rows] == ["g1", "g1", "g1/g2", "g1/g2"]
    assert len({row[5] for row in rows}) == 4, "every seed is an inner run of its own"


def test_a_comparison_and_its_resumption(tmp_path, capsys):
    arguments = ["compare", DIGITS, "--agents", "random", "derl", "--agent-options", "derl.cold_start_steps=2"]
    assert main([*arguments, "--workers", "2", "--out", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert "random" in captured.out and (tmp_path / "report.html").stat().st_size > 1_000_000
    assert "step 2/2: " in captured.err
    before = {name: recorded(tmp_path / name) for name in ("random-seed0", "derl-seed0")}
    seeds = {json.loads((tmp_path / name / "search.json").read_text())["seed"] for name in before}
    assert seeds == {0} and all(len(rows) == 6 for rows in before.values())
    assert main(["resume", str(tmp_path)]) == 0
    assert {name: recorded(tmp_path / name) for name in before} == before
    assert "step" not in capsys.readouterr().err, "a finished search is not run again"


def test_ctrl_c_says_how_to_go_on(tmp_path):
    command = [sys.executable, "-m", "derl_gym.cli", "search", DIGITS, "--agent", "random", "--outer-steps", "40"]
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT), "PYTHONUNBUFFERED": "1"}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    process = subprocess.Popen(
        [*command, "--out", str(broken)], env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("step 3/40: "):
            process.send_signal(signal.SIGINT)
            break
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 130 and rest.strip().endswith(
        f"derl-gym: interrupted; `derl-gym resume {broken}` goes on from here"
    )
    assert 9 <= len(recorded(broken)) < 120
    assert main(["resume", str(broken), "--workers", "2"]) == 0
    assert main(["search", DIGITS, "--agent", "random", "--outer-steps", "40", "--out", str(whole)]) == 0
    assert recorded(broken) == recorded(whole) and len(recorded(whole)) == 120


def test_what_failed_for_good_is_one_line_and_exit_code_1(tmp_path, capsys):
    assert main(["score", "toy_ids:DERL-Dying-v0", "g1", "--out", str(tmp_path)]) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("derl-gym: 1 of 1 inner runs failed for good: g1: killed by signal 9")


def test_the_final_training_opens_the_test_split_once(tmp_path, capsys):
    arguments = ["train", "toy_ids:DERL-Tested-v0", "--program", "average", "--out", str(tmp_path)]
    assert main(arguments) == 0
    assert re.search(r"seed 0: .* % of the \d+ test examples, policy ", capsys.readouterr().out)
    assert main(arguments) == 1
    assert "opened before for (g1+g2)/2 with seed 0" in capsys.readouterr().err
    assert main([*arguments, "--again"]) == 0
    with Ledger(tmp_path, readonly=True) as ledger:
        assert [(row["programs"], row["again"]) for row in ledger.finals()] == [
            (["(g1+g2)/2"], False),
            (["(g1+g2)/2"], True),
        ]
