"""Does the proposer learn, and is the reward it finds better? On DERL-Arithmetic-v0, with real inner runs.

    python benchmarks/learning.py --runs runs/learning --out benchmarks/results/learning.json

Three questions, each answered over fresh outer seeds with a 95 % t interval:

1. Do the proposals of DERL improve from the first to the last outer step, and those of its frozen self not?
2. Does the selected program train a better final policy (full training set, tested once) than the fixed rewards
   outcome, outcome+format and average, over fresh seeds of the final training?
3. What do remedies for the update's known weaknesses bring (it settles early, it loses better programs that it has
   seen, it pays for the same program again), each switched off in turn at equal inner runs?

The cache is off: every proposal is one inner run, so that all agents spend the same. Seeds are independent of those
that any default was chosen with. Broken off, the same command goes on where it stopped. The figure lands beside the
JSON file.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium as gym
import numpy as np

import derl_gym  # noqa: F401
from derl_agents import AGENTS, search
from derl_gym.envs.outer_loop import OuterLoop
from derl_gym.protocol import Rule, named_program, select, settings_of, train_final
from derl_gym.report.estimates import Estimate, estimate
from derl_gym.trials.ledger import Ledger
from derl_gym.trials.pool import warm_servers

ENVIRONMENT = "DERL-Arithmetic-v0"
FIXED = ("outcome", "outcome+format", "average")


@dataclasses.dataclass(frozen=True)
class Arm:
    """One way to search: an agent, its options, and how its program is selected."""

    agent: str
    options: dict[str, Any]
    rule: Rule = "last"


ARMS = {
    "derl": Arm("derl", {}),
    "frozen": Arm("random", {"prior": "proposer"}, "best"),
    "derl-elite": Arm("derl-elite", {}, "best"),
    "elite, classes may repeat": Arm("derl-elite", {"unique": False}, "best"),
    "elite, no imitation": Arm("derl-elite", {"imitation": 0.0}, "best"),
    "elite, no mutants": Arm("derl-elite", {"mutants": 0}, "best"),
    "elite, last step re-scores the best 4": Arm("derl-elite", {"rescore": 4}),
}


def searched(name: str, arm: Arm, seed: int, folder: Path, outer_steps: int, workers: int) -> np.ndarray:
    """Run (or read back) one search; returns its scores, shape (outer steps, group)."""
    run_dir = folder / f"{name.replace(',', '').replace(' ', '-')}-seed-{seed}"
    envs = gym.make_vec(
        ENVIRONMENT, num_envs=8, outer_steps=outer_steps, cache="off", workers=workers, run_dir=str(run_dir)
    )
    try:
        return np.stack(search(envs, AGENTS[arm.agent](envs, seed=seed, **arm.options), seed=seed).scores)
    finally:
        envs.close()


def final_scores(run_dir: Path, program: str, seeds: Sequence[int], workers: int) -> list[float]:
    """Test scores of final policies trained with a program, one per seed; read back where they are known."""
    with Ledger(run_dir) as ledger:
        known = {row["seed"]: row["test"] for row in ledger.finals() if row["programs"] == [program]}
        missing = [seed for seed in seeds if seed not in known]
        finals = train_final(ledger, [program], missing, workers=workers) if missing else []
        known |= {final.seed: final.test for final in finals}
    return [known[seed] for seed in seeds]


def rise(scores: dict[int, np.ndarray]) -> Estimate | None:
    """Last step's mean minus the first's, over outer seeds."""
    return estimate([float(s[-1].mean() - s[0].mean()) for s in scores.values()])


def in_percent(found: Estimate | None) -> dict[str, Any]:
    """An estimate for the JSON file."""
    assert found is not None
    half = found.half_width
    return {"mean": 100 * found.mean, "half_width_95": None if half is None else 100 * half, "n": found.n}


def main() -> None:
    """Search, train final policies, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--outer-steps", type=int, default=10)
    parser.add_argument("--final-seeds", type=int, default=4, help="final policies per selected program")
    parser.add_argument("--fixed-seeds", type=int, default=16, help="final policies per fixed reward")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)

    scores: dict[str, dict[int, np.ndarray]] = {name: {} for name in arguments.arms}
    with warm_servers():
        for seed in seeds:
            for name in arguments.arms:
                scores[name][seed] = searched(
                    name, ARMS[name], seed, arguments.runs, arguments.outer_steps, arguments.workers
                )
                steps = " ".join(f"{100 * step:4.1f}" for step in scores[name][seed].mean(axis=1))
                print(f"{name:<38} seed {seed}: {steps}", flush=True)
        finals, programs = tested(arguments, seeds)

    report = summary(scores, finals, programs)
    report["command"] = f"python benchmarks/learning.py --seeds {arguments.seeds} --outer-steps {arguments.outer_steps}"
    print_report(report)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
        draw(report, arguments.out.with_suffix(".svg"))


