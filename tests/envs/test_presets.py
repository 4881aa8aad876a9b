"""Presets: what they fill in, what outranks them, and that a ledger holds plain values."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import derl_gym  # noqa: F401
from derl_gym import protocol
from derl_gym.envs.settings import make_settings
from derl_gym.trials.ledger import Ledger

SIZED = "toy_tasks:Sized"


def made(**given):
    return make_settings({"task": SIZED} | given)


def test_without_a_preset_the_task_and_the_fixed_numbers_speak() -> None:
    settings = made()
    assert (settings.outer_steps, settings.group_size, settings.proposer) == (10, 8, "small")
    assert settings.inner == {} and settings.final_inner == {"steps": 3}
    given = made(outer_steps=None, group_size=np.int64(3), proposer=None)
    assert (given.outer_steps, given.group_size, given.proposer) == (10, 3, "small")


def test_a_preset_fills_in_what_is_not_given() -> None:
    settings = made(preset="large")
    assert (settings.outer_steps, settings.group_size, settings.proposer) == (3, 2, "org/proposer")
    assert settings.inner == {"epochs": 2.0, "temperature": 0.5}
    assert settings.final_inner == {"steps": 3, "eval_examples": 4}
    full = made(preset="large", variant="full")
    assert full.outer_steps == 4 and full.inner == {"epochs": 1.0, "temperature": 0.5}


def test_what_is_given_outranks_the_preset() -> None:
    settings = made(
        preset="large",
        outer_steps=7,
        group_size=5,
        proposer="small",
        inner={"temperature": 0.9},
        final_inner={"steps": 9},
    )
    assert (settings.outer_steps, settings.group_size, settings.proposer) == (7, 5, "small")
    assert settings.inner == {"epochs": 2.0, "temperature": 0.9}
    assert settings.final_inner == {"steps": 9, "eval_examples": 4}


def test_steps_take_back_the_epochs_below_them() -> None:
    assert made(preset="large", inner={"steps": 1}).inner == {"epochs": None, "temperature": 0.5, "steps": 1}
    assert made(preset="large", inner={"steps": 1, "epochs": 3}).inner["epochs"] == 3


def test_an_unknown_preset_lists_the_tasks_own() -> None:
    with pytest.raises(ValueError, match="no preset 'huge': toy_tasks:Sized has large"):
        gym.make("DERL-Arithmetic-v0", task=SIZED, preset="huge")
    with pytest.raises(ValueError, match="no preset 'paper': derl_gym.tasks.arithmetic:Arithmetic has none"):
        gym.make("DERL-Arithmetic-v0", preset="paper")


def test_a_misspelt_setting_of_the_final_training_is_said_at_once() -> None:
    with pytest.raises(ValueError, match="unknown inner setting epoch"):
        gym.make("DERL-Arithmetic-v0", final_inner={"epoch": 3})


def test_the_papers_settings_of_the_mathematical_ids() -> None:
    env = gym.make("DERL-GSM8K-v0")
    loop = env.unwrapped.loop
    assert (env.unwrapped.outer_steps, env.unwrapped.group_size) == (8, 8)
    assert env.unwrapped.proposer == "Qwen/Qwen2.5-0.5B-Instruct"
    assert loop.base_policy == "Qwen/Qwen2.5-1.5B"
    assert (loop.inner.epochs, loop.inner.num_generations, loop.inner.max_flops_ratio) == (10, 8, 1.3)
    assert (loop.inner.max_seconds, loop.final.epochs, loop.final.max_seconds) == (3.5 * 3600, 15, None)
    env.close()
    for environment in ("DERL-MATH-v0", "DERL-MATH-GSM8K-v0"):
        env = gym.make(environment, variant="full")
        loop = env.unwrapped.loop
        assert loop.base_policy == "Qwen/Qwen2.5-3B"
        assert (env.unwrapped.outer_steps, loop.inner.epochs) == (7, 2)
        env.close()


def test_the_ledger_rebuilds_the_search_when_its_preset_has_changed(tmp_path, monkeypatch) -> None:
    envs = gym.make_vec(
        "DERL-Arithmetic-v0", num_envs=2, task=SIZED, preset="large", outer_steps=None, run_dir=str(tmp_path)
    )
    envs.reset(seed=0)
    assert envs.unwrapped.recorded_actions() == []  # opens the ledger
    made_with = envs.unwrapped.loop.settings
    envs.close()
    monkeypatch.setattr("toy_tasks.Sized.presets", {})
    with Ledger(tmp_path, readonly=True) as ledger:
        again = protocol.settings_of(ledger.config)
    assert (again.inner, again.final_inner) == (made_with.inner, made_with.final_inner)
    assert (again.outer_steps, again.group_size, again.proposer) == (3, 2, "org/proposer")


def test_an_agents_model_is_the_environments_proposer_unless_it_is_named(tmp_path) -> None:
    from derl_agents import AGENTS

    for proposer, given, model in (
        (None, {}, "small"),
        ("org/proposer", {}, "org/proposer"),
        ("org/proposer", {"model": "small"}, "small"),
    ):
        envs = gym.make_vec("DERL-Arithmetic-v0", num_envs=2, proposer=proposer, run_dir=str(tmp_path))
        # The grammar's prior loads no model, so that the name alone can be looked at.
        agent = AGENTS["random"](envs, **given)
        assert agent.options.model == model
        assert agent.options.temperature == (1.0 if model == "small" else 0.7)
        envs.close()


@pytest.mark.filterwarnings("ignore:the instruction takes .* tokens:UserWarning")
@pytest.mark.parametrize("name", ["derl", "derl-elite", "random"])
def test_the_proposer_that_the_environment_names_writes_the_programs(tmp_path, data_dir, name: str) -> None:
    from derl_agents import AGENTS

    proposer = str(data_dir / "stories260k")
    envs = gym.make_vec("DERL-Arithmetic-v0", num_envs=2, proposer=proposer, run_dir=str(tmp_path))
    agent = AGENTS[name](envs, **({"prior": "proposer"} if name == "random" else {}))
    assert agent.lm.model.num_parameters() == 260_032 and agent.options.model == proposer
    envs.close()
