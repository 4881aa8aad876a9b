"""The score of a policy: the share of a split's examples that it solves.

Also a job of its own (:func:`run`), for policies that were kept: the analysis of validation against test.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

from derl_gym.inner.config import InnerConfig
from derl_gym.inner.generate import Generate, transformers_generate
from derl_gym.tasks.base import Split, Task, load_task

EVALUATION_SEED = 7_919
"""Added to the run's seed before evaluation, so that it doesn't depend on how long training drew."""


def evaluate(task: Task, split: Split, generate: Generate, config: InnerConfig, seed: int) -> dict[str, Any]:
    """Evaluate on a split.

    Returns:
        ``score`` in [0, 1], ``primitive_means`` (k floats), ``n_evaluated``, ``tokens`` and ``eval_seconds``.
    """
    started = time.monotonic()
    examples = task.load(split)[: config.eval_examples]
    set_seed(seed + EVALUATION_SEED)
    completions, tokens = generate([example["prompt"] for example in examples])
    solved = [task.correct(text, example) for text, example in zip(completions, examples, strict=True)]
    values = np.asarray(task.primitive_values(completions, examples), dtype=np.float64)
    return {
        "score": float(np.mean(solved)),
        "primitive_means": values.mean(axis=0).tolist(),
        "n_evaluated": len(examples),
        "tokens": tokens,
        "eval_seconds": time.monotonic() - started,
    }


def run(payload: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Evaluate a kept policy: ``payload`` names ``task``, ``policy``, ``split``, ``config`` and ``seed``."""
    task = load_task(payload["task"], payload.get("task_options"), payload.get("flip", ()))
    config = InnerConfig(**payload["config"])
    tokenizer = AutoTokenizer.from_pretrained(payload["policy"])
    model = AutoModelForCausalLM.from_pretrained(payload["policy"], dtype=config.dtype)
    generate = transformers_generate(model, tokenizer, config)
    return evaluate(task, payload["split"], generate, config, payload["seed"])
