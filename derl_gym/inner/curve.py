"""What TRL logs of a training's steps, as part of the curve.

The trainer logs every step and its state keeps it; nothing is computed here that TRL does not compute anyway.
"""

from __future__ import annotations

import math

import numpy as np
from trl.trainer.grpo_trainer import GRPOTrainer

LOGGED = {
    "completions/mean_length": "completion_length",
    "completions/clipped_ratio": "truncated",
    "entropy": "entropy",
    "kl": "kl",
    "clip_ratio/region_mean": "clip_ratio",
    "grad_norm": "grad_norm",
    "loss": "loss",
}
"""What TRL logs of a step (its page on GRPO, "Logged metrics") -> its name in the curve."""


def sampling_logp_difference(trainer: GRPOTrainer) -> float | None:
    """TRL's own measure of how far the engine's log-probabilities are from the model's; vLLM only."""
    key = "sampling/sampling_logp_difference/mean"
    logged = [entry[key] for entry in trainer.state.log_history if key in entry]
    return float(np.mean(logged)) if logged else None


def with_logged(rows: list[dict[str, float]], trainer: GRPOTrainer) -> list[dict[str, float]]:
    """The curve's rows with what TRL has logged of their steps, a phase's mean; what is not finite is left out."""
    args = trainer.args
    passes = args.steps_per_generation * args.num_iterations  # type: ignore[operator]
    logged: list[dict[str, list[float]]] = [{name: [] for name in LOGGED.values()} for _ in rows]
    for entry in trainer.state.log_history:
        phase = (entry["step"] - 1) * args.gradient_accumulation_steps // passes
        for key, name in LOGGED.items():
            value = entry.get(key)
            if value is not None and math.isfinite(value):
                logged[phase][name].append(float(value))
    means = [{name: sum(some) / len(some) for name, some in one.items() if some} for one in logged]
    return [row | mean for row, mean in zip(rows, means, strict=True)]
