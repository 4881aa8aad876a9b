"""Caps on an inner run, looked at between optimiser steps: seconds, tokens, FLOPs.

A cap ends training; the policy is then evaluated as it is, as in the paper's appendix H. The hard wall-clock
limit that kills a hung process is the pool's business, not this file's.

FLOPs are an estimate: passes over the tokens x 2 operations per parameter (Kaplan et al. 2020, section 2.1). Left
out: attention's part that grows with the square of the length, embeddings (and with them the output layer, where
it shares their weights), padding, the optimiser, the moving of weights, and the context of an episode that an engine
without a cache across turns (transformers) reads again at every turn.
"""

from __future__ import annotations

import time

from transformers import PreTrainedModel, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig

from derl_gym.inner.config import InnerConfig
from derl_gym.inner.ranks import gathered

FORWARD_FLOPS = 2.0
"""Floating point operations per parameter and token of one forward pass: a multiplication and an addition."""


def flops_per_token(model: PreTrainedModel) -> float:
    """Parameters that do work per token: all but the embeddings (``num_parameters(exclude_embeddings=True)``)."""
    return float(model.num_parameters(exclude_embeddings=True))


def training_passes(arguments: GRPOConfig, lora: bool) -> float:
    """What one prompt or completion token of training costs, in forward passes.

    One to generate it. Then, for each time that it is trained on, a forward pass and a backward pass of twice its
    cost; with adapters once its cost, since the other weights get no gradient; and another forward pass with
    gradient checkpointing. Once more for the reference model where there is a KL penalty, and once for the old
    log-probabilities where ``trl`` asks for them: several updates per generation, or a correction for vLLM.
    """
    generate_every = arguments.steps_per_generation * arguments.num_iterations  # type: ignore[operator]
    corrected = arguments.use_vllm and arguments.vllm_importance_sampling_correction
    old = arguments.gradient_accumulation_steps % generate_every != 0 or corrected
    update = 1 + (1 if lora else 2) + bool(arguments.gradient_checkpointing)
    return 1 + arguments.num_iterations * update + (arguments.beta != 0) + old


class Budget(TrainerCallback):
    """Stops training when a cap of the configuration is reached.

    Attributes:
        reason: Which cap was hit; empty while none was.
        tokens: Prompt and completion tokens seen so far, by all ranks (``TrainerState.num_input_tokens_seen``).
        steps: Optimiser steps done.
        flops: Estimated operations of generating and training on them.
        earlier: Seconds of training before the checkpoint that this one goes on from.
    """

    def __init__(self, config: InnerConfig, parameters: float, passes: float) -> None:
        self.config = config
        self.parameters = parameters
        self.passes = passes
        self.reason = ""
        self.tokens = 0
        self.steps = 0
        self.earlier = 0.0
        self.started = time.monotonic()

    @property
    def flops(self) -> float:
        """Estimated operations so far."""
        return self.passes * FORWARD_FLOPS * self.parameters * self.tokens

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of training so far."""
        return self.earlier + time.monotonic() - self.started

    def on_train_begin(self, args, state, control, **kwargs):
        """Start the clock; what was counted before a checkpoint counts."""
        self.started = time.monotonic()
        self.tokens = int(state.num_input_tokens_seen)
        self.steps = state.global_step

    def on_step_end(self, args, state, control, **kwargs):
        """Look at the caps."""
        self.tokens = int(state.num_input_tokens_seen)
        self.steps = state.global_step
        seconds = self.seconds
        if self.config.max_seconds is not None:  # clocks differ, and the ranks have to stop at the same step
            seconds = gathered(seconds)[0]
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
