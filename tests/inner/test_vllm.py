"""An inner run whose rollouts and evaluation come from vLLM, through the environment."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import derl_gym  # noqa: F401
from derl_gym.trials.ledger import Ledger

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]


def test_an_inner_run_trains_syncs_weights_and_scores(tmp_path: Path) -> None:
    envs = gym.make_vec(
        "DERL-Arithmetic-v0",
        num_envs=2,
        task="vllm_on_cpu:ArithmeticOnVllm",
        run_dir=str(tmp_path),
        cache="off",
        inner={"backend": "vllm", "steps": 8, "eval_examples": 64, "trl": {"vllm_gpu_memory_utilization": 0.3}},
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
