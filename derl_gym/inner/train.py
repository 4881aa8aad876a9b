"""One inner run: stock ``trl.GRPOTrainer`` under one reward program, then the evaluation.

Runs only in a process of its own (``trials/`` forks it); importing this file loads torch and trl. It knows
nothing of ledgers, retries or outer steps: a JSON payload comes in, a JSON result goes out.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# This file is loaded by a process that forks the runs, and CUDA does not survive a fork: whether there is a GPU has to
# be found out without it (PyTorch's notes on environment variables).
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, set_seed
from trl.trainer import grpo_trainer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from derl_gym.hub import use_cache_without_network
from derl_gym.inner.budget import FORWARD_FLOPS, Budget, flops_per_token, training_passes
from derl_gym.inner.checkpoint import Checkpoints
from derl_gym.inner.config import PASSED_ON, InnerConfig
from derl_gym.inner.curve import sampling_logp_difference, with_logged
from derl_gym.inner.episodes import Conversation, EpisodeTrainer, Playing, limits_of, worlds_of
from derl_gym.inner.evaluate import check_data, evaluate, load_tokenizer
from derl_gym.inner.generate import (
    Engine,
    autocast_dtype,
    completion_length,
    resolve_backend,
    transformers_generate,
    transformers_sample,
    vllm_context,
    vllm_generate,
    vllm_sample,
)
from derl_gym.inner.marks import FOLDER
from derl_gym.inner.prompts import Prompt, Style, longest_prompt, prompt_of, resolve_style, stop_ids, token_ids
from derl_gym.inner.provenance import configuration_hash, installation
from derl_gym.inner.ranks import device_name, gathered, keep_gpus, run_ranks, world
from derl_gym.inner.result import InnerResult
from derl_gym.programs import RewardProgram, UndefinedReward
from derl_gym.tasks.agent import AgentTask
from derl_gym.tasks.base import Example, Task, load_task
from derl_gym.tasks.worlds import WorldPool

INSTALLED = installation()
"""Read when this file is loaded: the source files may change while the process that forks the runs lives."""
LARGEST_REWARD = 1e15
"""TRL standardises rewards in float32, where the square of a larger one would overflow."""


class ProgramReward:
    """A reward program as TRL's reward function: the whole batch at once, each rank its part.

    Attributes:
        rows: Per call, the mean reward and the mean of every primitive over the batch of all ranks.
        last: This rank's rewards of the last call.
    """

    __name__ = "reward_program"

    def __init__(self, program: RewardProgram, task: Task, examples: list[Example]) -> None:
        self.program, self.task, self.examples = program, task, examples
        self.rows: list[dict[str, float]] = []
        self.last: list[float] = []

    def __call__(
        self, completions: list[Any], example_index: list[int], episode: list[Any] | None = None, **_: Any
    ) -> list[float | None]:
        """Rewards of N completions, or of N episodes where the task plays some.

        Raises:
            UndefinedReward: when the program is undefined on some completion, or too large for float32.
        """
        texts = episode or [c if isinstance(c, str) else c[-1]["content"] for c in completions]
        examples = [self.examples[i] for i in example_index]
        values = np.asarray(self.task.primitive_values(texts, examples), dtype=np.float64)
        error, rewards = None, np.empty(0)
        try:
            rewards = self._rewards(values)
        except UndefinedReward as undefined:
            error = undefined
        # Every rank learns of another's error: it would wait for that rank in vain.
        for first in gathered(error):
            if first is not None:
                raise first
        means = np.mean(gathered([float(rewards.mean()), *values.mean(axis=0).tolist()]), axis=0)
        names = ["reward", *(p.name for p in self.task.primitives)]
        self.rows.append(dict(zip(names, means.tolist(), strict=True)))
        self.last = [float(reward) for reward in rewards]
        return list(self.last)

    def _rewards(self, values: np.ndarray) -> np.ndarray:
        rewards = self.program(values)
        row = int(np.abs(rewards).argmax())
        if abs(rewards[row]) > LARGEST_REWARD:
            raise UndefinedReward(f"a reward of {rewards[row]:.3g} is beyond {LARGEST_REWARD:g}", row)
        return rewards


def run(payload: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train and evaluate one inner policy.

    Args:
        payload: ``task`` (``"module:Class"``), ``task_options``, ``flip``, ``program``, ``primitives`` (allowed
            names or ``None``), ``policy`` (hub name or folder), ``config`` (InnerConfig fields), ``seed``,
            ``train_split``, ``eval_split`` (``None``: train only), ``save_policy``, and ``data``: what the splits'
            hashes have to be (split -> sha256 of ``Task.record``; unnamed ones are not checked). And, where they
            are wanted, ``until`` and ``continues``: see :class:`derl_gym.inner.checkpoint.Checkpoints`.
        folder: Where the trained policy is kept, as ``folder/policy``, when ``save_policy`` is set. A run that was
            killed goes on from the last whole checkpoint in it.

    Returns:
        :class:`InnerResult` as a dictionary; its status is ``"scored"`` or ``"invalid"``. Whatever else goes
        wrong is raised: that is a failed run, and the pool's business.
    """
    config = InnerConfig(**payload["config"])
    check_trl(config)
    if config.gpus > 1:
        return run_ranks(_run, payload, folder, config.gpus)
    return _run(payload, folder)


