"""Settings of one inner run. Light on purpose: no torch here, the environment's process reads it.

Every field reaches the run; what is not named here goes through ``trl`` straight to ``trl.GRPOConfig``.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from derl_gym.fields import check_fields

PASSED_ON = {
    "num_generations": "num_generations",
    "max_completion_length": "max_completion_length",
    "learning_rate": "learning_rate",
    "lr_scheduler": "lr_scheduler_type",
    "optimizer": "optim",
    "adam_epsilon": "adam_epsilon",
    "max_grad_norm": "max_grad_norm",
    "temperature": "temperature",
    "beta": "beta",
    "loss_type": "loss_type",
    "scale_rewards": "scale_rewards",
    "gradient_checkpointing": "gradient_checkpointing",
    "vllm_memory": "vllm_gpu_memory_utilization",
    "vllm_tensor_parallel": "vllm_tensor_parallel_size",
    "vllm_sleep": "vllm_enable_sleep_mode",
}
"""Settings that ``trl.GRPOConfig`` takes as they are -> their names there."""

COMPUTED = {
    "max_steps": "steps",
    "num_train_epochs": "epochs",
    "per_device_train_batch_size": "micro_batch_size",
    "gradient_accumulation_steps": "batch_size",
    "generation_batch_size": "batch_size",
    "steps_per_generation": "updates_per_generation",
    "bf16": "mixed_precision",
    "fp16": "mixed_precision",
    "use_vllm": "backend",
    "vllm_max_model_length": "max_prompt_length",
    "save_strategy": "checkpoint_seconds",
}
"""Arguments of ``trl.GRPOConfig`` that ``train.trainer_arguments`` computes -> the setting that decides them."""

CLOCKWORK = ("timeout", "checkpoint_seconds")
"""Settings on which no score depends: they may change when a search is taken up again."""


@dataclasses.dataclass(frozen=True)
class InnerConfig:
    """One inner run: GRPO of the inner policy under one reward program (paper sections 3.3 and 4.2).

    The defaults are those of a small model on one CPU core; each task brings its own.
    """

    policy: str = ""
    """Model that the run starts from: hub name or folder. Empty: the task's base policy."""
    steps: int = 32
    """Optimiser steps. Ignored when ``epochs`` is given."""
    epochs: float | None = None
    """Passes over the training split, instead of ``steps``."""
    batch_size: int = 64
    """Completions per optimiser step, on all GPUs together: prompts x ``num_generations``."""
    num_generations: int = 8
    """Rollouts per prompt, the GRPO group (the paper uses 8)."""
    micro_batch_size: int | None = None
    """Completions per forward pass on one GPU; ``None``: the whole batch (a GPU's part of it) at once."""
    updates_per_generation: int = 1
    """Optimiser steps on the rollouts of one generation phase, each on a batch of its own. The later ones are off
    policy: TRL then corrects with the log-probabilities that the phase began with."""
    prompt_style: Literal["auto", "chat", "plain"] = "auto"
    """"chat": prompts go through the chat template. "plain": text as it is. "auto": chat for a model that was
    taught to end its turns as its template does, plain for a base model."""
    max_prompt_length: int | None = None
    """Tokens of a prompt. Longer ones are left out of training and count as unsolved in evaluation. Agent tasks have
    ``max_episode_tokens`` instead."""
    max_completion_length: int = 16
    """New tokens per completion; of an agent task, per turn."""
    eval_max_completion_length: int | None = None
    """The same in evaluation; ``None``: as in training."""
    max_turns: int = 30
    """Turns of an episode of an agent task; one that takes more has failed to solve its game."""
    max_episode_tokens: int | None = None
    """Tokens of an episode of an agent task, observations and all; ``None``: the policy's whole context. An episode
    without room for one more reply ends, and has failed to solve its game."""
    world_workers: int = 2
    """Processes of one inner run that play an agent task's world; how many episodes each can hold is the world's."""
    algorithm: Literal["grpo", "rlvmr", "gigpo"] = "grpo"
    """What credits an agent task's steps: "grpo", the program's reward alone, or a published baseline on top of it;
    see ``credit.py``."""
    learning_rate: float = 1e-3
    lr_scheduler: str = "constant"
    optimizer: str = "adamw_torch"
    """Any ``transformers`` optimiser name, ``"sgd"`` for example."""
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    temperature: float = 1.0
    """Sampling temperature of the rollouts."""
    beta: float = 0.0
    """Weight of the KL penalty to the run's starting policy."""
    loss_type: str = "grpo"
    """TRL's name of the loss; ``"grpo"`` is the paper's."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """How advantages are standardised. The equivalence cache needs ``"group"``."""
    backend: Literal["auto", "transformers", "vllm"] = "auto"
    """Generation engine: vLLM colocated where it is installed, else ``transformers``."""
    eval_temperature: float = 1.0
    """Sampling temperature of the evaluation; 0 is greedy."""
    eval_batch_size: int = 512
    """Prompts per generation call of the evaluation (transformers backend)."""
    eval_samples: int = 1
    """Completions per evaluated example; the score is pass@1, their mean."""
    eval_examples: int | None = None
    """Evaluate only the first so many examples of the split, of each benchmark where it has some; ``None``: all."""
    max_seconds: float | None = None
    """Training stops here and the policy is evaluated as it is (a cap, not a failure)."""
    max_tokens: int | None = None
    """The same for prompt and completion tokens seen in training."""
    max_flops: float | None = None
    """The same for estimated training FLOPs (paper appendix H caps them)."""
    max_flops_ratio: float | None = None
    """The same, as a multiple of what training with the outcome reward takes: the environment measures that first."""
    timeout: float | None = 3600.0
    """Wall-clock seconds after which the whole process group is killed: a failed run, retried."""
    checkpoint_seconds: float | None = 1800.0
    """Seconds of training after which its state is saved, again and again. A run that was killed goes on from there,
    when it is retried and when the command is called again. ``None``: never; 0: after every generation phase. It takes
    disk for the weights and the optimiser's state, for a moment twice."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the trained weights. At a learning rate of 1e-6 an update is lost in bfloat16's rounding: train all
    weights in float32 and compute in ``mixed_precision``, or train adapters on bfloat16 weights."""
    mixed_precision: Literal["auto", "no", "bf16", "fp16"] = "auto"
    """Precision of the computation; "auto": bf16 on a GPU, none on the CPU."""
    gradient_checkpointing: bool = False
    lora_rank: int | None = None
    """Train adapters of this rank instead of all weights; the trained policy is kept merged."""
    lora_alpha: float = 32.0
    """Adapters count ``lora_alpha / lora_rank`` times."""
    lora_targets: str = "all-linear"
    """Modules that get adapters, as in ``peft.LoraConfig``: "all-linear", or names separated by commas."""
    gpus: int = 1
    """Processes of one inner run, each on a GPU of its own, in data parallel."""
    vllm_memory: float = 0.3
    """Share of the GPU's memory that vLLM takes."""
    vllm_tensor_parallel: int = 1
    """GPUs that share one vLLM engine; must divide ``gpus``."""
    vllm_sleep: bool = False
    """Give vLLM's memory back during the optimiser's steps."""
    trl: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Further arguments of ``trl.GRPOConfig``, by their own names. Those that a setting above decides are refused."""

    def __post_init__(self) -> None:
        ones = "steps batch_size micro_batch_size updates_per_generation max_prompt_length max_completion_length"
        ones += " eval_max_completion_length eval_batch_size eval_samples eval_examples lora_rank gpus"
        ones += " max_turns max_episode_tokens world_workers"
        positive = "epochs max_seconds max_tokens max_flops max_flops_ratio timeout temperature lora_alpha vllm_memory"
        free = "learning_rate adam_epsilon max_grad_norm beta eval_temperature checkpoint_seconds"
        least: dict[str, float] = {
            **dict.fromkeys([*ones.split(), "vllm_tensor_parallel"], 1),
            **dict.fromkeys(free.split(), 0),
        }
        check_fields(self, "inner.", at_least=least, above=dict.fromkeys(positive.split(), 0))
        for field, name in [*PASSED_ON.items(), *((field, name) for name, field in COMPUTED.items())]:
            if name in self.trl:
                raise ValueError(f"inner.trl must leave out {name!r}: set inner.{field} instead")
        if self.num_generations < 2:
            raise ValueError("inner.num_generations must be at least 2: GRPO compares rollouts of one prompt")
        if self.batch_size % self.num_generations:
            raise ValueError(
                f"inner.batch_size ({self.batch_size}) must be a multiple of inner.num_generations "
                f"({self.num_generations}): a batch holds whole groups"
            )
        if self.micro_batch_size is not None and self.batch_size % self.micro_batch_size:
            raise ValueError(f"inner.micro_batch_size must divide batch_size, not {self.micro_batch_size!r}")
        if self.batch_size % ((self.micro_batch_size or 1) * self.gpus):
            per_pass = f"{self.micro_batch_size} completions on each of " if self.micro_batch_size else ""
            raise ValueError(
                f"inner.batch_size ({self.batch_size}) must be a multiple of what one pass takes: {per_pass}"
                f"{self.gpus} GPUs"
            )
        if self.eval_samples > 1 and self.eval_temperature == 0:
            raise ValueError(
                f"inner.eval_samples is {self.eval_samples}, but greedy evaluation (eval_temperature=0) would "
                "draw the same completion each time"
            )
        if self.lora_rank is not None and not all(name.strip() for name in self.lora_targets.split(",")):
            raise ValueError(
                f"inner.lora_targets must be 'all-linear' or names separated by commas, not {self.lora_targets!r}"
            )
        if self.mixed_precision == "fp16" and self.dtype == "float16" and self.lora_rank is None:
            raise ValueError("inner.mixed_precision='fp16' needs weights in float32: its loss scaling refuses float16")
        if self.vllm_memory > 1:
            raise ValueError(f"inner.vllm_memory is a share of the GPU's memory, at most 1, not {self.vllm_memory:g}")
        if self.gpus % self.vllm_tensor_parallel:
            raise ValueError(
                f"inner.vllm_tensor_parallel ({self.vllm_tensor_parallel}) must divide inner.gpus ({self.gpus})"
            )

    def override(self, **changes: Any) -> InnerConfig:
        """A copy with some fields changed.

        Raises:
            ValueError: for a name that is no field, or a value that is out of range.
        """
        known = {field.name for field in dataclasses.fields(self)}
        unknown = sorted(set(changes) - known)
        if unknown:
            raise ValueError(f"unknown inner setting {', '.join(unknown)}; expected some of {', '.join(sorted(known))}")
        return dataclasses.replace(self, **changes)
