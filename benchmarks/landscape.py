"""Measure the landscape of DERL-Arithmetic: what each reward program makes of the base policy.

    python benchmarks/landscape.py [--out FILE] [--workers 2]

Named programs, each on the same fresh inner seeds, and two lists of random programs from the grammar's prior, each
on two seeds. Every score is a validation score of a real inner run; test is not touched. 20 to 30 minutes of one core.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from build_arithmetic_policy import sha256

from derl_gym.programs import Grammar, RewardProgram
from derl_gym.report.estimates import estimate
from derl_gym.tasks.arithmetic import Arithmetic
from derl_gym.trials.pool import Job, LocalPool

OUTCOME = "g1"
NAMED = (
    *("g1", "g2", "g3", "g4", "0-g1", "(g1+g2+g3+g4)/4"),
    *("g1+g2", "g1+g4", "g1-g3", "g2+g4", "g1+g2+g4", "g1+g2-g3", "2*g1+g2", "2*g1+g2+g4", "4*g1+2*g2+g4-g3"),
)
SEEDS = range(1000, 1008)
LISTS = {"a": 101, "b": 202}
PROGRAMS_PER_LIST = 40
RANDOM_SEEDS = (2000, 2001)

Scores = dict[str, dict[int, float]]
"""Program -> inner seed -> validation score."""


def measure(pool: LocalPool, trials: Iterable[tuple[str, int]], runs: list[dict[str, Any]]) -> Scores:
    """Run every (program, seed), at most once, and add what each cost to ``runs``."""
    task = Arithmetic()
    wanted = sorted(set(trials), key=lambda trial: trial[1])
    scores: Scores = {}
    with tempfile.TemporaryDirectory() as folder:
        jobs = [
            Job(
                id=str(i),
                target="derl_gym.inner.train:run",
                payload={
                    "task": "derl_gym.tasks.arithmetic:Arithmetic",
                    "program": program,
                    "policy": task.base_policy,
                    "config": dataclasses.asdict(task.inner),
                    "seed": seed,
                    "train_split": "train",
                    "eval_split": "validation",
                },
                folder=Path(folder) / str(i),
                timeout=task.inner.timeout,
            )
            for i, (program, seed) in enumerate(wanted)
        ]
        for done, outcome in enumerate(pool.run(jobs), start=1):
            program, seed = wanted[int(outcome.id)]
            if outcome.result is None:
                raise SystemExit(f"{program} with seed {seed} failed: {outcome.failure}")
            scores.setdefault(program, {})[seed] = outcome.result["score"]
            runs.append({"seconds": outcome.seconds, "memory": outcome.result["peak_memory"]})
            print(f"{done}/{len(jobs)}  {outcome.result['score']:.3f}  {program}  (seed {seed})", flush=True)
    return scores


def describe_named(scores: Scores) -> list[dict[str, Any]]:
    """Per program: mean, 95 % interval over seeds, and the paired difference to the outcome reward."""
    rows = []
    for program in NAMED:
        values = [scores[program][seed] for seed in SEEDS]
        gains = [scores[program][seed] - scores[OUTCOME][seed] for seed in SEEDS]
        score, gain = estimate(values), estimate(gains)
        assert score is not None and gain is not None
        rows.append(
            {
                "program": program,
                "mean": score.mean,
                "half_width": score.half_width,
                "over_outcome": gain.mean,
                "over_outcome_half_width": gain.half_width,
                "scores": values,
            }
        )
    return sorted(rows, key=lambda row: -row["mean"])


def describe_random(scores: Scores) -> dict[str, Any]:
    """How random programs spread, and how much of that is the seeds' doing."""
    table = np.array([[by_seed[seed] for seed in RANDOM_SEEDS] for by_seed in scores.values()])
    means = table.mean(axis=1)
    within = float(np.sqrt(table.var(axis=1, ddof=1).mean()))
    # The variance of the means holds the seeds' variance / n as well.
    between = float(np.sqrt(max(0.0, means.var(ddof=1) - within**2 / table.shape[1])))
    best = int(means.argmax())
    return {
        "programs": len(means),
        "classes": len({key for program in scores if (key := equivalence_key(program))}),
        "above_5_percent": float((means > 0.05).mean()),
        "mean": float(means.mean()),
        "quartiles": np.quantile(means, [0.25, 0.5, 0.75]).tolist(),
        "sd_between_programs": between,
        "sd_between_seeds": within,
        "best": {"program": list(scores)[best], "mean": float(means[best])},
        "scores": [{"program": program, "scores": list(by_seed.values())} for program, by_seed in scores.items()],
    }


