"""One inner run: stock ``trl.GRPOTrainer`` under one reward program, then the evaluation.

Runs only in a process of its own (``trials/`` forks it); importing this file loads torch and trl. It knows
nothing of ledgers, retries or outer steps: a JSON payload comes in, a JSON result goes out.
"""

from __future__ import annotations

import importlib.util
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from derl_gym.hub import use_cache_without_network
from derl_gym.inner.budget import GENERATE_FLOPS, Budget, flops_per_token
from derl_gym.inner.config import InnerConfig
from derl_gym.inner.evaluate import evaluate
from derl_gym.inner.generate import transformers_generate, vllm_generate
from derl_gym.inner.result import InnerResult
from derl_gym.programs import RewardProgram, UndefinedReward
from derl_gym.tasks.base import Example, Task, load_task

LARGEST_REWARD = 1e15
"""TRL standardises rewards in float32, where the square of a larger one would overflow."""


class ProgramReward:
    """A reward program as TRL's reward function: the whole batch at once.

    Attributes:
        rows: Per call, the mean reward and the mean of every primitive over the batch.
    """

    __name__ = "reward_program"

    def __init__(self, program: RewardProgram, task: Task, examples: list[Example]) -> None:
        self.program, self.task, self.examples = program, task, examples
        self.rows: list[dict[str, float]] = []

    def __call__(self, completions: list[Any], example_index: list[int], **_: Any) -> list[float | None]:
        """Rewards of N completions.

        Raises:
            UndefinedReward: when the program is undefined on some completion, or too large for float32.
        """
        texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
        examples = [self.examples[i] for i in example_index]
        values = np.asarray(self.task.primitive_values(texts, examples), dtype=np.float64)
        rewards = self.program(values)
        row = int(np.abs(rewards).argmax())
        if abs(rewards[row]) > LARGEST_REWARD:
            raise UndefinedReward(f"a reward of {rewards[row]:.3g} is beyond {LARGEST_REWARD:g}", row)
        means = zip((p.name for p in self.task.primitives), values.mean(axis=0), strict=True)
        self.rows.append({"reward": float(rewards.mean()), **{name: float(mean) for name, mean in means}})
        return rewards.tolist()


def run(payload: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train and evaluate one inner policy.

    Args:
        payload: ``task`` (``"module:Class"``), ``task_options``, ``flip``, ``program``, ``primitives`` (allowed
            names or ``None``), ``policy`` (hub name or folder), ``config`` (InnerConfig fields), ``seed``,
            ``train_split``, ``eval_split`` (``None``: train only) and ``save_policy``.
        folder: Where the trained policy is kept, as ``folder/policy``, when ``save_policy`` is set.

    Returns:
        :class:`InnerResult` as a dictionary; its status is ``"scored"`` or ``"invalid"``. Whatever else goes
        wrong is raised: that is a failed run, and the pool's business.
    """
    task = load_task(payload["task"], payload.get("task_options"), payload.get("flip", ()))
    config = InnerConfig(**payload["config"])
    program = RewardProgram.parse(payload["program"], k=len(task.primitives), primitives=payload.get("primitives"))
    examples = task.load(payload["train_split"])
    seed = int(payload["seed"])
    backend = resolve_backend(config.backend)

    set_seed(seed)
    use_cache_without_network(payload["policy"])
    tokenizer = AutoTokenizer.from_pretrained(payload["policy"], padding_side="left")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(payload["policy"], dtype=getattr(torch, config.dtype))
    reward = ProgramReward(program, task, examples)
    budget = Budget(config, flops_per_token(model))
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=trainer_arguments(config, seed, backend, folder),
        train_dataset=Dataset.from_dict(
            {"prompt": [e["prompt"] for e in examples], "example_index": list(range(len(examples)))}
        ),
        processing_class=tokenizer,
        callbacks=[budget],
    )
    # The vLLM engine seeds the process with its rank, whatever args.seed says (trl#7040).
    set_seed(seed)

    started = time.monotonic()
    invalid = ""
    try:
        trainer.train()
    except UndefinedReward as error:
        invalid = f"undefined reward at step {budget.steps + 1}: {error}"
    spent: dict[str, Any] = {
        "curve": reward.rows,
        "steps": budget.steps,
        "tokens": budget.tokens,
        "flops": budget.flops,
        "train_seconds": time.monotonic() - started,
        "backend": backend,
        "sampling_logp_difference": sampling_logp_difference(trainer),
    }
    if invalid:
        return InnerResult("invalid", 0.0, invalid, peak_memory=peak_memory(), **spent).to_dict()

    if backend == "vllm":
        generate = vllm_generate(trainer, tokenizer, config)
    else:
        generate = transformers_generate(model, tokenizer, config)
    scores: dict[str, Any] = {"score": None}
    if payload["eval_split"] is not None:
        scores = evaluate(task, payload["eval_split"], generate, config, seed)
        spent["flops"] += GENERATE_FLOPS * budget.parameters * scores.pop("tokens")
    policy = ""
    if payload.get("save_policy"):
        policy = str(folder / "policy")
        model.save_pretrained(policy)
        tokenizer.save_pretrained(policy)
    return InnerResult(
        "scored", reason=budget.reason, policy=policy, peak_memory=peak_memory(), **scores, **spent
    ).to_dict()


def resolve_backend(backend: str) -> str:
    """``"auto"`` is vLLM where it is installed and there is a GPU for it, else transformers."""
    if backend == "auto":
        return "vllm" if torch.cuda.is_available() and importlib.util.find_spec("vllm") else "transformers"
    if backend == "vllm" and importlib.util.find_spec("vllm") is None:
        raise RuntimeError("inner.backend is 'vllm' but vLLM is not installed: pip install 'derl-gym[vllm]'")
    return backend


def trainer_arguments(config: InnerConfig, seed: int, backend: str, folder: Path) -> GRPOConfig:
    """Our settings in TRL's words. ``config.trl`` has the last word."""
    gpu = torch.cuda.is_available()
    micro = config.micro_batch_size or config.batch_size
    arguments: dict[str, Any] = {
        "output_dir": str(folder / "trainer"),
        "seed": seed,
        "data_seed": seed,
        "use_cpu": not gpu,
        "bf16": gpu and config.dtype == "bfloat16",
        "fp16": gpu and config.dtype == "float16",
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "max_steps": -1 if config.epochs is not None else config.steps,
        "num_train_epochs": config.epochs if config.epochs is not None else 1,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": config.batch_size // micro,
        "gradient_checkpointing": config.gradient_checkpointing,
        "num_generations": config.num_generations,
        "max_completion_length": config.max_completion_length,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": config.lr_scheduler,
        "optim": config.optimizer,
        "adam_epsilon": config.adam_epsilon,
        "max_grad_norm": config.max_grad_norm,
        "temperature": config.temperature,
        "beta": config.beta,
        "loss_type": config.loss_type,
        "scale_rewards": config.scale_rewards,
        "use_vllm": backend == "vllm",
    }
    return GRPOConfig(**(arguments | config.trl))


def sampling_logp_difference(trainer: GRPOTrainer) -> float | None:
    """TRL's own measure of how far the engine's log-probabilities are from the model's; vLLM only."""
    key = "sampling/sampling_logp_difference/mean"
    logged = [entry[key] for entry in trainer.state.log_history if key in entry]
    return float(logged[-1]) if logged else None


def peak_memory() -> int:
    """Peak resident bytes of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