def _run(payload: dict[str, Any], folder: Path) -> dict[str, Any]:
    """One process of the run: all of it, or one rank."""
    config = InnerConfig(**payload["config"])
    keep_gpus(config.gpus)
    task = load_task(payload["task"], payload.get("task_options"), payload.get("flip", ()))
    with worlds_of(task, config) as pool:
        return _train_and_score(config, task, pool, payload, folder)


def _train_and_score(
    config: InnerConfig, task: Task, pool: WorldPool | None, payload: dict[str, Any], folder: Path
) -> dict[str, Any]:
    program = RewardProgram.parse(payload["program"], k=len(task.primitives), primitives=payload.get("primitives"))
    check_data(task, payload.get("data", {}), [payload["train_split"], payload["eval_split"]])
    seed = int(payload["seed"])
    backend = resolve_backend(config.backend)

    set_seed(seed)
    use_cache_without_network(payload["policy"])
    tokenizer = load_tokenizer(payload["policy"])
    model = AutoModelForCausalLM.from_pretrained(payload["policy"], dtype=getattr(torch, config.dtype))
    style = resolve_style(config.prompt_style, tokenizer, stop_ids(model.generation_config, tokenizer))
    examples = task.load(payload["train_split"])
    arguments = trainer_arguments(config, seed, backend, folder, vllm_context(config, model.config))
    reward = ProgramReward(program, task, examples)
    parameters = flops_per_token(model)
    budget = Budget(config, parameters, training_passes(arguments, config.lora_rank is not None))
    checkpoints = Checkpoints(payload, folder, config, reward.rows, budget)
    grpo_trainer.VLLMGeneration = Engine  # type: ignore[attr-defined]
    settings: dict[str, Any] = {
        "model": model,
        "reward_funcs": reward,
        "args": arguments,
        "processing_class": tokenizer,
        "callbacks": [budget, checkpoints],  # in this order: a training that a cap has ended does not pause
        "peft_config": adapters(config),
    }
    playing = None
    if isinstance(task, AgentTask):
        assert pool is not None
        playing = Playing(task, pool, Conversation(tokenizer, style, stop_ids(model.generation_config, tokenizer)))
        limits = limits_of(config, model.config, config.max_completion_length)
        prompts = enough([str(i) for i in range(len(examples))], config)
        trainer = EpisodeTrainer(playing, examples, limits, config.algorithm, train_dataset=prompts, **settings)
    else:
        prompts = training_prompts(examples, style, tokenizer, model, config)
        trainer = GRPOTrainer(train_dataset=prompts, **settings)
    trainer.remove_callback(PrinterCallback)  # what is logged goes into the curve
    # The vLLM engine seeds the process with its rank, whatever args.seed says (trl#7040). Ranks must not draw the same
    # rollouts, but those that share an engine have to.
    set_seed(seed + world()[0] // config.vllm_tensor_parallel)

    invalid = ""
    try:
        trainer.train(resume_from_checkpoint=checkpoints.last())
    except UndefinedReward as error:
        invalid = f"undefined reward at step {budget.steps + 1}: {error}"
    spent: dict[str, Any] = {
        "curve": with_logged(reward.rows, trainer),
        "steps": budget.steps,
        "of_steps": checkpoints.of_steps,
        "tokens": budget.tokens,
        "flops": budget.flops,
        "train_seconds": budget.seconds,
        "backend": backend,
        "prompt_style": style,
        "sampling_logp_difference": sampling_logp_difference(trainer),
        "device": device_name(trainer.accelerator.device),
        "config": configuration_hash(payload),
        **INSTALLED,
    }
    if invalid:
        return InnerResult("invalid", 0.0, invalid, peak_memory=peak_memory(), **spent).to_dict()

    scores: dict[str, Any] = {"score": None}
    if payload["eval_split"] is not None:
        generate: Any
        longest = completion_length(config)
        limit = None
        if playing is not None:
            sample = vllm_sample(trainer, config) if backend == "vllm" else None
            sample = sample or transformers_sample(merged(trainer), tokenizer, config)
            generate = playing.for_evaluation(sample, limits_of(config, model.config, longest))
        else:
            limit = longest_prompt(config, model.config, longest)
            if backend == "vllm":
                generate = vllm_generate(trainer, tokenizer, config)
            else:
                generate = transformers_generate(merged(trainer), tokenizer, config)
        scores = evaluate(
            task, payload["eval_split"], generate, config, seed, tokenizer=tokenizer, style=style, limit=limit
        )
        spent["eval_flops"] = FORWARD_FLOPS * parameters * scores.pop("tokens")
        spent["flops"] += spent["eval_flops"]
    policy = ""
    if payload.get("save_policy"):
        policy = str(folder / "policy")
        if world()[0] == 0:
            merged(trainer).save_pretrained(policy)
            tokenizer.save_pretrained(policy)
    reason = budget.reason or checkpoints.reason
    return InnerResult(
        "scored", reason=reason, policy=policy, peak_memory=peak_memory(), before=checkpoints.before, **scores, **spent
    ).to_dict()


def training_prompts(
    examples: list[Example],
    style: Style,
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    config: InnerConfig,
) -> Dataset:
    """The prompts that are short enough, each with the index of its example.

    Raises:
        ValueError: none is, or they are not :func:`enough` (``trl`` would train no step).
    """
    limit = longest_prompt(config, model.config, config.max_completion_length)
    prompts = [prompt_of(example, style) for example in examples]
    lengths = [len(ids) for ids in token_ids(prompts, tokenizer)]
    kept = [i for i, length in enumerate(lengths) if limit is None or length <= limit]
    if not kept:
        raise ValueError(
            f"all {len(examples)} training prompts are longer than {limit} tokens; the shortest has {min(lengths)}"
        )
    where = "" if limit is None else f" at a length of at most {limit} tokens"
    return enough(prompts, config, kept, where)


def enough(
    prompts: Sequence[Prompt], config: InnerConfig, kept: Sequence[int] | None = None, where: str = ""
) -> Dataset:
    """Prompts as ``trl`` takes them: those that are ``kept`` (``None``: all), each with the index of its example.

    Raises:
        ValueError: there are fewer than one generation phase takes; ``where`` says why.
    """
    kept = range(len(prompts)) if kept is None else kept
    needed = config.batch_size * config.updates_per_generation // config.num_generations
    if len(kept) < needed:
        raise ValueError(
            f"one generation phase takes {needed} prompts (batch_size x updates_per_generation / num_generations), "
            f"but {len(kept)} of {len(prompts)} training prompts are left{where}"
        )
    return Dataset.from_dict({"prompt": [prompts[i] for i in kept], "example_index": list(kept)})


def adapters(config: InnerConfig) -> Any:
    """The adapters to train, as a ``peft.LoraConfig``; ``None``: all weights."""
    if config.lora_rank is None:
        return None
    from peft import LoraConfig

    names = [name.strip() for name in config.lora_targets.split(",")]
    return LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,  # type: ignore[arg-type]
        target_modules="all-linear" if names == ["all-linear"] else names,
        task_type="CAUSAL_LM",
    )


