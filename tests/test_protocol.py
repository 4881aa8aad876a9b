"""After the search: select, train on everything, test once."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import derl_gym  # noqa: F401
from derl_gym import protocol
from derl_gym.trials.ledger import Ledger


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
def test_a_search_never_opens_the_test_split_and_the_final_training_does_once(tmp_path: Path) -> None:
    with searched(tmp_path / "closed", [["g1", "g2"]], task="toy_tasks:Digits") as ledger:
        program = protocol.select(ledger)
        with pytest.raises(AssertionError, match="opened the test split"):
            protocol.train_final(ledger, program, [0])
        assert ledger.finals() == []

    with searched(tmp_path / "open", [["g1", "g2"]]) as ledger:
        program = protocol.select(ledger)
        finals = protocol.train_final(ledger, program, [3, 4], workers=2)
        assert [final.seed for final in finals] == [3, 4]
        assert all(0 <= final.test <= 1 and Path(final.policy).is_dir() for final in finals)
        with pytest.raises(protocol.TestAlreadyOpened, match="seed 3"):
            protocol.train_final(ledger, program, [3])
        (second,) = protocol.train_final(ledger, program, [3], again=True)
        assert second.test == finals[0].test and second.policy != finals[0].policy
        assert [row["again"] for row in ledger.finals()] == [False, False, True]
        # What a search can read holds no test score.
        for row in [*ledger.proposals(), *ledger.trials()]:
            assert not any("test" in key for key in row)
        with pytest.raises(ValueError, match="undefined"):
            protocol.train_final(ledger, ["g1/(g2-g2)"], [0])


@pytest.mark.slow
def test_derl_full_trains_its_programs_one_after_the_other(tmp_path: Path) -> None:
    with searched(tmp_path, [["g1", "g2"], ["g2", "g1-g2"]], variant="full") as ledger:
        programs = protocol.select(ledger)
        assert len(programs) == 2
        (final,) = protocol.train_final(ledger, programs, [0])
        stages = sorted(Path(final.policy).parents[1].iterdir())
        assert [stage.name for stage in stages] == ["stage-0", "stage-1"]
        first = json.loads((stages[0] / "result.json").read_text())
        assert first["score"] is None and first["n_evaluated"] == 0, "only the last stage is tested"


@pytest.mark.slow
def test_kept_policies_are_analysed_on_test(tmp_path: Path) -> None:
    with searched(tmp_path / "a", [["g1", "g2"]], keep_policies=True) as ledger:
        scores = protocol.analyse_on_test(ledger)
        assert set(scores) == {trial["identity"] for trial in ledger.trials()}
        assert json.loads((tmp_path / "a" / protocol.TEST_ANALYSIS).read_text()) == scores
    with searched(tmp_path / "b", [["g1", "g2"]]) as ledger, pytest.raises(ValueError, match="keep_policies"):
        protocol.analyse_on_test(ledger)
