"""One real inner run, called in this process."""

from __future__ import annotations

import dataclasses
import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from derl_gym.inner.config import COMPUTED, PASSED_ON, InnerConfig
from derl_gym.programs import RewardProgram, UndefinedReward
from derl_gym.tasks import load_task

train = pytest.importorskip("derl_gym.inner.train")
with_logged = importlib.import_module("derl_gym.inner.curve").with_logged

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


def rollouts(result: dict) -> list[dict[str, float]]:
    """The curve without what TRL logs of the updates."""
    return [{name: row[name] for name in ("reward", "g1", "g2", "completion_length")} for row in result["curve"]]


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


def test_every_argument_that_a_setting_decides_is_refused_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left over belongs to the run or the machine, not to a setting."""
    names = {field.name for field in dataclasses.fields(train.GRPOConfig)}
    assert set(PASSED_ON.values()) | set(COMPUTED) <= names
    assert set(PASSED_ON) | set(COMPUTED.values()) <= {field.name for field in dataclasses.fields(InnerConfig)}
    monkeypatch.setattr(train, "GRPOConfig", dict)
    given = train.trainer_arguments(CONFIG, 1, "transformers", tmp_path)
    assert set(given) - set(PASSED_ON.values()) - set(COMPUTED) == {
        *("output_dir", "seed", "data_seed", "use_cpu", "report_to", "logging_strategy", "logging_steps"),
        *("disable_tqdm", "vllm_mode", "ddp_find_unused_parameters"),
    }


def test_an_argument_that_trl_does_not_know_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'topk', which is no argument of trl.GRPOConfig; did you mean 'top_k'\?"):
        run(tmp_path, CONFIG.override(trl={"topk": 3}), policy="nowhere")


def test_the_curve_holds_what_trl_logs(tmp_path: Path) -> None:
    first, second = run(tmp_path, CONFIG.override(beta=0.1, learning_rate=1e-2))["curve"]
    logged = {"completion_length", "truncated", "entropy", "kl", "clip_ratio", "grad_norm", "loss"}
    assert set(first) == set(second) == {"reward", "g1", "g2"} | logged
    assert abs(first["kl"]) < 1e-6 and second["kl"] > 1e-5, "after an update it is another policy"
    assert 1 <= first["completion_length"] <= 6 and 0 <= first["truncated"] <= 1 and first["grad_norm"] > 0
    # Advantages of a group add up to zero, and the first ratio is one: the loss is the penalty alone.
    assert first["loss"] == pytest.approx(0, abs=1e-5) and first["clip_ratio"] == 0
    assert second["loss"] == pytest.approx(0.1 * second["kl"], rel=0.5)
    assert "kl" not in run(tmp_path)["curve"][0]


def test_a_phase_holds_the_means_of_its_steps() -> None:
    """Two updates per phase, each of two passes; TRL logs lengths in the first one's step."""
    entries = [
        {"step": 1, "completions/mean_length": 5.0, "loss": 1.0, "grad_norm": float("inf")},
        {"step": 2, "loss": 3.0, "grad_norm": 2.0},
        {"step": 3, "completions/mean_length": 7.0, "loss": 0.5, "kl": None},
        {"step": 3, "train_loss": 1.5},
    ]
    args = SimpleNamespace(steps_per_generation=4, num_iterations=1, gradient_accumulation_steps=2)
    trainer: Any = SimpleNamespace(args=args, state=SimpleNamespace(log_history=entries))
    assert with_logged([{"reward": 0.0}, {"reward": 1.0}], trainer) == [
        {"reward": 0.0, "completion_length": 5.0, "loss": 2.0, "grad_norm": 2.0},
        {"reward": 1.0, "completion_length": 7.0, "loss": 0.5},
    ]


def test_adapters_are_kept_merged(tmp_path: Path) -> None:
    """A policy trained with adapters is a plain model: the next round and the evaluation load it as any other."""
    from safetensors.numpy import load_file

    greedy = CONFIG.override(lora_rank=4, lora_alpha=16.0, eval_temperature=0.0)
    start = load_file(Path(load_task("toy_tasks:Digits").base_policy) / "model.safetensors")
    result = run(tmp_path, greedy, save_policy=True)
    kept = Path(result["policy"])
    assert not list(kept.glob("adapter*"))
    end = load_file(kept / "model.safetensors")
    assert start.keys() == end.keys()
    moved = {name for name in start if (start[name] != end[name]).any()}
    assert moved == {name for name in start if name.endswith("_proj.weight")}, "every linear layer and nothing else"
    evaluation = importlib.import_module("derl_gym.inner.evaluate")
    payload = {"task": "toy_tasks:Digits", "policy": str(kept), "split": "validation", "seed": 5}
    again = evaluation.run({**payload, "config": dataclasses.asdict(greedy)}, tmp_path)
    assert again["score"] == result["score"] and again["primitive_means"] == result["primitive_means"]
    following = run(tmp_path / "next", greedy.override(lora_targets="q_proj, v_proj", beta=0.1), policy=str(kept))
    assert following["status"] == "scored" and following["steps"] == 2