def merged(trainer: GRPOTrainer) -> PreTrainedModel:
    """The trained policy as a plain model, adapters merged into its weights for good."""
    model: Any = trainer.model
    if hasattr(model, "merge_and_unload"):
        trainer.model = model.merge_and_unload()
    return trainer.model  # type: ignore[return-value]


def check_trl(config: InnerConfig) -> None:
    """Refuse what ``trl.GRPOConfig`` does not know, before anything is loaded.

    Raises:
        ValueError: ``config.trl`` holds such a name.
    """
    known = [field.name for field in dataclasses.fields(GRPOConfig)]
    for name in config.trl:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"inner.trl holds {name!r}, which is no argument of trl.GRPOConfig{meant}")


def trainer_arguments(
    config: InnerConfig, seed: int, backend: str, folder: Path, context: int | None = None
) -> GRPOConfig:
    """Our settings in TRL's words, ``PASSED_ON`` and ``COMPUTED``; ``context`` is vLLM's, in tokens."""
    micro = config.micro_batch_size or config.batch_size // config.gpus
    accumulated = config.batch_size // (micro * config.gpus)
    precision = autocast_dtype(config)
    arguments: dict[str, Any] = {name: getattr(config, field) for field, name in PASSED_ON.items()}
    arguments |= {
        "output_dir": str(folder / FOLDER),
        "seed": seed,
        "data_seed": seed,
        "use_cpu": not torch.cuda.is_available(),
        "bf16": precision is torch.bfloat16,
        "fp16": precision is torch.float16,
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "steps",
        "logging_steps": 1,
        "disable_tqdm": True,
        "max_steps": -1 if config.epochs is not None else config.steps,
        "num_train_epochs": config.epochs if config.epochs is not None else 1,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": accumulated,
        "steps_per_generation": accumulated * config.updates_per_generation,
        "use_vllm": backend == "vllm",
        "vllm_mode": "colocate",
        "vllm_max_model_length": context,
        "ddp_find_unused_parameters": False,
    }
    return GRPOConfig(**(arguments | config.trl))


def peak_memory() -> int:
    """Peak resident bytes, of all ranks together."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return sum(gathered(peak if sys.platform == "darwin" else peak * 1024))
