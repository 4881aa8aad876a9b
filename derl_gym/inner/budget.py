"""Caps on an inner run, looked at between optimiser steps: seconds, tokens, FLOPs.

A cap ends training; the policy is then evaluated as it is, as in the paper's appendix H. The hard wall-clock
limit that kills a hung process is the pool's business, not this file's.
"""

from __future__ import annotations

import time

from transformers import PreTrainedModel, TrainerCallback

from derl_gym.inner.config import InnerConfig

GENERATE_FLOPS = 2.0
"""Floating point operations per parameter and generated token: one forward pass."""
TRAIN_FLOPS = 6.0
"""Per parameter and trained token: forward and backward pass, as in ``transformers``' own estimate."""


def flops_per_token(model: PreTrainedModel) -> float:
    """Parameters that do work per token: all but the embeddings (``num_parameters(exclude_embeddings=True)``)."""
    return float(model.num_parameters(exclude_embeddings=True))


class Budget(TrainerCallback):
    """Stops training when a cap of the configuration is reached.

    Attributes:
        reason: Which cap was hit; empty while none was.
        tokens: Prompt and completion tokens seen so far (``TrainerState.num_input_tokens_seen``).
        flops: Estimated operations of generating and training on them.
    """

    def __init__(self, config: InnerConfig, parameters: float) -> None:
        self.config = config
        self.parameters = parameters
        self.reason = ""
        self.tokens = 0
        self.steps = 0
        self.started = time.monotonic()

    @property
    def flops(self) -> float:
        """Estimated operations so far."""
        return (GENERATE_FLOPS + TRAIN_FLOPS) * self.parameters * self.tokens

    def on_train_begin(self, args, state, control, **kwargs):
        """Start the clock."""
        self.started = time.monotonic()

    def on_step_end(self, args, state, control, **kwargs):
        """Look at the caps."""
        self.tokens = int(state.num_input_tokens_seen)
        self.steps = state.global_step
        seconds = time.monotonic() - self.started
        for cap, spent, unit in (
            (self.config.max_seconds, seconds, "seconds"),
            (self.config.max_tokens, self.tokens, "tokens"),
            (self.config.max_flops, self.flops, "FLOPs"),
        ):
            if cap is not None and spent >= cap:
                self.reason = f"stopped after {state.global_step} steps by the cap of {cap:g} {unit}"
                control.should_training_stop = True
                break
        return control
