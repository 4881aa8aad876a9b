"""From ledgers to numbers: the curves over outer steps and one row per agent."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.markup import escape
from rich.table import Table

from derl_gym.report.estimates import Estimate, duration, estimate, quantity
from derl_gym.report.runs import Row, Run, load_runs

STRUCTURES = ("stable", "unstable", "invalid")


@dataclass(frozen=True)
class Cost:
    """Wall-clock seconds, summed over inner runs, and estimated floating point operations."""

    seconds: float = 0.0
    flops: float = 0.0

    def __str__(self) -> str:
        """``"3 min 5 s, 1.23 T FLOPs"``."""
        return duration(self.seconds) + (f", {quantity(self.flops)} FLOPs" if self.flops else "")


@dataclass(frozen=True)
class Halved:
    """What successive halving saved.

    Attributes:
        stopped: Step at which it stopped, and steps of the whole training -> programs that went no further.
        saved: Training FLOPs that their whole trainings would have taken on top, at the rate up to where they stopped;
            no cap is foreseen that would have ended them early.
        full: Training FLOPs of the whole trainings of all programs of the contests, stopped ones estimated like that.
        evaluation: FLOPs of the evaluations at the rungs.
    """

    stopped: dict[tuple[int, int], int]
    saved: float
    full: float
    evaluation: float

    def __str__(self) -> str:
        """``"4 at step 4 of 16, 2 at step 8 of 16"``."""
        return ", ".join(f"{count} at step {step} of {of}" for (step, of), count in self.stopped.items())

    @property
    def saving(self) -> str:
        """The saved share of training, and what it cost, in words."""
        share = self.saved / self.full if self.full else 0.0
        return (
            f"{100 * share:.0f} % of the training FLOPs that the same programs take to their end (estimated for those "
            f"that were stopped); the evaluations at the rungs took {quantity(self.evaluation)} FLOPs"
        )


@dataclass(frozen=True)
class AgentSummary:
    """One agent over all its seeds.

    Attributes:
        label: The agent.
        seeds: Searches (run directories and episodes).
        first: Mean validation score of the first outer step's proposals, over seeds; ``None`` before it is done.
        last: The same of each search's last complete outer step.
        best: Highest validation score of a proposal whose policy was trained to the end.
        best_program: The program that reached it first.
        test: Mean test score of the final trainings, over seeds; repeated openings of the test split are left out.
        inner_runs: Inner runs that were trained and scored; those that were stopped early are in ``halved``.
        cached: Proposals answered without one.
        invalid: Proposals that scored 0 as invalid.
        failed: Proposals whose inner run failed for good.
        waiting: Proposals without an outcome yet.
        benchmarks: Mean test accuracies by benchmark, where the examples name several.
        openings: How often the test split was opened, repeated openings included.
        tokens: Tokens seen in the inner runs' training.
        training: Cost of the inner training; an inner run that came from the shared cache cost nothing here.
        evaluation: Cost of the validations.
        reference: Cost of reference runs, training and validation together.
        processes: Cost of starting and ending the runs' processes.
        proposer: Cost of learning and writing, from a group's scores to the next group's programs. Its operations are
            not known.
        halved: What successive halving stopped; ``None`` where there was none.
    """

    label: str
    seeds: int
    first: Estimate | None
    last: Estimate | None
    best: float | None
    best_program: str
    test: Estimate | None
    inner_runs: int
    cached: int
    invalid: int
    failed: int
    waiting: int
    benchmarks: dict[str, Estimate]
    openings: int
    tokens: int
    training: Cost
    evaluation: Cost
    reference: Cost
    processes: Cost
    proposer: Cost
    halved: Halved | None = None

    @property
    def parts(self) -> dict[str, Cost]:
        """The cost by what it was for; without reference runs where there were none."""
        named = {"inner training": self.training, "validation": self.evaluation, "reference runs": self.reference}
        named |= {"processes": self.processes, "proposer": self.proposer}
        return {name: cost for name, cost in named.items() if name != "reference runs" or cost.seconds}

    @property
    def total(self) -> Cost:
        """All of it together."""
        return Cost(sum(cost.seconds for cost in self.parts.values()), sum(cost.flops for cost in self.parts.values()))


def by_label(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each agent, in the order in which agents first come."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    return groups


def mean_score(rows: Sequence[Row]) -> float | None:
    """Mean validation score of proposals. Invalid ones count as 0; failed ones, no fault of theirs, do not count."""
    scores = [row["score"] for row in rows if row["status"] in ("scored", "invalid")]
    return statistics.fmean(scores) if scores else None


def score_curve(runs: Sequence[Run]) -> dict[int, list[float]]:
    """Outer step -> mean validation score of its proposals, one number per search (the paper's figure 3)."""
    curve: dict[int, list[float]] = {}
    for run in runs:
        for step, groups in run.steps().items():
            curve.setdefault(step, []).extend(m for rows in groups if (m := mean_score(rows)) is not None)
    return dict(sorted((step, means) for step, means in curve.items() if means))


def test_curve(runs: Sequence[Run]) -> dict[int, tuple[float, float]]:
    """Outer step -> mean validation and mean test score of its programs (the paper's figure 4).

    Only steps all of whose scored proposals were analysed on the test split are in it, so most searches have none.
    Test scores are read here, after the search; nothing gives them back to it.
    """
    pairs: dict[int, list[tuple[float, float]]] = {}
    for run in runs:
        for step, groups in run.steps().items():
            rows = [row for group in groups for row in group if row["status"] == "scored"]
            if rows and all(row["identity"] in run.tests for row in rows):
                pairs.setdefault(step, []).extend((row["score"], run.tests[row["identity"]]) for row in rows)
    return {
        step: (statistics.fmean(v for v, _ in rows), statistics.fmean(t for _, t in rows))
        for step, rows in sorted(pairs.items())
    }


def structure_curve(runs: Sequence[Run]) -> dict[int, dict[str, float]]:
    """Outer step -> share of stable, unstable and invalid proposals (the paper's figure 6)."""
    counts: dict[int, list[str]] = {}
    for run in runs:
        for row in run.proposals:
            counts.setdefault(row["step"], []).append(row["structure"])
    return {
        step: {structure: found.count(structure) / len(found) for structure in STRUCTURES}
        for step, found in sorted(counts.items())
    }


def summarise(label: str, runs: Sequence[Run]) -> AgentSummary:
    """One agent's row."""
    proposals = [row for run in runs for row in run.proposals]
    trained = [row for run in runs for row in run.trials.values() if row["status"] in ("scored", "invalid")]
    rungs = [row for run in runs for row in run.rungs.values()]
    stopped = {row["identity"] for row in rungs}
    scored = [row for row in proposals if row["status"] == "scored" and row["identity"] not in stopped]
    best = max(scored, key=lambda row: row["score"], default=None)
    episodes = [_episode_means(run, episode) for run in runs for episode in _episodes(run)]
    finals = [final for run in runs for final in run.finals]
    first_looks = [final for final in finals if not final["again"]]
    references = {identity for run in runs for identity in run.references}
    spent = [row for row in [*trained, *rungs] if row["seconds"]]
    searched = [row for row in spent if row["identity"] not in references]
    reference = [row for row in spent if row["identity"] in references]
    training, evaluation = _cost(searched)
    return AgentSummary(
        label=label,
        seeds=len(episodes),
        first=estimate([means[0] for means in episodes if means]),
        last=estimate([means[-1] for means in episodes if means]),
        best=None if best is None else best["score"],
        best_program="" if best is None else best["program"],
        test=estimate([final["test"] for final in first_looks]),
        benchmarks=_by_benchmark(first_looks),
        openings=len(finals),
        inner_runs=len(trained),
        cached=sum(row["cached"] for row in proposals),
        invalid=sum(row["status"] == "invalid" for row in proposals),
        failed=sum(row["status"] == "failed" for row in proposals),
        waiting=sum(row["status"] == "proposed" for row in proposals),
        tokens=sum(row["tokens"] or 0 for row in spent),
        training=training,
        evaluation=evaluation,
        reference=Cost(sum(cost.seconds for cost in _cost(reference)), sum(cost.flops for cost in _cost(reference))),
        processes=Cost(max(0.0, sum(row["seconds"] - _run_seconds(row) for row in spent))),
        proposer=Cost(sum(run.proposer_seconds for run in runs)),
        halved=_halved(runs) if rungs else None,
    )


def _halved(runs: Sequence[Run]) -> Halved:
    """Programs count once in a search, with the furthest that they came."""
    stopped: dict[tuple[int, int], int] = {}
    saved = full = evaluation = 0.0
    for run in runs:
        answers = {row["identity"] for row in run.proposals}
        by_class = run.config.get("cache", "equivalent") == "equivalent"
        reached: dict[tuple[object, ...], Row] = {}
        for row in [*run.rungs.values(), *run.trials.values()]:
            if row["status"] == "scored" and row["seconds"] and row["identity"] not in run.references:
                who = (row["key"] if by_class else row["program"], row["seed"], row["policy"])
                if who not in reached or row["result"]["steps"] > reached[who]["result"]["steps"]:
                    reached[who] = row
        for row in reached.values():
            result = row["result"]
            flops = result["flops"] - result["eval_flops"]
            of_steps = result["of_steps"] or result["steps"]
            full += flops * of_steps / result["steps"]
            if row["identity"] in run.rungs and row["identity"] in answers:
                saved += flops * (of_steps / result["steps"] - 1)
                place = (result["steps"], of_steps)
                stopped[place] = stopped.get(place, 0) + 1
        evaluation += sum(row["result"]["eval_flops"] for row in run.rungs.values() if row["seconds"])
    return Halved(dict(sorted(stopped.items())), saved, full, evaluation)


def _cost(trials: Sequence[Row]) -> tuple[Cost, Cost]:
    """Of training and of evaluation."""
    results = [row["result"] or {} for row in trials]
    evaluation = sum(result.get("eval_flops") or 0.0 for result in results)
    training = sum(row["flops"] or 0.0 for row in trials) - evaluation
    return (
        Cost(sum(map(_train_seconds, results)), training),
        Cost(sum(result.get("eval_seconds") or 0.0 for result in results), evaluation),
    )


def _run_seconds(trial: Row) -> float:
    result = trial["result"] or {}
    return _train_seconds(result) + (result.get("eval_seconds") or 0.0)


def _train_seconds(result: Row) -> float:
    """Without those of a run that this one goes on from: they are counted there."""
    return (result.get("train_seconds") or 0.0) - (result.get("before") or {}).get("train_seconds", 0.0)


def _by_benchmark(finals: Sequence[Row]) -> dict[str, Estimate]:
    """Mean test accuracies; empty where the examples name fewer than two benchmarks."""
    scores = [(final["result"] or {}).get("scores") or {} for final in finals]
    names = list(dict.fromkeys(name for found in scores for name in found))
    values = {name: estimate([found[name] for found in scores if name in found]) for name in names}
    return {name: found for name, found in values.items() if found is not None and len(names) > 1}


def _episodes(run: Run) -> list[int]:
    return sorted({row["episode"] for row in run.proposals})


def _episode_means(run: Run, episode: int) -> list[float]:
    groups = [rows for found in run.steps().values() for rows in found if rows[0]["episode"] == episode]
    return [mean for rows in groups if (mean := mean_score(rows)) is not None]


def summary_table(run_dirs: Sequence[str | Path | Run]) -> Table:
    """The agents of some run directories as a table for the terminal, one column each.

    Args:
        run_dirs: Folders with a ledger in them or below them, or what :func:`load_runs` read there.

    Raises:
        FileNotFoundError: when there is no ledger in or below one of them.
    """
    runs = load_runs(run_dirs)
    summaries = [summarise(label, group) for label, group in by_label(runs).items()]
    caption = "±: half of the 95 % t interval over searches, from three on"
    if repeats := sum(len(run.repeats) for run in runs):
        caption += f"\nleft out, as the same search with the same seed is counted: {repeats}"
    table = Table(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left")
    table.add_column("")
    for summary in summaries:
        table.add_column(escape(summary.label), overflow="fold")
    benchmarks = dict.fromkeys(name for summary in summaries for name in summary.benchmarks)
    parts = dict.fromkeys(part for summary in summaries for part in summary.parts)
    rows: dict[str, Callable[[AgentSummary], object]] = {
        "searches": lambda s: s.seeds,
        "first step, %": lambda s: s.first,
        "last step, %": lambda s: s.last,
        "best proposal, %": lambda s: None if s.best is None else f"{100 * s.best:.1f}",
        "best program": lambda s: escape(s.best_program) or None,
        "test, %": lambda s: s.test,
        **{f"test, {name}, %": lambda s, name=name: s.benchmarks.get(name) for name in benchmarks},
        "openings of the test split": lambda s: s.openings or None,
        "inner runs": lambda s: s.inner_runs,
        "stopped early": lambda s: s.halved,
        "saved by that": lambda s: s.halved and s.halved.saving,
        "answered without one": lambda s: s.cached,
        "invalid": lambda s: s.invalid,
        "failed": lambda s: s.failed,
        "waiting": lambda s: s.waiting,
        "tokens": lambda s: quantity(s.tokens),
        **{part: lambda s, part=part: s.parts.get(part) for part in parts},
    }
    for name, read in rows.items():
        values = [read(summary) for summary in summaries]
        if any(values) or not (name in ("waiting", "stopped early", "saved by that") or "test" in name):
            table.add_row(name, *("-" if value is None else str(value) for value in values))
    return table
