"""Searches on trials that were measured beforehand: a table made by hand, and the one that comes with the package."""

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import derl_gym  # noqa: F401
from derl_gym.envs import NotMeasured
from derl_gym.envs.identity import policy_fingerprint
from derl_gym.envs.outer_loop import OuterLoop
from derl_gym.envs.settings import make_settings
from derl_gym.inner.result import InnerResult
from derl_gym.programs import Grammar, ProgramSpace
from derl_gym.tasks.arithmetic import Arithmetic
from derl_gym.trials import bundled
from derl_gym.trials.bundled import Bundled, write_table
from derl_gym.trials.ledger import Ledger

TASK = "derl_gym.tasks.arithmetic:Arithmetic"
SEEDS = [11, 12, 13]
CURVE = [{"reward": 0.123456789, "g1": 0.5}, {"reward": 1 / 3, "g1": 1.0, "loss": -1e-7}]


def line(program: str, seed: int, score: float, **changes) -> dict:
    loop = OuterLoop(make_settings({"task": TASK}), str)
    parsed = loop.parse(program)
    key = loop.class_of(parsed, parsed.analyse(loop.task.primitives, states=loop.states))
    result = InnerResult("scored", score, curve=CURVE, primitive_means=[0.1, 0.2, 0.3, 0.4], n_evaluated=308)
    result = dataclasses.replace(result, tokens=1000 + seed, flops=2.5e9, train_seconds=0.5, **changes)
    return {"key": key, "program": program, "seed": seed, "test": score / 2, "result": result.to_dict()}


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A table of three classes; scores are seed / 100 and so on, so that it shows which were taken."""
    loop = OuterLoop(make_settings({"task": TASK}), str)
    lines = [line("g1", seed, seed / 100) for seed in SEEDS]
    lines += [line("g1+g2", seed, seed / 50, standard_error=0.01) for seed in SEEDS]
    broken = {"status": "invalid", "curve": [], "primitive_means": []}
    lines += [line("g1/g2", seed, 0.0, **broken, reason="undefined reward at step 1") for seed in SEEDS]
    lines += [line("g3", 11, 0.9)]  # not with every seed
    common = loop.common(loop.inner, policy_fingerprint(loop.base_policy))
    folder = tmp_path / "table"
    language = {"max_program_length": 5, "max_digits": 1}
    write_table(folder, lines, SEEDS, {"trials": common, "language": language, "provenance": {"device": "cpu"}})
    monkeypatch.setattr(Arithmetic, "measured", folder)
    return folder


def make(tmp_path, num_envs=2, **settings) -> Any:
    given: dict[str, Any] = {"cache": "bundled", "on_miss": "error", "run_dir": str(tmp_path / "run")} | settings
    return gym.make_vec("DERL-Arithmetic-v0", num_envs=num_envs, **given)


def actions(envs, *programs):
    return np.array([envs.unwrapped.programs.encode(program) for program in programs])


def test_what_is_written_is_read(table):
    read = Bundled(table)
    assert len(read) == 3 and read.seeds == SEEDS, "a class that lacks a seed is left out"
    written = line("g1", 12, 0.12)
    found = read.get(written["key"], 12)
    assert found is not None
    assert (found["status"], found["score"], found["tokens"], found["flops"]) == ("scored", 0.12, 1012, 2.5e9)
    assert found["curve"] == [{"reward": 0.12346, "g1": 0.5}, {"reward": 0.33333, "g1": 1.0, "loss": -1e-7}]
    assert found["standard_error"] is None and found["device"] == "cpu"
    assert found.keys() == written["result"].keys()
    broken = read.get(line("g1/g2", 11, 0.0)["key"], 11)
    assert broken is not None and (broken["status"], broken["score"], broken["curve"]) == ("invalid", 0.0, [])
    assert broken["reason"] == "undefined reward at step 1"
    assert read.get("another class", 11) is None and read.get(written["key"], 99) is None
    assert bundled.test_scores(table)[written["key"], 13] == 0.065
    assert "test" not in np.load(table / "validation.npz").files


def test_scores_seeds_and_rows(table, tmp_path):
    envs = make(tmp_path, num_envs=4, outer_steps=2)
    assert envs.unwrapped.programs.grammar == Grammar(4, 5, max_digits=1), "the table's language"
    envs.reset(seed=3)
    _, scores, _, _, info = envs.step(actions(envs, "g1", "g2+g1", "g1/g2", "2*g1"))
    seed = int(info["seed"][0])
    assert seed in SEEDS and set(info["seed"].tolist()) == {seed}, "a group shares its inner seed"
    assert scores.tolist() == [seed / 100, seed / 50, 0.0, seed / 100]
    assert info["status"].tolist() == ["scored", "scored", "invalid", "scored"]
    assert info["repeated"].tolist() == [False, False, False, True]
    envs.close()
    with Ledger(tmp_path / "run", readonly=True) as ledger:
        rows, trials = ledger.proposals(), ledger.trials()
    assert [row["cached"] for row in rows] == [True] * 4 and sum(row["seconds"] for row in rows) == 0
    assert [(trial["program"], trial["status"], trial["seconds"]) for trial in trials] == [
        ("g1", "scored", 0.0),
        ("g2+g1", "scored", 0.0),
        ("g1/g2", "invalid", 0.0),
    ]
    assert trials[0]["device"] == "cpu" and "test" not in str(trials[0])


def test_episodes_see_different_seeds_and_a_search_is_taken_up_again(table, tmp_path):
    envs = make(tmp_path, num_envs=1, outer_steps=1)
    envs.reset(seed=0)
    seen = [int(envs.step(actions(envs, "g1"))[4]["seed"][0]) for _ in range(12)]
    assert set(seen) == set(SEEDS)
    envs.close()
    again = make(tmp_path, num_envs=1, outer_steps=1)
    again.reset(seed=0)
    assert [int(again.step(actions(again, "g1"))[4]["seed"][0]) for _ in range(12)] == seen
    again.close()


def test_a_miss_is_an_error_and_loses_nothing(table, tmp_path):
    envs = make(tmp_path, num_envs=2)
    envs.reset(seed=0)
    with pytest.raises(NotMeasured, match=r"no measured trials of 'g3'.*max_program_length=5"):
        envs.step(actions(envs, "g3", "g1"))
    envs.close()
    with Ledger(tmp_path / "run", readonly=True) as ledger:
        assert [row["status"] for row in ledger.proposals()] == ["proposed", "scored"]


def test_a_miss_is_trained(table, tmp_path):
    quick = {"steps": 1}
    with pytest.raises(ValueError, match="inner.steps differ"):
        make(tmp_path, inner=quick)
    envs = make(tmp_path, num_envs=2, on_miss="run", max_program_length=9)
    assert envs.unwrapped.programs.grammar == Grammar(4, 9, max_digits=1)
    envs.reset(seed=0)
    _, scores, _, _, info = envs.step(actions(envs, "g1", "g2"))
    assert scores[0] == int(info["seed"][0]) / 100 and 0.05 < scores[1] < 0.3
    envs.close()
    with Ledger(tmp_path / "run", readonly=True) as ledger:
        assert [row["cached"] for row in ledger.proposals()] == [True, False]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variant": "full"}, "variant='full', halving and keep_policies need inner runs"),
        ({"halving": 1}, "need inner runs"),
        ({"keep_policies": True}, "need inner runs"),
        ({"flip": ["g2"]}, "task differ"),
        ({"inner": {"learning_rate": 0.2}}, "inner.learning_rate differ"),
        ({"cache": "exact"}, "on_miss='error' is for cache='bundled', not for cache='exact'"),
        ({"cache": "bundle"}, "cache must be"),
        ({"max_digits": 4}, "max_digits from 1 to 3"),
        ({"max_program_length": 0}, "max_program_length must be"),
    ],
)
def test_what_does_not_fit_is_said_first(table, tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        make(tmp_path, **settings)
    assert not (tmp_path / "run").exists()


def test_a_task_without_a_table(tmp_path):
    with pytest.raises(ValueError, match="needs a task with a table of measured trials; .*GSM8K has none"):
        gym.make("DERL-GSM8K-v0", cache="bundled")


def test_machine_settings_may_differ(table, tmp_path):
    make(tmp_path, inner={"timeout": 7.0, "checkpoint_seconds": 60.0}).close()


def test_programs_that_are_undefined_somewhere_are_one_class_as_well():
    loop = OuterLoop(make_settings({"task": TASK}), str)

    def class_of(text: str) -> str:
        program = loop.parse(text)
        return loop.class_of(program, program.analyse(loop.task.primitives, states=loop.states))

    assert class_of("g1/g2") == class_of("2*g1/g2") == class_of("g1/g2/g2")
    assert class_of("g1/g2") != class_of("g1/g3") and class_of("g1/g2") != class_of("g2/g2")
    assert class_of("g1/g2/99") == "exact:g1/g2/99", "still where GRPO's epsilon counts"


def test_the_space_knows_the_language():
    envs = gym.make_vec("DERL-Arithmetic-v0", num_envs=2, max_program_length=4, max_digits=1)
    assert envs.single_action_space == ProgramSpace(Grammar(4, 4, max_digits=1))
    assert envs.single_action_space.shape == (4,)
    envs.close()
