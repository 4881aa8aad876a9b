"""Is the ledger as fast at its hundred-thousandth trial as at its first, and can it still be opened and reported on?

    python benchmarks/ledger.py --out benchmarks/results/ledger.json

One search of 100,000 trials in groups of eight is written through the ledger's public methods, in the environment's
order: a group's proposals, then start, result and settlement of every trial, each with a result as long as those of
DERL-Arithmetic-v0. No inner run is made. They are written in memory (--memory), where no disk's moods are in the
seconds; then groups are added in turn to this ledger and to a new one, both on the disk (--disk).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import derl_gym  # noqa: F401  (registers the ids)
from derl_gym.inner.result import InnerResult
from derl_gym.trials.ledger import Ledger

ENVIRONMENT, GROUP = "DERL-Arithmetic-v0", 8


class Writer:
    """One search, written as an environment writes it.

    Args:
        run_dir: Its run directory.
        trials: How many it will have.
    """

    def __init__(self, run_dir: Path, trials: int) -> None:
        envs = gym.make_vec(ENVIRONMENT, num_envs=GROUP, outer_steps=trials // GROUP, run_dir=str(run_dir))
        loop: Any = envs.unwrapped.loop  # type: ignore[attr-defined]
        self.run_dir, self.config, self.programs = run_dir, loop.config, loop.programs
        self.steps, self.primitives = loop.inner.steps, [primitive.name for primitive in loop.task.primitives]
        self.rng = np.random.default_rng(0)
        self.programs.seed(0)
        envs.close()

    def result(self) -> dict[str, Any]:
        """As long as a real one: a curve of all optimiser steps, with random numbers."""
        names = ["reward", *self.primitives, "completion_length", "truncated", "entropy", "clip_ratio"]
        names += ["grad_norm", "loss"]
        curve = [dict(zip(names, row, strict=True)) for row in self.rng.random((self.steps, len(names))).tolist()]
        result = InnerResult(
            "scored",
            float(self.rng.random()),
            curve=curve,
            primitive_means=self.rng.random(len(self.primitives)).tolist(),
            steps=self.steps,
            tokens=40_000,
            flops=3e11,
            eval_flops=5e10,
            train_seconds=1.2,
            eval_seconds=0.2,
            host="host",
            device="cpu",
            config="0" * 24,
            code="0.1.0+0123456789ab",
            versions={"python": "3.11.7", "torch": "2.13.0", "transformers": "5.17.0", "trl": "1.16.0"},
        )
        return result.to_dict()

    def step(self, ledger: Ledger, step: int) -> tuple[float, float]:
        """Write one outer step; returns the seconds of the clock and of the CPU that the ledger took per trial."""
        actions = np.stack([self.programs.sample() for _ in range(GROUP)])
        texts = [self.programs.decode(row) for row in actions]
        results = [self.result() for _ in texts]
        began, worked = time.perf_counter(), time.process_time()
        ledger.propose(0, step, actions, texts, seconds=0.01)
        for slot, (text, result) in enumerate(zip(texts, results, strict=True)):
            identity = f"{step * GROUP + slot:024x}"
            ledger.start_trial(identity, program=text, key=identity, seed=1, replicate=0, policy="p" * 24, pid=1)
            score = result["score"]
            cost = {"seconds": 1.5, "tokens": result["tokens"], "flops": result["flops"]}
            ledger.finish_trial(identity, status="scored", score=score, result=result, **cost)
            ledger.settle(0, step, slot, identity=identity, status="scored", score=score, seconds=1.5)
        return (time.perf_counter() - began) / GROUP, (time.process_time() - worked) / GROUP


def size(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def write(writer: Writer, trials: int) -> dict[str, Any]:
    """Seconds and bytes per trial along the way."""
    seconds: list[tuple[float, float]] = []
    sizes = [0]
    tenth = trials // 10
    with Ledger(writer.run_dir, config=writer.config) as ledger:
        ledger.begin_episode(0, 0)
        for step in range(trials // GROUP):
            seconds.append(writer.step(ledger, step))
            if (step + 1) * GROUP % tenth < GROUP:
                sizes.append(size(writer.run_dir))
                print(f"{(step + 1) * GROUP} trials, {1000 * seconds[-1][0]:.2f} ms each", file=sys.stderr, flush=True)
    part = tenth // GROUP
    found: dict[str, Any] = {}
    for name, values in zip(("ms", "cpu_ms"), zip(*seconds, strict=True), strict=True):
        first, last = statistics.median(values[:part]), statistics.median(values[-part:])
        found |= {f"{name}_per_trial": 1000 * statistics.median(values)}
        found |= {f"{name}_per_trial_first_tenth": 1000 * first, f"{name}_per_trial_last_tenth": 1000 * last}
        found[f"{name}_last_tenth_over_first"] = last / first
    grown = np.diff(sizes)
    return found | {
        "bytes_per_trial": size(writer.run_dir) / trials,
        "bytes_last_tenth_over_first": float(grown[-1] / grown[0]),
        "size_mb": size(writer.run_dir) / 1e6,
    }


def compare_on_disk(writer: Writer, trials: int, folder: Path, steps: int = 60) -> dict[str, float]:
    """Milliseconds per trial on the disk in a new ledger and in the large one, written in turn; medians."""
    large, new = folder / "large", folder / "new"
    shutil.copytree(writer.run_dir, large)
    seconds: dict[Path, list[float]] = {large: [], new: []}
    with Ledger(large, config=writer.config) as grown, Ledger(new, config=writer.config) as begun:
        begun.begin_episode(0, 0)
        for step in range(steps):
            for run_dir, ledger in ((large, grown), (new, begun)):
                seconds[run_dir].append(writer.step(ledger, step + (trials // GROUP if ledger is grown else 0))[0])
    ms_large, ms_new = (1000 * statistics.median(seconds[run_dir]) for run_dir in (large, new))
    return {
        "ms_write_and_fsync": milliseconds_of_a_commit(folder),
        "ms_per_trial_in_a_new_ledger": ms_new,
        "ms_per_trial_in_the_large_ledger": ms_large,
        "large_over_new": ms_large / ms_new,
    }


def milliseconds_of_a_commit(folder: Path, times: int = 200) -> float:
    """Median of writing 4 kB to the end of a file and waiting for the disk: what a commit cannot do without."""
    found = []
    with (folder / "probe").open("wb", buffering=0) as file:
        for _ in range(times):
            began = time.perf_counter()
            file.write(b"x" * 4096)
            os.fsync(file.fileno())
            found.append(time.perf_counter() - began)
    (folder / "probe").unlink()
    return 1000 * statistics.median(found)


READS: dict[str, str] = {
    "open_and_close": "Ledger(folder).close()",
    "open_to_read": "Ledger(folder, readonly=True).close()",
    "recorded_actions": "ledger.recorded_actions(0)",
    "thousand_lookups": "[ledger.trial(f'{i:024x}') for i in range(0, 1000)]",
    "trials_without_curves": "ledger.trials(curves=False)",
    "load_runs": "load_runs([folder])",
    "command_report": "main(['report', folder])",
}
"""What is timed -> the expression, each in a process of its own, on a file that lies in the page cache."""


def read(name: str, folder: Path) -> dict[str, float]:
    """Seconds and peak memory (MB) of one expression of :data:`READS`; imports and the opening are not timed."""
    code = f"""
