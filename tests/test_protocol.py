"""After the search: select, train on everything, test once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import derl_gym  # noqa: F401
from derl_gym import protocol
from derl_gym.envs.identity import policy_fingerprint
from derl_gym.tasks.arithmetic import Arithmetic
from derl_gym.trials.ledger import Ledger, RunDirectoryMismatch


def searched(run_dir: Path, steps: list[list[str]], task: str = "toy_tasks:Tested", **settings) -> Ledger:
    """The ledger of a real search that proposed these programs."""
    envs = gym.make_vec(
        "DERL-Arithmetic-v0",
        num_envs=len(steps[0]),
        **{"task": task, "outer_steps": len(steps) + 1, "run_dir": str(run_dir)} | settings,
    )
    envs.reset(seed=1)
    for texts in steps:
        envs.step(np.stack([envs.unwrapped.programs.encode(text) for text in texts]))
    envs.close()
    return Ledger(run_dir)


def test_baselines_by_name() -> None:
    names = ["g1", "g2", "g3", "g4"]
    assert protocol.named_program("outcome", names) == "g1"
    assert protocol.named_program("outcome+format", names) == "g1+g2"
    assert protocol.named_program("average", names) == "(g1+g2+g3+g4)/4"
    assert protocol.named_program("g1-g3", names) == "g1-g3"


def fake_search(run_dir: Path, scores: list[list[tuple[str, float | None]]], variant: str = "base") -> Ledger:
    """A ledger with given scores, for the selection rules alone."""
    ledger = Ledger(run_dir, config={"group_size": 2, "variant": variant})
    ledger.begin_episode(0, 1)
    for step, group in enumerate(scores):
        ledger.propose(0, step, np.zeros((len(group), 4), int), [program for program, _ in group])
        for slot, (_, score) in enumerate(group):
            if score is not None:
                ledger.settle(0, step, slot, identity=None, status="scored", score=score)
    return ledger


def test_selection_rules(tmp_path: Path) -> None:
    history = [[("a", 0.9), ("b", 0.2)], [("a", 0.1), ("c", 0.6)], [("d", 0.3), ("e", 0.4)], [("f", 1.0), ("g", None)]]
    with fake_search(tmp_path / "base", history) as ledger:
        assert protocol.select(ledger) == ["e"], "the last complete step"
        assert protocol.select(ledger, "best") == ["c"], "the best mean over repetitions: a has 0.5"
    with fake_search(tmp_path / "again", [[("a", 0.9), ("a", 0.1)], [("b", 0.4), ("a", 0.3)]]) as ledger:
        assert protocol.select(ledger) == ["b"] and protocol.select(ledger, "best") == ["a"], "0.43 against 0.4"
    with fake_search(tmp_path / "full", history, "full") as ledger:
        assert protocol.select(ledger) == ["a", "c", "e"]
    with (
        fake_search(tmp_path / "none", [[("a", None), ("b", None)]]) as ledger,
        pytest.raises(ValueError, match="nothing to select"),
    ):
        protocol.select(ledger)


@pytest.mark.slow
def test_the_final_training_opens_the_test_split_once(tmp_path: Path) -> None:
    with searched(tmp_path / "open", [["g1", "g2"]]) as ledger:
        program = protocol.select(ledger)
        finals = protocol.train_final(ledger, program, [3, 4], workers=2)
        assert [final.seed for final in finals] == [3, 4]
        assert all(0 <= final.test <= 1 and Path(final.policy).is_dir() for final in finals)
        with pytest.raises(protocol.TestAlreadyOpened, match=r"seed 3, 4: .*--first-seed N.*--again"):
            protocol.train_final(ledger, program, [3, 4])
        (second,) = protocol.train_final(ledger, program, [3], again=True)
        assert second.test == finals[0].test and second.policy != finals[0].policy
        with pytest.raises(ValueError, match=r"seed 3 was trained with other settings \(temperature 1.0, not 0.5\)"):
            protocol.train_final(ledger, program, [3, 5], inner={"temperature": 0.5})
        before = len(ledger.finals())
        longer = protocol.train_final(ledger, program, [5, 4, 3], inner={"timeout": 999.0})
        assert [final.seed for final in longer] == [5, 4, 3] and longer[1:] == finals[::-1]
        assert [row["seed"] for row in ledger.finals()[before:]] == [5], "only what was missing"
        assert [row["again"] for row in ledger.finals()] == [False, False, True, False]
        # What a search can read holds no test score.
        for row in [*ledger.proposals(), *ledger.trials()]:
            assert not any("test" in key for key in row)
        with pytest.raises(ValueError, match="undefined"):
            protocol.train_final(ledger, ["g1/(g2-g2)"], [0])


KILLED = """
import sys
from pathlib import Path
from derl_gym import protocol
from derl_gym.trials.ledger import Ledger
sys.path.insert(0, sys.argv[1])
with Ledger(sys.argv[2]) as ledger:
    protocol.train_final(ledger, ["g1", "g1+g2"], [0], inner={"checkpoint_seconds": 0.0})
