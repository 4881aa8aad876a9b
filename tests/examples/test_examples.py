"""The examples search for real, in small."""

from __future__ import annotations

import runpy
from pathlib import Path

import gymnasium as gym
import pytest

import derl_gym  # noqa: F401
from derl_gym.trials.ledger import Ledger

EXAMPLES = Path(__file__).parents[2] / "examples"
DIGITS = {"task": "toy_tasks:Digits", "outer_steps": 2, "run_dir": "run"}


def recorded() -> list[tuple[float, str]]:
    with Ledger("run", readonly=True) as ledger:
        return [(row["score"], row["program"]) for row in ledger.proposals()]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 30


@pytest.mark.slow
def test_nevergrad_writes_two_programs() -> None:
    pytest.importorskip("nevergrad")
    optimise = runpy.run_path(str(EXAMPLES / "nevergrad_one_plus_one.py"))["optimise"]
    env = gym.make("DERL-Arithmetic-v0", **DIGITS, group_size=1)
    best = optimise(env, budget=2)
    env.close()
    assert len(recorded()) == 2 and max(recorded()) == best
    again = gym.make("DERL-Arithmetic-v0", **DIGITS, group_size=1)
    assert optimise(again, budget=2) == best, "the same seed asks for the same programs, so nothing is trained"
    again.close()
    assert len(recorded()) == 2


@pytest.mark.slow
def test_an_optuna_study_by_hand_is_gone_on_with() -> None:
    pytest.importorskip("optuna")
    optimise = runpy.run_path(str(EXAMPLES / "optuna_by_hand.py"))["optimise"]
    envs = gym.make_vec("DERL-Arithmetic-v0", num_envs=2, **DIGITS)
    best = optimise(envs, outer_steps=1)
    envs.close()
    assert len(recorded()) == 2 and max(recorded())[0] == best[0]
    envs = gym.make_vec("DERL-Arithmetic-v0", num_envs=2, **DIGITS)
    assert optimise(envs, outer_steps=2)[0] >= best[0]
    envs.close()
    assert len(recorded()) == 4 and best in recorded()
