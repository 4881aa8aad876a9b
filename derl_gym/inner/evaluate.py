"""The score of a policy: the share of a split's examples that it solves (pass@1), with its standard error.

Also a job of its own (:func:`run`), for policies that were kept: the analysis of validation against test.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    set_seed,
)

from derl_gym.inner.config import InnerConfig
from derl_gym.inner.episodes import Conversation, Play, Playing, limits_of, worlds_of
from derl_gym.inner.generate import (
    Generate,
    completion_length,
    in_words,
    resolve_backend,
    transformers_sample,
    vllm_sample_alone,
)
from derl_gym.inner.prompts import Style, longest_prompt, prompt_of, resolve_style, stop_ids, token_ids
from derl_gym.inner.ranks import gathered, share, world
from derl_gym.tasks.agent import AgentTask, Episode
from derl_gym.tasks.base import Example, Split, Task, load_task

EVALUATION_SEED = 7_919
"""Added to the run's seed before evaluation, so that it doesn't depend on how long training drew."""


def evaluate(
    task: Task,
    split: Split,
    generate: Generate | Play,
    config: InnerConfig,
    seed: int,
    *,
    tokenizer: PreTrainedTokenizerBase,
    style: Style,
    limit: int | None = None,
) -> dict[str, Any]:
    """Evaluate on a split; with several ranks each generates for a part of it.

    Args:
        task: Of the examples and the verdicts.
        split: Which examples.
        generate: From ``generate.py``; of an agent task, from ``episodes.py``.
        config: How many examples, and completions of each.
        seed: The run's.
        tokenizer: Of the policy.
        style: How it is prompted.
        limit: Tokens that a prompt may have. A longer one is not generated for and counts as unsolved.

    Returns:
        ``score``, ``standard_error`` and ``scores`` (see :func:`pass_at_1`), ``primitive_means`` (k floats, over
        the completions), ``n_evaluated`` and ``n_too_long`` (examples), ``tokens`` and ``eval_seconds``. Of an agent
        task, a game is too long whose first message leaves no room for a reply.

    Raises:
        ValueError: the split has no examples, and so there is no score.
    """
    started = time.monotonic()
    examples = first_of_each(task.load(split), config.eval_examples)
    if not examples:
        raise ValueError(f"{type(task).__name__} has no {split} examples to evaluate on")
    prompts: list[Any] = examples  # an episode begins with what the world says
    fitting = list(range(len(examples)))
    if not isinstance(task, AgentTask):
        prompts = [prompt_of(example, style) for example in examples]
        lengths = [len(ids) for ids in token_ids(prompts, tokenizer)]
        fitting = [i for i, length in enumerate(lengths) if limit is None or length <= limit]
    asked = [i for i in fitting for _ in range(config.eval_samples)]
    rank, _ = world()
    # GPUs that share an engine have to draw alike.
    set_seed(seed + EVALUATION_SEED + rank // config.vllm_tensor_parallel)
    mine, cost = generate(share([prompts[i] for i in asked]))
    completions: list[Any] = [played for part in gathered(mine) for played in part][: len(asked)]
    begun = {i for i, played in zip(asked, completions, strict=True) if not isinstance(played, Episode) or played.moves}
    of = [examples[i] for i in asked]
    solved = np.zeros(len(examples))
    np.add.at(solved, asked, [float(task.correct(text, e)) for text, e in zip(completions, of, strict=True)])
    values = np.asarray(task.primitive_values(completions, of), dtype=np.float64)
    names = [example.get("benchmark") for example in examples]
    return {
        **pass_at_1(solved / config.eval_samples, names, task.headline),
        "primitive_means": values.mean(axis=0).tolist() if asked else [],
        "n_evaluated": len(examples),
        "n_too_long": len(examples) - len(begun),
        "tokens": sum(gathered(cost)),
        "eval_seconds": time.monotonic() - started,
    }


def first_of_each(examples: Sequence[Example], n: int | None) -> list[Example]:
    """The first n examples of every benchmark, in their order; of the split where they name none. ``None``: all."""
    seen: Counter[Any] = Counter()
    kept = []
    for example in examples:
        seen[benchmark := example.get("benchmark")] += 1
        if n is None or seen[benchmark] <= n:
            kept.append(example)
    return kept


def pass_at_1(solved: np.ndarray, benchmarks: Sequence[str | None], headline: Sequence[str] = ()) -> dict[str, Any]:
    """The score and how sure it is.

    The standard error is clustered by example: an example's completions are not independent, its means are. The score
    of several benchmarks is the unweighted mean of their accuracies, and its error follows from theirs.

    Args:
        solved: (n,) share of each example's completions that solve it.
        benchmarks: n names; ``None`` where an example names none.
        headline: Benchmarks that make up the score. Empty, or none of them evaluated: all examples count alike.

    Returns:
        ``score`` in [0, 1], ``standard_error`` (``None`` where it takes more than one example), and ``scores``,
        the accuracy by benchmark.

    Raises:
        ValueError: there are no examples.
    """
    if not len(solved):
        raise ValueError("expected at least one example, got none: there is no score")
    rows = {name: np.flatnonzero([b == name for b in benchmarks]) for name in dict.fromkeys(benchmarks) if name}
    parts = [solved[rows[name]] for name in headline if name in rows] or [solved]
    errors = [part.std(ddof=1) / math.sqrt(len(part)) if len(part) > 1 else None for part in parts]
    known = [error for error in errors if error is not None]
    return {
        "score": float(np.mean([part.mean() for part in parts])),
        "standard_error": math.sqrt(sum(e * e for e in known)) / len(parts) if len(known) == len(parts) else None,
        "scores": {name: float(solved[index].mean()) for name, index in rows.items()},
    }


def check_data(task: Task, expected: dict[str, str], splits: Sequence[Split | None]) -> None:
    """Compare the data here with what the search was started on.

    Args:
        task: As built here.
        expected: Split -> sha256 of ``Task.record``; splits that it does not name are not looked at.
        splits: Those that will be read.

    Raises:
        RuntimeError: a split's data differ.
    """
    for split in splits:
        if split is not None and split in expected and (found := task.record(split)["sha256"]) != expected[split]:
            raise RuntimeError(
                f"the {split} data differ from those that the search was started with: sha256 {found[:12]} here, "
                f"{expected[split][:12]} there"
            )


def run(payload: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Evaluate a kept policy, in one process whatever ``config.gpus`` says.

    Args:
        payload: ``task``, ``policy``, ``split``, ``config`` and ``seed``; ``data`` as in ``train.run``.
        folder: Not used.

    Returns:
        That of :func:`evaluate`, ``backend`` and ``prompt_style``.
    """
    task = load_task(payload["task"], payload.get("task_options"), payload.get("flip", ()))
    config = InnerConfig(**payload["config"]).override(gpus=1, vllm_tensor_parallel=1)
    check_data(task, payload.get("data", {}), [payload["split"]])
    backend = resolve_backend(config.backend)
    policy = payload["policy"]
    tokenizer = load_tokenizer(policy)
    described = AutoConfig.from_pretrained(policy)
    if backend == "vllm":
        sample = vllm_sample_alone(policy, described, config, payload["seed"])
    else:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = AutoModelForCausalLM.from_pretrained(policy, dtype=getattr(torch, config.dtype))
        model.to(device)  # type: ignore[arg-type]
        sample = transformers_sample(model, tokenizer, config)
    stops = stop_ids(generation_config(policy, described), tokenizer)
    style = resolve_style(config.prompt_style, tokenizer, stops)
    longest = completion_length(config)
    with worlds_of(task, config) as pool:
        limit = None
        if isinstance(task, AgentTask):
            assert pool is not None
            playing = Playing(task, pool, Conversation(tokenizer, style, stops))
            generate: Any = playing.for_evaluation(sample, limits_of(config, described, longest))
        else:
            generate, limit = in_words(sample, tokenizer), longest_prompt(config, described, longest)
        scores = evaluate(
            task, payload["split"], generate, config, payload["seed"], tokenizer=tokenizer, style=style, limit=limit
        )
    return {**scores, "backend": backend, "prompt_style": style}


def load_tokenizer(policy: str) -> PreTrainedTokenizerBase:
    """The policy's tokenizer, which can pad."""
    tokenizer = AutoTokenizer.from_pretrained(policy, padding_side="left")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def generation_config(policy: str, described: PretrainedConfig) -> GenerationConfig:
    """The policy's own generation settings, or those that its configuration makes."""
    try:
        return GenerationConfig.from_pretrained(policy)
    except OSError:  # it has no generation_config.json
        return GenerationConfig.from_model_config(described)
