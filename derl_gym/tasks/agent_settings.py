"""Settings that ALFWorld's and ScienceWorld's tasks share: the paper's, and RLVMR's where it refers to them."""

from __future__ import annotations

from derl_gym.inner.config import InnerConfig
from derl_gym.tasks.base import Preset

POLICY = "Qwen/Qwen2.5-1.5B-Instruct"
"""The paper's inner policy of both; to be warm-started first: ``derl-gym warmstart``, then ``inner.policy``."""

INNER = InnerConfig(
    batch_size=128,
    num_generations=8,
    micro_batch_size=1,
    max_completion_length=512,
    max_episode_tokens=16384,
    max_turns=30,
    world_workers=4,
    learning_rate=1e-6,
    beta=0.01,
    eval_temperature=0.4,
    eval_batch_size=64,
    gradient_checkpointing=True,
    vllm_memory=0.2,
    timeout=24 * 3600.0,
)
"""16 games of eight rollouts per update, which is an epoch in RLVMR's unit. By arithmetic, not by measurement, the 1.5B
policy with episodes of 16k tokens takes about 74 of 80 GB."""

SINGLE_GPU = {
    "batch_size": 64,
    "lora_rank": 32,
    "lora_alpha": 64.0,
    "dtype": "bfloat16",
    "learning_rate": 2e-5,
    "eval_examples": 20,
    "max_seconds": 2 * 3600.0,
}

SMOKE = Preset(
    "one update of a 135M policy on two CPU cores, three turns per game: every code path, no result",
    inner={
        "policy": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "steps": 1,
        "batch_size": 4,
        "num_generations": 2,
        "micro_batch_size": 2,
        "max_turns": 3,
        "max_completion_length": 32,
        "max_episode_tokens": 4096,
        "world_workers": 1,
        "eval_examples": 1,
        "eval_batch_size": 8,
        "gradient_checkpointing": False,
        "learning_rate": 1e-5,
        "timeout": 3600.0,
    },
    final_inner={"steps": 1, "eval_examples": 1, "timeout": 3600.0},
    outer_steps=1,
    group_size=2,
)
