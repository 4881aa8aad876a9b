"""Settings that contradict each other are refused by name, before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from derl_gym.inner.config import InnerConfig

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"updates_per_generation": 0}, "updates_per_generation must be a whole number of at least 1, not 0"),
    ({"prompt_style": "chatty"}, "prompt_style must be one of auto, chat, plain, not 'chatty'"),
    ({"max_prompt_length": 0}, "max_prompt_length must be a whole number of at least 1 or None, not 0"),
    ({"eval_max_completion_length": 0}, "eval_max_completion_length must be"),
    ({"eval_samples": 0}, "eval_samples must be a whole number of at least 1"),
    ({"eval_samples": 4, "eval_temperature": 0}, r"eval_samples is 4, but greedy evaluation \(eval_temperature=0\)"),
    ({"max_flops_ratio": 0.0}, "max_flops_ratio must be a number above 0 or None"),
    ({"lora_rank": 0}, "lora_rank must be a whole number of at least 1 or None"),
    ({"lora_alpha": 0}, "lora_alpha must be a number above 0"),
    ({"lora_rank": 4, "lora_targets": "q_proj,,"}, "lora_targets must be 'all-linear' or names separated by commas"),
    ({"mixed_precision": "fp16", "dtype": "float16"}, "mixed_precision='fp16' needs weights in float32"),
    ({"gpus": 0}, "gpus must be a whole number of at least 1"),
    ({"gpus": 3}, r"batch_size \(64\) must be a multiple of what one pass takes: 3 GPUs"),
    ({"gpus": 4, "micro_batch_size": 32}, "what one pass takes: 32 completions on each of 4 GPUs"),
    ({"vllm_memory": 0}, "vllm_memory must be a number above 0"),
    ({"vllm_memory": 1.5}, "vllm_memory is a share of the GPU's memory, at most 1, not 1.5"),
    ({"vllm_tensor_parallel": 2}, r"vllm_tensor_parallel \(2\) must divide inner.gpus \(1\)"),
    ({"gpus": 4, "vllm_tensor_parallel": 3}, "must divide inner.gpus"),
    ({"trl": {"beta": 0.9}}, r"inner.trl must leave out 'beta': set inner.beta instead"),
    ({"trl": {"top_k": 3, "optim": "sgd"}}, r"inner.trl must leave out 'optim': set inner.optimizer instead"),
    ({"trl": {"max_steps": 5}}, r"inner.trl must leave out 'max_steps': set inner.steps instead"),
    ({"trl": {"bf16": True}}, r"inner.trl must leave out 'bf16': set inner.mixed_precision instead"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_a_setting_that_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="inner." + message if message.startswith(tuple(settings)) else message):
        InnerConfig(**settings)


def test_settings_that_can_be() -> None:
    InnerConfig(gpus=4, micro_batch_size=8, vllm_tensor_parallel=2, eval_samples=4, lora_rank=16, vllm_memory=1)
    InnerConfig(lora_rank=8, lora_targets="q_proj, v_proj", dtype="float16", mixed_precision="fp16")
    assert InnerConfig() == InnerConfig().override(updates_per_generation=1, prompt_style="auto", gpus=1)
