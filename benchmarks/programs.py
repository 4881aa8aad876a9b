"""How fast reward programs are: evaluation, masks, parsing, refusal.

    python benchmarks/programs.py [--out programs.json]

Ratios are taken within one run, so they do not depend on the machine. Times are medians on one core.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from derl_gym.programs import Grammar, InvalidProgram, RewardProgram, states_of
from derl_gym.tasks.base import Primitive

ROLLOUTS = 4096
PROGRAMS = ("0.5*g1+0.8*g2", "g1/(g2+1)", "g1*(g2+0.2)*g3", "g1+(g2*(g3/2))-(g4/3)", "g1+g2**0.5")
HOSTILE = {
    "9**9**9": "9**9**9",
    "(((((": "(((((",
    "1e400": "1e400",
    "007": "007",
    "g2g3": "g2g3",
    "10,000 characters": "9" * 10_000,
    "unicode digits": "g1+\u0663",
    "60 nested parentheses": "(" * 60 + "*" + ")" * 60,
    "127 powers": "9**" * 127 + "9",
    "400 digits": "9" * 400,
}


def seconds(function: Callable[[], Any], least: float = 0.2) -> float:
    """Median time of a call, over at least ``least`` seconds."""
    times = []
    deadline = time.perf_counter() + least
    while time.perf_counter() < deadline or len(times) < 3:
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def evaluation() -> dict[str, Any]:
    """Rewards of 4,096 rollouts against Python's eval, once per rollout, of the text and of compiled code."""
    values = np.random.default_rng(0).integers(0, 2, (ROLLOUTS, 4)).astype(np.float64)
    rows = [{f"g{i + 1}": value for i, value in enumerate(row)} for row in values.tolist()]

    def compare(text: str) -> dict[str, float]:
        program, code, nothing = RewardProgram.parse(text), compile(text, "program", "eval"), {"__builtins__": {}}
        ours = seconds(lambda: program(values))
        return {
            "microseconds": ours * 1e6,
            "times_faster_than_eval_of_text": seconds(lambda: [eval(text, nothing, row) for row in rows]) / ours,
            "times_faster_than_eval_of_code": seconds(lambda: [eval(code, nothing, row) for row in rows]) / ours,
        }

    return {text: compare(text) for text in PROGRAMS}


def masks() -> dict[str, float]:
    """Microseconds of one grammar mask, from scratch, for every prefix of sampled programs of up to 32 tokens."""
    rng = np.random.default_rng(0)
    prefixes: list[np.ndarray] = []
    programs = [Grammar().encode(Grammar().sample(rng)) for _ in range(100)]
    programs.append(Grammar().encode("-(g1+0.5*g2)*(g3-1)+g4/(2+g1)*g2+2*g3"))
    for ids in programs:
        prefixes += [ids[:length] for length in range(np.count_nonzero(ids) + 1)]
    grammar = Grammar()
    cold = _each(lambda ids: grammar.mask(ids), prefixes)
    warm = _each(lambda ids: grammar.mask(ids), prefixes)
    return {
        "median": statistics.median(warm),
        "99th percentile": float(np.percentile(warm, 99)),
        "median of the longest prefix": seconds(lambda: grammar.mask(prefixes[-1])) * 1e6,
        "mean of a first visit": statistics.mean(cold),
    }


def parsing() -> dict[str, Any]:
    """Microseconds to parse, judge and draw programs, and to refuse hostile texts."""
    grammar = Grammar()
    rng = np.random.default_rng(0)
    texts = [grammar.sample(rng) for _ in range(200)]
    primitives = [Primitive(f"g{i + 1}", "", lambda completion, example: 0.0) for i in range(4)]
    states = states_of(primitives)
    programs = [RewardProgram.parse(text) for text in texts]

    def refuse(text: str) -> None:
        try:
            RewardProgram.parse(text)
        except InvalidProgram:
            return
        raise AssertionError(f"{text!r} was accepted")

    return {
        "parse": statistics.median(_each(RewardProgram.parse, texts)),
        "encode": statistics.median(_each(grammar.encode, texts)),
        "sample": statistics.median(_each(lambda _: grammar.sample(rng), texts)),
        "equivalence_key": statistics.median(_each(lambda p: p.equivalence_key(states), programs)),
        "analyse": statistics.median(_each(lambda p: p.analyse(primitives), programs)),
        "refuse": {name: seconds(lambda text=text: refuse(text), 0.02) * 1e6 for name, text in HOSTILE.items()},
    }


def _each(function: Callable[[Any], Any], arguments: Sequence[Any]) -> list[float]:
    times = []
    for argument in arguments:
        start = time.perf_counter()
        function(argument)
        times.append((time.perf_counter() - start) * 1e6)
    return times


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    out: Path | None = parser.parse_args().out
    found = {"evaluation of 4,096 rollouts": evaluation(), "mask, microseconds": masks(), "microseconds": parsing()}
    least = min(row["times_faster_than_eval_of_text"] for row in found["evaluation of 4,096 rollouts"].values())
    found["claims"] = {
        f"evaluation is at least 50 x faster than eval per rollout (measured: {least:.0f})": least >= 50,
        "a mask takes less than 50 us": found["mask, microseconds"]["median of the longest prefix"] < 50,
        "every refusal takes less than 500 us": max(found["microseconds"]["refuse"].values()) < 500,
    }
    print(json.dumps(found, indent=2))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
