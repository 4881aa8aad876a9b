"""FLOPs by hand: how many passes a token of training costs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from derl_gym.inner.config import InnerConfig

train = pytest.importorskip("derl_gym.inner.train")

from transformers import AutoModelForCausalLM  # noqa: E402

from derl_gym.inner.budget import Budget, flops_per_token, training_passes  # noqa: E402
from derl_gym.tasks import load_task  # noqa: E402

CASES = [
    # settings, LoRA, passes: one to generate, then forward and backward (three; two with adapters).
    ({}, False, 4),
    ({}, True, 3),
    ({"beta": 0.1}, False, 5),
    ({"gradient_checkpointing": True}, False, 5),
    ({"gradient_checkpointing": True, "beta": 0.1}, True, 5),
    ({"micro_batch_size": 8}, False, 4),
    ({"updates_per_generation": 4}, False, 5),  # the old log-probabilities
    ({"trl": {"num_iterations": 2}}, False, 8),  # 1 + 2 x 3 + the old log-probabilities
    ({"trl": {"num_iterations": 3}, "gradient_checkpointing": True, "beta": 0.1}, True, 12),  # 1 + 3 x 3 + 1 + 1
]


@pytest.mark.parametrize(("settings", "lora", "passes"), CASES)
def test_passes_by_hand(tmp_path: Path, settings: dict, lora: bool, passes: float) -> None:
    config = InnerConfig(batch_size=64, **settings)
    arguments = train.trainer_arguments(config, 0, "transformers", tmp_path)
    assert training_passes(arguments, lora) == passes


def test_flops_are_passes_times_two_operations_per_parameter_and_token() -> None:
    budget = Budget(InnerConfig(max_flops=7e9), parameters=1e6, passes=5)
    control = SimpleNamespace(should_training_stop=False)
    # 5 passes x 2 x 1e6 parameters = 1e7 per token.
    budget.on_step_end(None, SimpleNamespace(num_input_tokens_seen=699, global_step=1), control)
    assert budget.flops == 6.99e9 and not control.should_training_stop and budget.reason == ""
    budget.on_step_end(None, SimpleNamespace(num_input_tokens_seen=700, global_step=2), control)
    assert budget.flops == 7e9 and control.should_training_stop
    assert budget.reason == "stopped after 2 steps by the cap of 7e+09 FLOPs"


def test_embeddings_do_no_work() -> None:
    model = AutoModelForCausalLM.from_pretrained(load_task("toy_tasks:Digits").base_policy)
    everything = sum(p.numel() for p in model.parameters())
    assert flops_per_token(model) == everything - 21 * 64, "21 tokens of 64"