def equivalence_key(program: str) -> str:
    """Programs with equal keys have equal GRPO advantages."""
    task = Arithmetic()
    return RewardProgram.parse(program, k=len(task.primitives)).equivalence_key(task.states())


def main() -> None:
    """Measure and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).parent / "results" / "landscape.json"
    parser.add_argument("--out", type=Path, default=default, help="file to write")
    parser.add_argument("--workers", type=int, default=1, help="inner runs at once")
    arguments = parser.parse_args()

    task = Arithmetic()
    grammar = Grammar(k=len(task.primitives), max_length=task.max_program_length)
    lists: dict[str, list[str]] = {}
    for name, seed in LISTS.items():
        rng = np.random.default_rng(seed)
        lists[name] = [grammar.sample(rng) for _ in range(PROGRAMS_PER_LIST)]

    runs: list[dict[str, Any]] = []
    started = time.monotonic()
    with LocalPool(workers=arguments.workers) as pool:
        named = measure(pool, [(program, seed) for program in NAMED for seed in SEEDS], runs)
        drawn = {
            name: measure(pool, [(program, seed) for program in programs for seed in RANDOM_SEEDS], runs)
            for name, programs in lists.items()
        }
    result = {
        "task": {"name": task.name, "version": task.version, "sha256": sha256(Path(task.base_policy))},
        "inner": dataclasses.asdict(task.inner),
        "seeds": list(SEEDS),
        "named": describe_named(named),
        "random": {
            **{name: describe_random(scores) for name, scores in drawn.items()},
            "both": describe_random({p: s for scores in drawn.values() for p, s in scores.items()}),
        },
        "cost": {
            "runs": len(runs),
            "workers": arguments.workers,
            "median_seconds": statistics.median(run["seconds"] for run in runs),
            "peak_memory_mb": max(run["memory"] for run in runs) / 1e6,
            "total_seconds": time.monotonic() - started,
        },
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "python": platform.python_version(),
            **{package: version(package) for package in ("torch", "transformers", "trl")},
        },
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(summary(result))
    print(f"written to {arguments.out}")


def summary(result: dict[str, Any]) -> str:
    """The tables that the documentation quotes, in percent."""
    lines = ["", f"{'program':<22} {'score':>14} {'over g1':>14}"]
    for row in result["named"]:
        score = f"{100 * row['mean']:.1f} +- {100 * row['half_width']:.1f}"
        gain = f"{100 * row['over_outcome']:+.1f} +- {100 * row['over_outcome_half_width']:.1f}"
        lines.append(f"{row['program']:<22} {score:>14} {gain:>14}")
    lines.append("")
    for name, row in result["random"].items():
        lines.append(
            f"random programs, {name}: {row['programs']} ({row['classes']} classes), mean {100 * row['mean']:.1f}, "
            f"above 5 %: {100 * row['above_5_percent']:.0f} %, standard deviation between programs "
            f"{100 * row['sd_between_programs']:.1f}, between seeds {100 * row['sd_between_seeds']:.1f}, "
            f"best {100 * row['best']['mean']:.1f} ({row['best']['program']})"
        )
    cost = result["cost"]
    lines.append(f"{cost['runs']} runs, median {cost['median_seconds']:.1f} s, {cost['peak_memory_mb']:.0f} MB")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
