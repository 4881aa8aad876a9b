"""What is left to run in a script's cells, and what that costs: inner runs, GPU hours, FLOPs, disk.

Hours are docs/scaling.md's, where it has some; FLOPs are what the paper says that its own runs took (appendix H).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping

import text_worlds
from cells import Cell, Runs, Step
from published import AGENT_FLOPS_PER_OUTER_STEP, FLOPS_PER_OUTER_STEP

from derl_gym.cli.command import pairs
from derl_gym.inner.config import InnerConfig
from derl_gym.protocol import final_config

EPOCH_SECONDS = {("3B", False): 2784, ("1.5B", False): 1456, ("1.5B", True): 1293, ("0.5B", True): 510}
"""Size of the policy, whether adapters -> an epoch of GSM8K's search on an H100, estimated in docs/scaling.md."""
TIMES_GSM8K = {"GSM8K": 1, "MATH": 2, "MATH-GSM8K": 3}
"""Task -> how many times as long an epoch of it takes, from the same page."""
Left = dict[str, float]


def left(runs: Runs, cell: Cell, wanted: Collection[Step]) -> Left:
    """What is still to be run in a cell.

    Returns:
        ``runs`` (inner runs), ``stages`` (final trainings or rounds), ``tests`` (test analyses), ``hours`` (the inner
        runs' caps), ``final_hours`` (an estimate), both ``nan`` where there is none, ``epochs`` (agent tasks' updates
        of both kinds) and ``kept`` (bytes of kept policies).
    """
    nothing: Left = dict.fromkeys(("runs", "stages", "tests", "hours", "final_hours", "epochs", "kept"), 0.0)
    if runs.searched(cell) and runs.searched(cell.source) and runs.why_nothing(cell):
        return nothing
    loop = runs.loop(cell)
    settings, full = loop.settings, cell.variant == "full"
    config = final_config(loop, full, pairs(cell.inner, "inner"))
    trials = 0
    if not runs.searched(cell):
        every = settings.outer_steps * settings.group_size + (loop.inner.max_flops_ratio is not None)
        trials = max(0, every - len(runs.rows(cell)[0]))
    stages = len(runs.seeds_left(cell)) * (settings.outer_steps if full else 1) * ("train" in wanted)
    policies = trials if cell.keep else min(trials, settings.outer_steps) if full else 0
    return nothing | {
        "runs": trials,
        "stages": stages,
        "tests": "analyse" in wanted and not runs.analysed(cell),
        "hours": trials * (loop.inner.max_seconds or math.nan) / 3600 if trials else 0.0,
        "final_hours": stages * _final_hours(cell, config, loop.task.base_policy) if stages else 0.0,
        "epochs": trials * loop.inner.steps + stages * config.steps if text_worlds.world_of(cell.task) else 0,
        "kept": (policies + stages) * _bytes(loop.inner, loop.task.base_policy),
    }


def in_words(scale: str, lefts: Mapping[Cell, Left]) -> list[str]:
    """Lines on GPU hours, FLOPs and disk."""
    runs, stages, kept = (sum(one[key] for one in lefts.values()) for key in ("runs", "stages", "kept"))
    if scale == "smoke" or not runs + stages:
        return []
    lines = []
    for key, what, known in (
        ("hours", "training of the inner runs", "at most {:,.0f} GPU hours, if every one takes its cap of time"),
        (
            "final_hours",
            "final trainings or rounds",
            "about {:,.0f} GPU hours on H100s, at the rates that docs/scaling.md assumes; nothing but DERL-full's "
            "rounds is capped",
        ),
    ):
        hours = [one[key] for one in lefts.values() if one[key]]
        if sum(found := [each for each in hours if not math.isnan(each)]):
            lines.append(f"{what}: {known.format(sum(found))}")
        if len(found) < len(hours):
            others = "no estimate of GPU hours" + (" for the others" if found else "")
            lines.append(f"{what}: {others}, docs/scaling.md has no rate for this policy or task")
    lines.append("evaluations and the start of a run are not counted")
    lines.append(f"policies that are kept, final ones and those of test analyses: about {kept / 1e9:,.0f} GB")
    return lines + (_flops(lefts) if scale == "paper" else [])


def _flops(lefts: Mapping[Cell, Left]) -> list[str]:
    """Of the paper's own runs, as appendix H has them."""
    lines = []
    if runs := sum(one["runs"] for cell, one in lefts.items() if not text_worlds.world_of(cell.task)):
        low, high = (runs / 8 * flops for flops in FLOPS_PER_OUTER_STEP)
        lines.append(
            f"{low:.1e} to {high:.1e} FLOPs of search, if it costs what the paper's 3B policy did (appendix H)"
        )
    for world, (flops, epochs) in AGENT_FLOPS_PER_OUTER_STEP.items():
        if mine := sum(one["epochs"] for cell, one in lefts.items() if text_worlds.world_of(cell.task) == world):
            lines.append(
                f"{world}: {mine:,.0f} epochs of search and final training, {mine * flops / (8 * epochs):.1e} FLOPs, "
                "if each costs what one of the paper's inner runs did (appendix H)"
            )
    return lines


def _final_hours(cell: Cell, config: InnerConfig, base_policy: str) -> float:
    """Of one final stage on an H100; the full training set is 5/4 of the search's."""
    size = re.search(r"[\d.]+B\b", config.policy or base_policy)
    rate = EPOCH_SECONDS.get((size[0] if size else "", config.lora_rank is not None), math.nan)
    seconds = 1.25 * (config.epochs or math.nan) * TIMES_GSM8K.get(cell.task, math.nan) * rate
    return seconds / 3600 if math.isnan(seconds) else min(seconds, config.max_seconds or math.inf) / 3600


def _bytes(config: InnerConfig, base_policy: str) -> float:
    """Size of a kept policy, from the billions of parameters in its name."""
    billions = float((re.findall(r"([\d.]+)B\b", config.policy or base_policy) or ["0"])[0])
    return 1e9 * billions * (4 if config.dtype == "float32" else 2)
