"""Trials that were measured beforehand and come with a task: what ``cache="bundled"`` looks up.

A table is a folder of three files: ``table.json`` says how it was made, ``validation.npz`` holds results by equivalence
class and seed, ``test.npz`` the test scores of the same policies, which no search reads. Only numbers that real inner
runs gave are in it. It is made by ``benchmarks/bundled.py``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from derl_gym.inner.result import InnerResult

FORMAT = 1
"""Version of the files."""
_STATUS = ("scored", "invalid")
_NUMBERS = {"score": "f8", "standard_error": "f8", "n_evaluated": "i4", "steps": "i4", "tokens": "i8", "flops": "f8"}
_NUMBERS |= {"eval_flops": "f8", "train_seconds": "f4", "eval_seconds": "f4"}
_DIGITS = 5
"""Significant digits of curves and means, which are for people; scores and costs are exact."""


class Bundled:
    """Results of inner runs by equivalence class and seed.

    Args:
        folder: Of the table's files.

    Attributes:
        made: ``table.json``: ``trials`` (what every trial has in common, as in a trial's identity), ``language``
            (``max_program_length`` and ``max_digits`` of the programs that are all in it), ``provenance`` and counts.
        seeds: Of the inner runs; every class was trained with each.

    Raises:
        FileNotFoundError: there is no table.
        ValueError: another format.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made = made(folder)
        self.seeds: list[int] = self.made["seeds"]

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def __len__(self) -> int:
        """Number of classes."""
        return len(self._places)

    @property
    def programs(self) -> dict[str, str]:
        """Equivalence class -> the program that was trained."""
        return dict(zip(self._places, self._arrays["program"].tolist(), strict=True))

    def get(self, key: str, seed: int) -> dict[str, Any] | None:
        """The result of an inner run as :class:`derl_gym.inner.result.InnerResult` has it, or ``None``.

        Args:
            key: The program's class, as the environment's info has it.
            seed: One of :attr:`seeds`.
        """
        if key not in self._places or seed not in self.seeds:
            return None
        return self._result(self._places[key], self.seeds.index(seed))

    @functools.cached_property
    def _arrays(self) -> dict[str, np.ndarray]:
        with np.load(self.folder / "validation.npz", allow_pickle=False) as file:
            return {name: file[name] for name in file.files}

    @functools.cached_property
    def _places(self) -> dict[str, int]:
        return {key: place for place, key in enumerate(self._arrays["key"].tolist())}

    @functools.lru_cache(maxsize=4096)  # noqa: B019  a table lives as long as its process
    def _result(self, place: int, which: int) -> dict[str, Any]:
        arrays = self._arrays
        numbers = {name: arrays[name][place, which].item() for name in _NUMBERS}
        if np.isnan(numbers["standard_error"]):
            numbers["standard_error"] = None
        status = _STATUS[arrays["status"][place, which]]
        result = InnerResult(
            status,  # type: ignore[arg-type]
            reason=str(arrays["reasons"][arrays["reason"][place, which]]),
            curve=self._curve(int(arrays["curve"][place, which])),
            primitive_means=_rounded(arrays["primitive_means"][place, which]) if status == "scored" else [],
            **numbers,
            **self.made["provenance"],
        )
        return result.to_dict()

    def _curve(self, row: int) -> list[dict[str, float]]:
        if row < 0:
            return []
        steps = [
            {name: value for name, value in zip(self.made["columns"], _rounded(step), strict=True) if value == value}
            for step in self._arrays["curves"][row]
        ]
        return [step for step in steps if step]  # a run that ended early has no others


def made(folder: Path) -> dict[str, Any]:
    """``table.json`` of a table.

    Raises:
        FileNotFoundError: there is no table.
        ValueError: another format.
    """
    description = json.loads((folder / "table.json").read_text())
    if description.get("format") != FORMAT:
        raise ValueError(f"{folder} holds a table of format {description.get('format')}, expected {FORMAT}")
    return description


@functools.cache
def open_table(folder: Path) -> Bundled:
    """The table of a folder, read once per process."""
    return Bundled(folder)


def test_scores(folder: Path) -> dict[tuple[str, int], float]:
    """(equivalence class, seed) -> test score of the policy. For reports after a search; nothing else may read it."""
    table = open_table(folder)
    with np.load(folder / "test.npz", allow_pickle=False) as file:
        test = file["test"]
    return {
        (key, seed): float(test[place, i])
        for key, place in table._places.items()
        for i, seed in enumerate(table.seeds)
        if not np.isnan(test[place, i])
    }


@functools.cache
def mean_test_scores(folder: Path) -> dict[str, float]:
    """Equivalence class -> mean of :func:`test_scores` over the seeds."""
    scores: dict[str, list[float]] = {}
    for (key, _), score in test_scores(folder).items():
        scores.setdefault(key, []).append(score)
    return {key: float(np.mean(found)) for key, found in scores.items()}


def write_table(
    folder: Path, lines: Iterable[Mapping[str, Any]], seeds: Sequence[int], description: Mapping[str, Any]
) -> None:
    """Write a table from measured trials.

    Args:
        folder: Made if need be.
        lines: ``key``, ``program``, ``seed``, ``result`` (of an :class:`InnerResult`) and ``test`` (a score or
            ``None``). A class that lacks one of the seeds is left out.
        seeds: Of the table.
        description: What ``table.json`` says besides; ``trials``, ``language`` and ``provenance`` are read.
    """
    known: dict[str, dict[int, Mapping[str, Any]]] = {}
    for line in lines:
        known.setdefault(line["key"], {})[line["seed"]] = line
    rows = [[runs[seed] for seed in seeds] for runs in known.values() if set(seeds) <= set(runs)]
    shape = (len(rows), len(seeds))
    results = [[line["result"] for line in runs] for runs in rows]
    flat = [result for runs in results for result in runs]
    columns = list(dict.fromkeys(name for result in flat for step in result["curve"] for name in step))
    steps = max((len(result["curve"]) for result in flat), default=0)
    reasons = sorted({result["reason"] for result in flat})
    curves: list[np.ndarray] = []
    places = np.full(shape, -1, dtype="i4")
    for at, result in zip(np.ndindex(shape), flat, strict=True):
        if result["curve"]:
            places[at] = len(curves)
            curve = [[step.get(name, np.nan) for name in columns] for step in result["curve"]]
            curves.append(np.array(curve + [[np.nan] * len(columns)] * (steps - len(curve))))
    k = max(len(result["primitive_means"]) for result in flat)
    means = [[result["primitive_means"] or [np.nan] * k for result in runs] for runs in results]
    arrays = {
        "key": np.array([runs[0]["key"] for runs in rows]),
        "program": np.array([runs[0]["program"] for runs in rows]),
        "status": np.array([[_STATUS.index(result["status"]) for result in runs] for runs in results], dtype="i1"),
        "reasons": np.array(reasons),
        "reason": np.array([[reasons.index(result["reason"]) for result in runs] for runs in results], dtype="i4"),
        "primitive_means": _short(np.array(means)),
        "curve": places,
        "curves": _short(np.array(curves).reshape(len(curves), steps, len(columns))),
    }
    for name, kind in _NUMBERS.items():
        values = [[np.nan if result[name] is None else result[name] for result in runs] for runs in results]
        arrays[name] = np.array(values, dtype=kind)
    test = [[np.nan if line["test"] is None else line["test"] for line in runs] for runs in rows]
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / "validation.npz", **arrays)
    np.savez_compressed(folder / "test.npz", test=np.array(test))
    told = {"format": FORMAT, "classes": len(rows), "runs": len(flat), "seeds": list(seeds), "columns": columns}
    (folder / "table.json").write_text(json.dumps(told | dict(description), indent=1) + "\n")


def _short(values: np.ndarray) -> np.ndarray:
    """Float32 without the bits that :data:`_DIGITS` digits do not need, so that it can be compressed."""
    bits = values.astype("f4").view("u4")
    return ((bits + 0x20) & np.uint32(0xFFFFFFC0)).view("f4")


def _rounded(values: np.ndarray) -> list[float]:
    return [float(f"{value:.{_DIGITS}g}") for value in values.tolist()]