def tested(
    arguments: argparse.Namespace, seeds: Sequence[int]
) -> tuple[dict[str, dict[int, list[float]]], dict[str, dict[int, str]]]:
    """Test scores by arm and outer seed, fixed rewards by final seed; and the selected programs."""
    finals: dict[str, dict[int, list[float]]] = {}
    programs: dict[str, dict[int, str]] = {}
    for name in arguments.arms:
        finals[name], programs[name] = {}, {}
        for seed in seeds:
            run_dir = arguments.runs / f"{name.replace(',', '').replace(' ', '-')}-seed-{seed}"
            with Ledger(run_dir, readonly=True) as ledger:
                (program,) = select(ledger, ARMS[name].rule)
            fresh = [100 * seed + i for i in range(arguments.final_seeds)]
            programs[name][seed] = program
            finals[name][seed] = final_scores(run_dir, program, fresh, arguments.workers)
        print(f"{name:<38} selected: {', '.join(programs[name].values())}", flush=True)
    first = arguments.runs / f"{arguments.arms[0].replace(',', '').replace(' ', '-')}-seed-{seeds[0]}"
    with Ledger(first, readonly=True) as ledger:
        loop = OuterLoop(settings_of(ledger.config), lambda: ENVIRONMENT)
    for name in FIXED:
        program = named_program(name, [primitive.name for primitive in loop.task.primitives])
        fresh = [7_000_000 + i for i in range(arguments.fixed_seeds)]
        values = final_scores(first, program, fresh, arguments.workers)
        finals[name] = {seed: [value] for seed, value in zip(fresh, values, strict=True)}
        programs[name] = {0: program}
    return finals, programs


def summary(
    scores: dict[str, dict[int, np.ndarray]],
    finals: dict[str, dict[int, list[float]]],
    programs: dict[str, dict[int, str]],
) -> dict[str, Any]:
    """Everything that is reported, in percent."""
    report: dict[str, Any] = {"environment": ENVIRONMENT, "arms": {}, "final_policies": {}, "differences": {}}
    for name, by_seed in scores.items():
        steps = np.stack([s.mean(axis=1) for s in by_seed.values()])
        classes_kept = [float(s[-1].max() / s.max()) for s in by_seed.values()]
        report["arms"][name] = {
            "options": dataclasses.asdict(ARMS[name]),
            "mean_per_step": [in_percent(estimate(column.tolist())) for column in steps.T],
            "per_seed": {str(seed): (100 * s.mean(axis=1)).round(3).tolist() for seed, s in by_seed.items()},
            "rise": in_percent(rise(by_seed)),
            "best_seen": in_percent(estimate([float(s.max()) for s in by_seed.values()])),
            "best_of_last_step_over_best_seen": in_percent(estimate(classes_kept)),
        }
    for name, by_seed in finals.items():
        means = [float(np.mean(values)) for values in by_seed.values()]
        report["final_policies"][name] = {
            "programs": {str(seed): program for seed, program in programs[name].items()},
            "test": in_percent(estimate(means)),
            "per_seed": {str(seed): (100 * np.array(values)).round(3).tolist() for seed, values in by_seed.items()},
        }
    differences = report["differences"]
    for a in scores:
        for b in ("frozen", "derl"):
            if b in scores and a != b:
                last = [float(scores[a][s][-1].mean() - scores[b][s][-1].mean()) for s in scores[a]]
                differences[f"last step: {a} - {b}"] = in_percent(estimate(last))
        for fixed in FIXED:
            differences[f"final test: {a} - {fixed}"] = welch(finals[a], finals[fixed])
    return report


def welch(a: dict[int, list[float]], b: dict[int, list[float]]) -> dict[str, Any]:
    """Difference of two means over independent seeds, 95 % interval by Welch's t."""
    from scipy import stats

    x, y = ([float(np.mean(values)) for values in group.values()] for group in (a, b))
    interval = stats.ttest_ind(x, y, equal_var=False).confidence_interval(0.95)
    mean = float(np.mean(x) - np.mean(y))
    return {"mean": 100 * mean, "low_95": 100 * float(interval.low), "high_95": 100 * float(interval.high)}


def print_report(report: dict[str, Any]) -> None:
    """The same for people."""

    def text(value: dict[str, Any]) -> str:
        if "low_95" in value:
            return f"{value['mean']:6.1f} ({value['low_95']:.1f} to {value['high_95']:.1f})"
        return f"{value['mean']:6.1f} ± {value['half_width_95'] or float('nan'):.1f}"

    print(f"\n{'arm':<38} first step      last step       rise            best seen       kept of it in the last step")
    for name, arm in report["arms"].items():
        columns = (arm["mean_per_step"][0], arm["mean_per_step"][-1], arm["rise"], arm["best_seen"])
        print(f"{name:<38} " + " ".join(f"{text(c):<15}" for c in (*columns, arm["best_of_last_step_over_best_seen"])))
    print("\nfinal policies, test score")
    for name, final in report["final_policies"].items():
        print(f"{name:<38} {text(final['test']):<15} {', '.join(sorted(set(final['programs'].values())))}")
    print()
    for name, value in report["differences"].items():
        print(f"{name:<60} {text(value)}")


def draw(report: dict[str, Any], path: Path) -> None:
    """Mean score of the proposals per outer step, with intervals over outer seeds: the paper's Figure 3."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "derl_gym"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for name in ("derl-elite", "derl", "frozen"):
        if name not in report["arms"]:
            continue
        steps = report["arms"][name]["mean_per_step"]
        mean = np.array([step["mean"] for step in steps])
        half = np.array([step["half_width_95"] or 0.0 for step in steps])
        (line,) = axes.plot(mean, marker="o", label=name)
        axes.fill_between(range(len(mean)), mean - half, mean + half, alpha=0.15, color=line.get_color())
    axes.set(xlabel="outer step", ylabel="mean validation score of the proposals, %", title=ENVIRONMENT, ylim=(0, None))
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")


if __name__ == "__main__":
    main()