"""


@pytest.mark.slow
def test_a_final_training_that_is_killed_again_and_again_ends_as_one_that_is_not(tmp_path: Path) -> None:
    """Killed in the first stage and in the second: where it was is found again, and what was done is not repeated."""
    settings = {"variant": "full", "inner": {"steps": 12}}
    with searched(tmp_path / "whole", [["g1+", "g2+"]], **settings) as ledger:
        (whole,) = protocol.train_final(ledger, ["g1", "g1+g2"], [0])
        assert not list(ledger.run_dir.glob("finals/*/*/trainer")), "12 steps take less than half an hour"
    searched(tmp_path / "killed", [["g1+", "g2+"]], **settings).close()
    program = [sys.executable, "-c", KILLED, str(Path(__file__).parent / "support"), str(tmp_path / "killed")]
    for stage in (0, 1):
        process = subprocess.Popen(program, stderr=subprocess.DEVNULL)
        found: list[Path] = []
        while process.poll() is None and not found:
            found = list((tmp_path / "killed").glob(f"finals/*/stage-{stage}/trainer/checkpoint-*/derl_gym.json"))
            time.sleep(0.01)
        process.kill()
        process.wait()
        assert found, "it was killed in the middle"
    with Ledger(tmp_path / "killed") as ledger:
        before = {path: path.stat().st_mtime_ns for path in ledger.run_dir.glob("finals/*/stage-0/policy/*")}
        (final,) = protocol.train_final(ledger, ["g1", "g1+g2"], [0], inner={"checkpoint_seconds": 0.0})
        (row,) = ledger.finals()
        assert before == {path: path.stat().st_mtime_ns for path in before} and len(before) > 2
        assert not list(ledger.run_dir.glob("finals/*/*/trainer")), "nothing goes on from these any more"
    assert final.test == whole.test == row["test"]
    for name in ("curve", "tokens", "flops", "steps", "primitive_means"):
        assert final.result[name] == whole.result[name], name
    logs = (Path(final.policy).parents[1] / "stage-1" / "log.txt").read_text()
    assert logs.count("== attempt") == 2
    weights = [(Path(policy) / "model.safetensors").read_bytes() for policy in (final.policy, whole.policy)]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_a_result_whose_record_a_kill_prevented_is_taken_for_the_same_settings_alone(tmp_path: Path) -> None:
    with searched(tmp_path, [["g1+", "g2+"]], inner={"steps": 2}) as ledger:
        for seed, inner in ((0, {}), (1, {"steps": 1})):
            with pytest.MonkeyPatch.context() as patch, pytest.raises(TypeError):
                patch.setattr(ledger, "record_final", None)
                protocol.train_final(ledger, ["g1"], [seed])
            file = max(ledger.run_dir.glob("finals/*/stage-0/result.json"), key=lambda path: path.stat().st_mtime_ns)
            file.write_text(json.dumps(json.loads(file.read_text()) | {"score": 1 / 7}))
            (final,) = protocol.train_final(ledger, ["g1"], [seed], inner=inner)
            assert (final.test == 1 / 7, final.result["steps"]) == (not inner, inner.get("steps", 2))


FINAL = {"steps": 5, "learning_rate": 0.5, "eval_examples": 4}


@pytest.mark.slow
def test_derl_full_trains_its_programs_one_after_the_other(tmp_path: Path, caplog) -> None:
    rounds = [["g1", "g2"], ["g2", "g1-g2"]]
    with searched(tmp_path, rounds, variant="full", inner={"steps": 2}, final_inner=FINAL) as ledger:
        programs = protocol.select(ledger)
        assert len(programs) == 2
        (final,) = protocol.train_final(ledger, programs, [0])
        stages = sorted(Path(final.policy).parents[1].iterdir())
        assert [stage.name for stage in stages] == ["stage-0", "stage-1"]
        first, second = (json.loads((stage / "result.json").read_text()) for stage in stages)
        assert first["score"] is None and first["n_evaluated"] == 0, "only the last stage is tested"
        assert first["steps"] == second["steps"] == 2, "a round takes what it took in the search"
        assert second["n_evaluated"] == 4, "but the evaluation is that of every other final policy"
        assert "make" not in caplog.text, "4 steps are no more than a baseline's 5"
        # From the preceding checkpoint, and not from the base policy: the second program alone gives another policy.
        (alone,) = protocol.train_final(ledger, programs[1:], [0])
        weights = [(Path(policy) / "model.safetensors").read_bytes() for policy in (final.policy, alone.policy)]
        assert weights[0] != weights[1]


@pytest.mark.slow
def test_derl_base_and_the_baselines_train_by_final_inner(tmp_path: Path) -> None:
    with searched(tmp_path, [["g1", "g2"]], inner={"steps": 2, "eval_examples": 3}, final_inner=FINAL) as ledger:
        (final,) = protocol.train_final(ledger, ["g1"], [0])
        assert (final.result["steps"], final.result["n_evaluated"]) == (5, 4)
        (final,) = protocol.train_final(ledger, ["g1+g2"], [0], inner={"eval_examples": None, "steps": 1})
        assert (final.result["steps"], final.result["n_evaluated"]) == (1, 24), "the whole test split"


@pytest.mark.slow
def test_a_missing_checkpoint_between_two_rounds_is_an_error(tmp_path: Path, monkeypatch) -> None:
    check = protocol._checked

    def losing(outcome, program):
        result = check(outcome, program)
        shutil.rmtree(result["policy"])
        return result

    monkeypatch.setattr(protocol, "_checked", losing)
    with searched(tmp_path, [["g1", "g2"], ["g2", "g1-g2"]], variant="full") as ledger:
        with pytest.raises(FileNotFoundError, match="stage 2 of the final training .* which is missing"):
            protocol.train_final(ledger, ["g1", "g2"], [0])
        assert ledger.finals() == []


def test_a_longer_training_than_a_baselines_is_said(caplog) -> None:
    from derl_gym.envs.outer_loop import OuterLoop
    from derl_gym.envs.settings import make_settings

    def loop_of(task: str, **given) -> OuterLoop:
        return OuterLoop(make_settings({"task": task, "variant": "full"} | given), lambda: "")

    for environment in ("GSM8K", "MATH", "MATHAndGSM8K"):
        paper = loop_of(f"derl_gym.tasks.mathematics:{environment}", preset="paper")
        rounds, baseline = protocol.final_config(paper, True), protocol.final_config(paper, False)
        assert (rounds.epochs, baseline.epochs, paper.settings.outer_steps) == (2, 15, 7)
        assert (rounds.max_flops_ratio, rounds.eval_examples) == (None, None)
        protocol._warn_if_longer(rounds, paper.settings.outer_steps, baseline)
    assert caplog.text == "", "7 rounds of 2 epochs are 14, one fewer than the baselines' 15"
    toy = loop_of("toy_tasks:Sized", inner={"steps": 2})
    protocol._warn_if_longer(protocol.final_config(toy, True), 2, protocol.final_config(toy, False))
    assert "2 rounds of 2 steps make 4, more than the 3 of a baseline" in caplog.text
    assert "with inner.steps=4 (or final_inner's)" in caplog.text


@pytest.mark.slow
def test_what_the_splits_held_is_recorded_with_the_final_policy(tmp_path: Path) -> None:
    with searched(tmp_path, [["g1", "g2"]], task="toy_tasks:Benchmarks") as ledger:
        assert set(ledger.config["data"]) == {"train", "validation"}, "a search knows nothing of the test split"
        (final,) = protocol.train_final(ledger, ["g1"], [0])
        (row,) = ledger.finals()
    assert row["result"]["data"] == {split: {"examples": 24, "sha256": f"24 of {split}"} for split in ("full", "test")}
    assert set(final.scores) == {"easy", "hard"} and final.scores["hard"] == 0.0
    assert final.test == pytest.approx((final.scores["easy"] + final.scores["hard"]) / 2)
    assert final.standard_error == row["result"]["standard_error"] > 0


@pytest.mark.slow
def test_other_data_than_the_searchs_are_refused(tmp_path: Path, monkeypatch) -> None:
    with searched(tmp_path / "run", [["g1", "g2"]]) as ledger:
        loop = protocol.OuterLoop(protocol.settings_of(ledger.config), lambda: "")
        monkeypatch.setattr(protocol.OuterLoop, "hashes", lambda self, *splits: dict.fromkeys(splits, "elsewhere"))
        assert loop.hashes("full") == {"full": "elsewhere"}
        with pytest.raises(protocol.InfrastructureFailure, match="data differ"):
            protocol.train_final(ledger, ["g1"], [0])


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """A copy of the embedded base policy."""
    return shutil.copytree(Arithmetic().base_policy, tmp_path / "policy")


def change(policy: Path) -> None:
    """Other content that trains all the same."""
    config = json.loads((policy / "config.json").read_text())
    (policy / "config.json").write_text(json.dumps(config | {"changed": 1}))


def opened(run_dir: Path, **settings) -> Ledger:
    """The ledger of a search in which nothing is trained."""
    return searched(run_dir, [["g1+", "g2+"]], **settings)


def test_a_base_policy_or_data_that_changed_since_the_search_are_refused(
    tmp_path: Path, policy: Path, monkeypatch
) -> None:
    with opened(tmp_path / "run", inner={"policy": str(policy)}) as ledger:
        before = ledger.config["base_policy"]
        change(policy)
        with pytest.raises(
            RunDirectoryMismatch, match=f"base policy .*{before} there, {policy_fingerprint(str(policy))}"
        ):
            protocol.train_final(ledger, ["g1"], [0])
        record = protocol.OuterLoop.record
        monkeypatch.setattr(
            protocol.OuterLoop,
            "record",
            lambda self, split: record(self, split) | ({"sha256": "other"} if split == "validation" else {}),
        )
        with pytest.raises(RunDirectoryMismatch, match="the validation data .* sha256 24 of valida there, other now"):
            protocol.train_final(ledger, ["g1"], [0])
        with pytest.raises(RunDirectoryMismatch, match="validation data"):
            protocol._refuse_other_data(ledger, protocol.OuterLoop(protocol.settings_of(ledger.config), lambda: ""))
        assert ledger.finals() == [] and not (ledger.run_dir / "finals").exists()
        ledger.config = {key: value for key, value in ledger.config.items() if key not in ("data", "base_policy")}
        loop = protocol.OuterLoop(protocol.settings_of(ledger.config), lambda: "")
        protocol._refuse_other_data(ledger, loop)  # version 0.1 recorded neither
        protocol._refuse_other_policy(ledger, str(policy))


def test_a_missing_policy_is_an_error_before_anything_is_trained(tmp_path: Path) -> None:
    for name, settings, given in (
        ("final", {"final_inner": {"policy": "./gone"}}, {}),
        ("full", {"final_inner": {"policy": "./gone"}, "variant": "full"}, {}),
        ("inner", {}, {"policy": "./gone"}),
    ):
        with opened(tmp_path / name, **settings) as ledger:
            with pytest.raises(FileNotFoundError, match="no such policy folder: ./gone"):
                protocol.train_final(ledger, ["g1"], [0], inner=given)
            assert ledger.finals() == [] and not (ledger.run_dir / "finals").exists()


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["base", "full"])
def test_the_final_training_starts_from_the_policy_that_it_is_given(tmp_path: Path, variant: str) -> None:
    still = {"learning_rate": 0.0, "steps": 1}  # the weights stay those of the start
    with opened(tmp_path / "run", variant=variant, inner=still, final_inner=still) as ledger:
        (base,) = protocol.train_final(ledger, ["g1"], [0])
        (moved,) = protocol.train_final(ledger, ["g1"], [1], inner={"learning_rate": 0.5})
        (given,) = protocol.train_final(ledger, ["g1"], [2], inner={"policy": moved.policy})
    weights = [(Path(final.policy) / "model.safetensors").read_bytes() for final in (base, moved, given)]
    assert weights[0] != weights[1] == weights[2]


@pytest.mark.slow
def test_kept_policies_are_analysed_on_test(tmp_path: Path) -> None:
    with searched(tmp_path / "a", [["g1", "g2"]], keep_policies=True) as ledger:
        scores = protocol.analyse_on_test(ledger)
        assert set(scores) == {trial["identity"] for trial in ledger.trials()}
        assert json.loads((tmp_path / "a" / protocol.TEST_ANALYSIS).read_text()) == scores
        results = (tmp_path / "a" / "test_analysis").glob("*/result.json")
        assert [json.loads(file.read_text())["n_evaluated"] for file in results] == [24, 24], "the whole split"
    with searched(tmp_path / "b", [["g1", "g2"]]) as ledger, pytest.raises(ValueError, match="keep_policies"):
        protocol.analyse_on_test(ledger)
