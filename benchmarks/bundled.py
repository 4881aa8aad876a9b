"""Measure the table of trials that comes with DERL-Arithmetic-v0 (``cache="bundled"``): inner runs, nothing modelled.

    python benchmarks/bundled.py [--out FILE] [--workers 2] [--seeds 3] [--limit N] [--pack]

Every equivalence class of programs of up to six tokens with one-digit numbers, then a grid of linear weights, ratios
and products. Each class is trained with every seed, as the environment would train it, and scored on validation; the
same policy's test score goes into a file of its own. Results are appended to a file of lines as they arrive: a second
call goes on where the first one ended, and ``--pack`` writes the table from what is there.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from derl_gym.envs.identity import policy_fingerprint
from derl_gym.envs.outer_loop import OuterLoop
from derl_gym.envs.settings import make_settings
from derl_gym.programs import Grammar
from derl_gym.trials.bundled import write_table
from derl_gym.trials.pool import Job, LocalPool

ENVIRONMENT = "DERL-Arithmetic-v0"
TASK = "derl_gym.tasks.arithmetic:Arithmetic"
LONGEST, MOST_DIGITS = 6, 1
"""The language that is measured whole: up to six tokens, and numbers of one digit before and after the point."""
SEEDS = (1, 2, 3, 4, 5, 6, 7, 8)
WEIGHTS = (-1, 0, 1, 2, 4)
GUARDS = ("0.5", "1", "2")
BATCH = 16
"""Trainings between two batches of evaluations; their policies lie on the disk meanwhile."""


def sentences(grammar: Grammar) -> Iterator[str]:
    """Every program of a grammar, shortest first."""
    prefixes: list[tuple[str, Any]] = [("", grammar.initial)]
    while prefixes:
        longer = []
        for text, state in prefixes:
            mask = grammar.mask_of(state)
            if mask[0] and text:
                yield text
            for token in mask[1:].nonzero()[0] + 1:
                longer.append((text + grammar.tokens[token], grammar.advance_token(state, int(token))))
        prefixes = longer


def grid(names: Iterable[str]) -> Iterator[str]:
    """Linear combinations with small whole weights, then products and ratios of two terms, alone and added to g1."""
    names = list(names)
    for weights in itertools.product(WEIGHTS, repeat=len(names)):
        terms = [f"{weight:+d}*{name}" for weight, name in zip(weights, names, strict=True) if weight]
        if terms:
            yield "".join(terms).replace("1*", "").removeprefix("+")
    for a, b, c in itertools.product(names, names, GUARDS):
        for term in (f"{a}*({b}+{c})", f"{a}/({b}+{c})"):
            yield term
            for other in names:
                yield from (f"{other}+{term}", f"{other}-{term}")


def classes(loop: OuterLoop) -> list[dict[str, str]]:
    """Equivalence class -> its first program, in the order in which they are measured.

    Returns:
        Those of the language that are defined in every state, those that are not, and those of the grid.
    """
    groups: list[dict[str, str]] = [{}, {}, {}]
    grammar = Grammar(k=loop.k, max_length=LONGEST, max_digits=MOST_DIGITS)
    for of_grid, texts in enumerate((sentences(grammar), grid(grammar.primitives))):
        for text in texts:
            program = loop.parse(text)
            analysis = program.analyse(loop.task.primitives, states=loop.states)
            key = loop.class_of(program, analysis)
            if not any(key in group for group in groups):
                groups[2 if of_grid else bool(analysis.undefined)][key] = text
    return groups


def measured(path: Path) -> list[dict[str, Any]]:
    """What the file holds; a last line that a kill has cut off is dropped."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    if lines and not lines[-1].endswith("\n"):
        path.write_text("".join(lines := lines[:-1]))
    return [json.loads(line) for line in lines]


def measure(loop: OuterLoop, todo: list[tuple[str, str, int]], out: Path, workers: int) -> None:
    """Train and evaluate (class, program, seed) by (class, program, seed); one line each."""
    started, done = time.monotonic(), 0
    with LocalPool(workers=workers) as pool:
        for batch in (todo[i : i + BATCH] for i in range(0, len(todo), BATCH)):
            with tempfile.TemporaryDirectory() as folder:
                for line in run_batch(loop, batch, Path(folder), pool):
                    with out.open("a") as file:
                        file.write(json.dumps(line) + "\n")
            done += len(batch)
            left = (time.monotonic() - started) / done * (len(todo) - done)
            print(f"{done} of {len(todo)}, {left / 60:.0f} minutes left", flush=True)