def test_adapters_cost_less_and_train_less(tmp_path: Path) -> None:
    """Two forward passes' worth of backward pass against one: 4 and 3 passes in all."""
    full, adapted = run(tmp_path), run(tmp_path, CONFIG.override(lora_rank=4))
    for result, passes in ((full, 4), (adapted, 3)):
        training = result["flops"] - result["eval_flops"]
        assert training == passes * 2 * result["tokens"] * 131_392
    assert rollouts(adapted)[0] == rollouts(full)[0], "the first rollouts are those of the base policy"


def test_several_updates_per_generation(tmp_path: Path) -> None:
    result = run(tmp_path, CONFIG.override(steps=4, updates_per_generation=2))
    assert result["steps"] == 4 and len(result["curve"]) == 2, "two phases of 32 rollouts each"
    single = run(tmp_path, CONFIG.override(steps=2, batch_size=32))
    assert result["tokens"] == pytest.approx(single["tokens"], rel=0.2)
    assert rollouts(result)[0] == rollouts(single)[0], "the same first 32 rollouts"
    with pytest.raises(ValueError, match="one generation phase takes 26 prompts .* but 24 of 24 training prompts"):
        run(tmp_path, CONFIG.override(updates_per_generation=13))


def test_evaluation_may_be_longer_than_training(tmp_path: Path) -> None:
    config = CONFIG.override(steps=1, max_completion_length=1, eval_max_completion_length=12, eval_temperature=0.0)
    short = run(tmp_path, config.override(eval_max_completion_length=None))
    longer = run(tmp_path, config)
    assert short["curve"] == longer["curve"]
    # 24 prompts of six tokens, and one token of completion; a forward pass through 131,392 parameters for each.
    assert short["eval_flops"] == 24 * (6 + 1) * 2 * 131_392 < longer["eval_flops"]


def test_other_data_than_the_search_had_are_refused(tmp_path: Path) -> None:
    right = load_task("toy_tasks:Digits").record("train")["sha256"]
    assert run(tmp_path, data={"train": right})["status"] == "scored"
    with pytest.raises(RuntimeError, match="the train data differ from those that the search was started with"):
        run(tmp_path, data={"train": "0" * 64})


def test_precision_reaches_trl(tmp_path: Path) -> None:
    def arguments(**settings):
        return train.trainer_arguments(CONFIG.override(**settings), 1, "transformers", tmp_path)

    assert (arguments().bf16, arguments().fp16) == (False, False), "on the CPU"
    assert arguments(mixed_precision="bf16").bf16
    mixed = run(tmp_path, CONFIG.override(mixed_precision="bf16", steps=1))
    assert mixed["status"] == "scored"


def test_engine_settings_reach_trl(tmp_path: Path) -> None:
    config = CONFIG.override(gpus=2, batch_size=64, micro_batch_size=8, vllm_memory=0.2, vllm_tensor_parallel=2)
    config = config.override(max_prompt_length=32, eval_max_completion_length=10, vllm_sleep=True)
    arguments = train.trainer_arguments(config, 1, "transformers", tmp_path, 42)
    assert arguments.gradient_accumulation_steps == 4, "64 completions are four passes of two GPUs with 8 each"
    assert arguments.vllm_gpu_memory_utilization == 0.2 and arguments.vllm_tensor_parallel_size == 2
    assert arguments.vllm_enable_sleep_mode and arguments.vllm_max_model_length == 42

    class Model:
        max_position_embeddings = 40

        def get_text_config(self):
            return self

    assert train.vllm_context(config, Model()) == 40
    Model.max_position_embeddings = 4096
    assert train.vllm_context(config, Model()) == 42, "32 of the prompt and 10 of the evaluation's completion"
    assert train.vllm_context(config.override(max_prompt_length=None), Model()) is None


def test_whether_there_is_a_gpu_is_asked_without_cuda() -> None:
    """The pool's server imports this file and forks; a CUDA that it had touched would fail in every child."""
    code = "import os, derl_gym.inner.train; print(os.environ['PYTORCH_NVML_BASED_CUDA_CHECK'])"
    environment = {k: v for k, v in os.environ.items() if k != "PYTORCH_NVML_BASED_CUDA_CHECK"}
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert shown.stdout.strip() == "1"