import contextlib, io, json, resource, sys, time
from derl_gym.cli import main
from derl_gym.report.runs import load_runs
from derl_gym.trials.ledger import Ledger
folder = sys.argv[1]
ledger = Ledger(folder, readonly=True)
began, worked = time.perf_counter(), time.process_time()
with contextlib.redirect_stdout(io.StringIO()):
    kept = {READS[name]}
told = {{"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - worked}}
print(json.dumps(told | {{"memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000}}))
"""
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="a file system in memory")
    parser.add_argument("--disk", type=Path, default=Path(tempfile.gettempdir()), help="a folder on a disk")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    if args.trials < 10 * GROUP:
        parser.error(f"--trials must be at least {10 * GROUP}")
    found: dict[str, Any] = {"trials": args.trials}
    with (
        tempfile.TemporaryDirectory(dir=args.memory, prefix="ledger-") as memory,
        tempfile.TemporaryDirectory(dir=args.disk, prefix="ledger-") as disk,
    ):
        writer = Writer(Path(memory) / "run", args.trials)
        found["writing"] = write(writer, args.trials)
        found["on_disk"] = compare_on_disk(writer, args.trials, Path(disk))
        found["reading"] = {name: read(name, writer.run_dir) for name in READS}
    text = json.dumps(found, indent=1)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
