"""One real inner run, called in this process."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from derl_gym.inner.config import InnerConfig
from derl_gym.programs import RewardProgram, UndefinedReward
from derl_gym.tasks import load_task

train = pytest.importorskip("derl_gym.inner.train")

CONFIG = InnerConfig(steps=2, batch_size=16, max_completion_length=6)


def run(folder: Path, config: InnerConfig = CONFIG, **changes) -> dict:
    payload = {
        "task": "toy_tasks:Digits",
        "program": "g1+0.5*g2",
        "policy": load_task("toy_tasks:Digits").base_policy,
        "config": dataclasses.asdict(config),
        "seed": 5,
        "train_split": "train",
        "eval_split": "validation",
        "save_policy": False,
    }
    return train.run(payload | changes, folder)


def reproducible(result: dict) -> dict:
    """All but what a clock or another process in memory can change."""
    return {k: v for k, v in result.items() if k not in ("train_seconds", "eval_seconds", "peak_memory", "policy")}


def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    first, second, other = run(tmp_path), run(tmp_path), run(tmp_path, seed=6)
    assert first["status"] == "scored" and 0 <= first["score"] <= 1 and first["n_evaluated"] == 24
    assert reproducible(first) == reproducible(second)
    assert first["curve"] != other["curve"]
    assert first["steps"] == 2 and len(first["curve"]) == 2
    assert first["score"] == first["primitive_means"][0], "g1 is the verdict here"


def test_cost_is_counted_from_tokens(tmp_path: Path) -> None:
    result = run(tmp_path)
    # 2 steps x 16 rollouts of a prompt and at most 6 new tokens.
    assert 32 < result["tokens"] <= 2 * 16 * (32 + 6)
    assert result["flops"] > 8 * result["tokens"] * 10_000
    assert result["train_seconds"] > 0 and result["eval_seconds"] > 0 and result["peak_memory"] > 100e6
    assert result["backend"] == "transformers" and result["sampling_logp_difference"] is None


@pytest.mark.parametrize(
    "cap", [{"max_tokens": 1}, {"max_flops": 1.0}, {"max_seconds": 1e-6}], ids=lambda cap: next(iter(cap))
)
def test_a_cap_ends_training_and_the_policy_is_scored(tmp_path: Path, cap: dict) -> None:
    result = run(tmp_path, CONFIG.override(steps=50, **cap))
    assert result["status"] == "scored" and result["steps"] == 1
    assert "stopped after 1 steps by the cap" in result["reason"]


def test_an_undefined_reward_ends_the_run_at_once(tmp_path: Path) -> None:
    result = run(tmp_path, program="g1/(g2-g2)")
    assert (result["status"], result["score"], result["steps"]) == ("invalid", 0.0, 0)
    assert "undefined reward at step 1: division by zero" in result["reason"]


def test_training_moves_the_policy_and_a_constant_reward_does_not(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    start = load_file(Path(load_task("toy_tasks:Digits").base_policy) / "model.safetensors")
    for program, moves in (("g1", True), ("3+0*g1", False)):
        result = run(tmp_path / program[0], program=program, save_policy=True)
        end = load_file(Path(result["policy"]) / "model.safetensors")
        assert any((start[name] != end[name]).any() for name in start) is moves
        again = run(tmp_path / "again", policy=result["policy"], program=program)
        assert again["status"] == "scored"


def test_rewards_are_the_program_on_the_whole_batch() -> None:
    task = load_task("toy_tasks:Digits")
    reward = train.ProgramReward(RewardProgram.parse("g1-2*g2+1", k=2), task, [{"prompt": "a"}, {"prompt": "b"}])
    assert reward(["1", "2", "12", ""], [0, 0, 1, 1]) == [2.0, -1.0, 0.0, 1.0]
    assert reward.rows == [{"reward": 0.5, "g1": 0.5, "g2": 0.5}]
    chat = [[{"role": "assistant", "content": "1"}]]
    assert reward(chat, [0]) == [2.0]
    with pytest.raises(UndefinedReward, match="beyond 1e"):
        train.ProgramReward(RewardProgram.parse("10**16*g1", k=2), task, [{}])(["2", "1"], [0, 0])


def test_a_short_list_of_rewards_would_be_refused() -> None:
    """TRL broadcasts a list of one reward to the whole batch; the program never returns one."""
    values = RewardProgram.parse("3", k=2)(np.zeros((5, 2)))
    assert values.shape == (5,)


def test_missing_vllm_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert train.resolve_backend("auto") == "transformers"
    with pytest.raises(RuntimeError, match=r"derl-gym\[vllm\]"):
        train.resolve_backend("vllm")


def test_trl_arguments_can_be_overridden(tmp_path: Path) -> None:
    arguments = train.trainer_arguments(
        CONFIG.override(micro_batch_size=8, trl={"top_k": 3}), 1, "transformers", tmp_path
    )
    assert arguments.per_device_train_batch_size == 8 and arguments.gradient_accumulation_steps == 2
    assert arguments.top_k == 3 and arguments.seed == 1 and arguments.loss_type == "grpo"
