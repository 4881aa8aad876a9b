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


def test_an_agent_of_ones_own_is_compared_with_others(tmp_path, capsys):
    own = "own_agents:Climber"
    arguments = ["compare", DIGITS, "--agents", "genetic", own, "--agent-options", f"{own}.most=3", "genetic.fresh=0.5"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    assert "climber" in capsys.readouterr().out.lower()
    before = {name: recorded(tmp_path / name) for name in ("genetic-seed0", "own_agents.Climber-seed0")}
    assert {row[2] for row in before["own_agents.Climber-seed0"][:3]} <= {f"g1+{weight}*g2" for weight in (1, 2, 3)}
    assert [len(rows) for rows in before.values()] == [6, 6]
    state = json.loads((tmp_path / "own_agents.Climber-seed0" / "search.json").read_text())
    assert (state["agent"], state["agent_options"]) == (own, {"most": 3})
    assert main(["resume", str(tmp_path / "own_agents.Climber-seed0")]) == 0
    assert main(["resume", str(tmp_path)]) == 0
    assert {name: recorded(tmp_path / name) for name in before} == before


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
    assert f"the same command with --out {tmp_path}, trains only the rest" in message and "resume" not in message


def test_the_final_training_opens_the_test_split_once(tmp_path, capsys):
    arguments = ["train", "toy_ids:DERL-Tested-v0", "--program", "average", "--out", str(tmp_path)]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert re.search(r"seed 0: .* % of the 24 test examples \(standard error .* %\), policy ", captured.out)
    assert "final training with (g1+g2)/2, seed 0: 2 steps" in captured.err
    assert main(arguments) == 1
    assert "opened before for (g1+g2)/2 with seed 0" in capsys.readouterr().err
    assert main([*arguments, "--again"]) == 0
    assert "done already" not in capsys.readouterr().err
    assert main([*arguments, "--seeds", "2"]) == 0
    captured = capsys.readouterr()
    assert "seed 0 is done already\nfinal training with (g1+g2)/2, seed 1: 2 steps\n" in captured.err
    assert [line[:7] for line in captured.out.splitlines()[:2]] == ["seed 0:", "seed 1:"]
    with Ledger(tmp_path, readonly=True) as ledger:
        assert all(row["programs"] == ["(g1+g2)/2"] for row in ledger.finals())
        assert [(row["seed"], row["again"]) for row in ledger.finals()] == [(0, False), (0, True), (1, False)]


def test_scores_by_benchmark_and_over_seeds(tmp_path, capsys):
    arguments = ["train", "toy_ids:DERL-Benchmarks-v0", "--program", "outcome", "--seeds", "3", "--workers", "2"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    with Ledger(tmp_path, readonly=True) as ledger:
        finals = {row["seed"]: row for row in ledger.finals()}
    assert set(finals) == {0, 1, 2}
    for seed, row in finals.items():
        easy, error = 100 * row["result"]["scores"]["easy"], 100 * row["result"]["standard_error"]
        assert lines[seed].startswith(
            f"seed {seed}: {100 * row['test']:.1f} % of the 24 test examples "
            f"(standard error {error:.1f} %, easy {easy:.1f} %, hard 0.0 %), policy "
        )
    assert re.fullmatch(r"test score: \d+\.\d ± \d+\.\d %", lines[3])
    assert re.fullmatch(r"  easy: \d+\.\d ± \d+\.\d %", lines[4]) and lines[5] == "  hard: 0.0 ± 0.0 %"


def test_a_preset_on_the_command_line(tmp_path, capsys):
    arguments = ["search", "toy_ids:DERL-Sized-v0", "--preset", "large", "--agent", "random", "--inner", "steps=1"]
    assert main([*arguments, "--outer-steps", "1", "--out", str(tmp_path)]) == 0
    with Ledger(tmp_path, readonly=True) as ledger:
        config = ledger.config
        assert len(ledger.proposals()) == config["group_size"] == 2 and config["outer_steps"] == 1
        assert (config["preset"], config["inner_config"]["temperature"]) == ("large", 0.5)
    assert main(["train", "--run", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert "% of the 4 test examples" in captured.out and ": 3 steps" in captured.err, "as final_inner says"
    assert main(["report", str(tmp_path)]) == 0


def test_the_reference_run_is_announced(tmp_path, capsys):
    arguments = ["search", DIGITS, "--agent", "random", "--inner", "max_flops_ratio=1.3", "--out", str(tmp_path)]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.err.count("reference run with g1: 1.3 x its FLOPs cap the other inner runs") == 1
    assert "reference runs" in captured.out


def test_a_search_is_analysed_on_test_when_it_is_finished(tmp_path, capsys):
    tested = ["search", "toy_ids:DERL-Tested-v0", "--agent", "random", "--keep-policies", "--out", str(tmp_path / "a")]
    assert main([*tested, "--primitives", "g2", "--inner", "max_flops_ratio=1.3"]) == 0
    assert main(["analyse", str(tmp_path / "a"), "--workers", "2"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"step 2: validation \d+\.\d %, test \d+\.\d %\n\d policies of the search, mean test score", out)
    assert re.search(r"\nreference run, not among them: test \d+\.\d %\n", out)
    assert out.rstrip().endswith(f"results: {tmp_path / 'a' / 'test_analysis.json'}")
    assert main(["search", DIGITS, "--agent", "random", "--out", str(tmp_path / "b")]) == 0
    assert main(["analyse", str(tmp_path / "b")]) == 2
    assert "keep_policies=True" in capsys.readouterr().err
    with Ledger(tmp_path / "c", {"group_size": 3, "outer_steps": 2}) as ledger:
        ledger.begin_episode(0, 0)
    assert main(["analyse", str(tmp_path / "c")]) == 2
    assert "is not finished: `derl-gym resume" in capsys.readouterr().err


def test_gsm8k_is_searched_without_a_test_file_and_the_final_training_wants_one(tmp_path, capsys, data_dir):
    data = tmp_path / "data"
    (data / "gsm8k").mkdir(parents=True)
    (data / "gsm8k" / "train.jsonl").symlink_to(data_dir / "gsm8k" / "train.jsonl")
    inner = [f"policy={data_dir / 'stories260k'}", "steps=1", "max_completion_length=4", "eval_max_completion_length=4"]
    search = ["search", "DERL-GSM8K-v0", "--preset", "smoke", "--agent", "random", "--data-dir", str(data)]
    run = tmp_path / "run"
    assert main([*search, "--inner", *inner, "max_prompt_length=300", "--workers", "2", "--out", str(run)]) == 0
    with Ledger(run, readonly=True) as ledger:
        assert [row["status"] for row in ledger.proposals()] == ["scored", "scored"]
        record = ledger.config["data"]
    assert {split: found["examples"] for split, found in record.items()} == {"train": 5978, "validation": 1495}
    capsys.readouterr()
    assert main(["train", "--run", str(run)]) == 2
    assert "no gsm8k data: expected one of" in capsys.readouterr().err
    (data / "gsm8k" / "test.jsonl").symlink_to(data_dir / "gsm8k" / "test.jsonl")
    assert main(["train", "--run", str(run)]) == 0
    assert "% of the 32 test examples" in capsys.readouterr().out
    with Ledger(run, readonly=True) as ledger:
        (final,) = ledger.finals()
    data = final["result"]["data"]
    assert {split: found["examples"] for split, found in data.items()} == {"full": 7473, "test": 1319}
    assert main(["train", "--run", str(run)]) == 1, "the test split is opened once"
    assert main(["train", "--run", str(run), "--again"]) == 0
