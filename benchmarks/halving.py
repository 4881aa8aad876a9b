"""What does successive halving save on DERL-Arithmetic-v0, and does the best program of a step survive it?

    python benchmarks/halving.py --out benchmarks/results/halving.json

Groups of random programs are searched with halving. Then the same groups are searched without it: whole trainings are
the same to the last bit, so they are taken over, and only the programs that were stopped are trained. FLOPs are the
estimates of the ledger. A program that was proposed before competes with what is known of it.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium as gym
import numpy as np

import derl_gym  # noqa: F401  (registers the ids)
from derl_gym.trials.ledger import Ledger
from derl_gym.trials.pool import warm_servers


def search(folder: Path, groups: list[np.ndarray] | None, seed: int, steps: int, **given: Any) -> list[np.ndarray]:
    """Search with these groups, or with random ones; returns them."""
    envs = gym.make_vec(
        "DERL-Arithmetic-v0",
        num_envs=8,
        outer_steps=steps + 1,
        run_dir=str(folder),
        cache_dir=f"{folder.parent}/cache",
        **given,
    )
    programs = envs.unwrapped.programs  # type: ignore[attr-defined]
    programs.seed(seed)
    groups = groups or [np.stack([programs.sample() for _ in range(8)]) for _ in range(steps)]
    envs.reset(seed=seed)
    for group in groups:
        envs.step(group)
    envs.close()
    return groups


def training_flops(rows: list[dict[str, Any]]) -> float:
    """Of trials that were trained here."""
    return sum(row["flops"] - row["result"]["eval_flops"] for row in rows if row["seconds"])


def measure(seed: int, steps: int, halving: int, workers: int) -> dict[str, Any]:
    """One search of ``steps`` outer steps, with and without."""
    with tempfile.TemporaryDirectory() as folder, warm_servers():
        halved, plain = Path(folder) / "halved", Path(folder) / "plain"
        groups = search(halved, None, seed, steps, halving=halving, workers=workers)
        search(plain, groups, seed, steps, workers=workers)
        with Ledger(halved, readonly=True) as ledger:
            spent, rows = ledger.trials(), ledger.proposals()
        with Ledger(plain, readonly=True) as ledger:
            whole, full = ledger.trials(), ledger.proposals()
    known = {row["identity"] for row in whole}
    needed = sum(row["result"]["flops"] - row["result"]["eval_flops"] for row in whole)
    outcomes = []
    for step in range(steps):
        scores = [row["score"] for row in full if row["step"] == step]
        left = [row["identity"] in known for row in rows if row["step"] == step]
        kept = max(score for score, whole_run in zip(scores, left, strict=True) if whole_run)
        outcomes.append(
            {"best": max(scores), "best_kept": kept, "survived": kept == max(scores), "stopped": left.count(False)}
        )
    return {
        "seed": seed,
        "programs": len(whole),
        "stopped": len({row["identity"] for row in rows} - known),
        "training_flops": training_flops(spent),
        "training_flops_without": needed,
        "saved": 1 - training_flops(spent) / needed,
        "evaluation_flops": sum(row["result"]["eval_flops"] for row in spent if row["seconds"]),
        "evaluation_flops_without": sum(row["result"]["eval_flops"] for row in whole),
        "steps": outcomes,
    }


def main() -> None:
    """Measure and write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=300)
    parser.add_argument("--steps", type=int, default=4, help="outer steps")
    parser.add_argument("--halving", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    found = []
    for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
        found.append(measure(seed, asked.steps, asked.halving, asked.workers))
        print(json.dumps(found[-1]), flush=True)
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps({"halving": asked.halving, "searches": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