def run_batch(
    loop: OuterLoop, batch: Iterable[tuple[str, str, int]], folder: Path, pool: LocalPool
) -> Iterator[dict[str, Any]]:
    """Some trainings as the environment does them, their policies kept, then the policies' test scores."""
    asked = {f"{i}": one for i, one in enumerate(batch)}
    training = [
        Job(
            id=i,
            target="derl_gym.inner.train:run",
            payload=loop.payload(program, loop.base_policy, seed) | {"save_policy": True},
            folder=folder / i,
            timeout=loop.inner.timeout,
        )
        for i, (_, program, seed) in asked.items()
    ]
    results = {outcome.id: _result(outcome) for outcome in pool.run(training)}
    testing = [
        Job(
            id=i,
            target="derl_gym.inner.evaluate:run",
            payload=loop.payload("g1", result["policy"], asked[i][2])
            | {"split": "test", "data": loop.hashes("test"), "config": dataclasses.asdict(loop.inner)},
            folder=folder / f"{i}-test",
            timeout=loop.inner.timeout,
        )
        for i, result in results.items()
        if result["status"] == "scored"
    ]
    tests = {outcome.id: _result(outcome)["score"] for outcome in pool.run(testing)}
    for i, (key, program, seed) in asked.items():
        shutil.rmtree(folder / i, ignore_errors=True)
        result = results[i] | {"policy": ""}
        yield {"key": key, "program": program, "seed": seed, "test": tests.get(i), "result": result}


def _result(outcome: Any) -> dict[str, Any]:
    if outcome.result is None:
        raise SystemExit(f"a run failed: {outcome.failure}")
    return outcome.result


def pack(loop: OuterLoop, groups: list[dict[str, str]], out: Path, seeds: Sequence[int]) -> None:
    """Write the table of what has been measured with all these seeds.

    Raises:
        SystemExit: the language is not measured whole.
    """
    lines = measured(out)
    there = {(line["key"], line["seed"]) for line in lines}
    if lacking := [key for group in groups[:2] for key in group for seed in seeds if (key, seed) not in there]:
        raise SystemExit(f"{len(lacking)} runs of the language are still to be measured: run it without --pack")
    last = lines[-1]["result"]
    folder = loop.task.measured
    assert folder is not None
    description = {
        "environment": ENVIRONMENT,
        "language": {"max_program_length": LONGEST, "max_digits": MOST_DIGITS},
        "programs_of_the_language": sum(1 for _ in sentences(Grammar(loop.k, LONGEST, max_digits=MOST_DIGITS))),
        "classes_of_the_language": sum(map(len, groups[:2])),
        "trials": loop.common(loop.inner, policy_fingerprint(loop.base_policy)),
        "provenance": {name: last[name] for name in ("device", "code", "versions")},
    }
    wanted = {key for group in groups for key in group}
    write_table(folder, (line for line in lines if line["key"] in wanted), seeds, description)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {json.loads((folder / 'table.json').read_text())['classes']} classes, {size / 1e6:.2f} MB")


def main() -> None:
    """Measure what is missing; pack it if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bundled.jsonl"), help="file of lines")
    parser.add_argument("--workers", type=int, default=1, help="inner runs at once")
    parser.add_argument("--seeds", type=int, default=3, help=f"seeds per class, up to {len(SEEDS)}")
    parser.add_argument("--limit", type=int, help="stop after so many runs")
    parser.add_argument("--pack", action="store_true", help="measure nothing: write the table from what is there")
    arguments = parser.parse_args()

    loop = OuterLoop(make_settings({"task": TASK}), lambda: ENVIRONMENT)
    groups = classes(loop)
    if arguments.pack:
        return pack(loop, groups, arguments.out, SEEDS[: arguments.seeds])
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    there = {(line["key"], line["seed"]) for line in measured(arguments.out)}
    todo = [
        (key, program, seed)
        for group in groups
        for seed in SEEDS[: arguments.seeds]
        for key, program in group.items()
        if (key, seed) not in there
    ]
    print(f"{' + '.join(map(str, map(len, groups)))} classes, {len(there)} runs there, {len(todo)} to do", flush=True)
    measure(loop, todo[: arguments.limit], arguments.out, arguments.workers)


if __name__ == "__main__":
    main()
