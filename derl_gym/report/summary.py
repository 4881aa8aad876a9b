"""From ledgers to numbers: the curves over outer steps and one row per agent."""

from __future__ import annotations

import datetime
import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.markup import escape
from rich.table import Table

from derl_gym.report.estimates import Estimate, duration, estimate, quantity
from derl_gym.report.runs import Row, Run, load_runs

STRUCTURES = ("stable", "unstable", "invalid")


@dataclass(frozen=True)
class AgentSummary:
    """One agent over all its seeds.

    Attributes:
        label: The agent.
        seeds: Searches (run directories and episodes).
        first: Mean validation score of the first outer step's proposals, over seeds; ``None`` before it is done.
        last: The same of each search's last complete outer step.
        best: Highest validation score of a proposal.
        best_program: The program that reached it first.
        test: Mean test score of the final trainings, over seeds; repeated openings of the test split are left out.
        inner_runs: Inner runs that were trained and scored.
        cached: Proposals answered without one.
        invalid: Proposals that scored 0 as invalid.
        failed: Proposals whose inner run failed for good.
        waiting: Proposals without an outcome yet.
        tokens: Tokens seen in the inner runs' training.
        flops: Estimated floating point operations of the inner runs.
        train_seconds: Wall-clock seconds of inner training, summed over runs.
        eval_seconds: The same of the validations.
        other_seconds: The same of starting and ending the runs' processes.
        proposer_seconds: Estimated seconds between outer steps, when the proposer learns and writes.
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
    tokens: int
    flops: float
    train_seconds: float
    eval_seconds: float
    other_seconds: float
    proposer_seconds: float

    @property
    def seconds(self) -> float:
        """All seconds together."""
        return self.train_seconds + self.eval_seconds + self.other_seconds + self.proposer_seconds


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
    scored = [row for row in proposals if row["status"] == "scored"]
    best = max(scored, key=lambda row: row["score"], default=None)
    episodes = [_episode_means(run, episode) for run in runs for episode in _episodes(run)]
    tests = [final["test"] for run in runs for final in run.finals if not final["again"]]
    results = [row["result"] or {} for row in trained]
    train = sum(result.get("train_seconds") or 0.0 for result in results)
    evaluation = sum(result.get("eval_seconds") or 0.0 for result in results)
    return AgentSummary(
        label=label,
        seeds=len(episodes),
        first=estimate([means[0] for means in episodes if means]),
        last=estimate([means[-1] for means in episodes if means]),
        best=None if best is None else best["score"],
        best_program="" if best is None else best["program"],
        test=estimate(tests),
        inner_runs=len(trained),
        cached=sum(row["cached"] for row in proposals),
        invalid=sum(row["status"] == "invalid" for row in proposals),
        failed=sum(row["status"] == "failed" for row in proposals),
        waiting=sum(row["status"] == "proposed" for row in proposals),
        tokens=sum(row["tokens"] or 0 for row in trained),
        flops=sum(row["flops"] or 0.0 for row in trained),
        train_seconds=train,
        eval_seconds=evaluation,
        other_seconds=max(0.0, sum(row["seconds"] or 0.0 for row in trained) - train - evaluation),
        proposer_seconds=sum(_proposer_seconds(run) for run in runs),
    )


def _episodes(run: Run) -> list[int]:
    return sorted({row["episode"] for row in run.proposals})


def _episode_means(run: Run, episode: int) -> list[float]:
    groups = [rows for found in run.steps().values() for rows in found if rows[0]["episode"] == episode]
    return [mean for rows in groups if (mean := mean_score(rows)) is not None]


def _proposer_seconds(run: Run) -> float:
    """Seconds from a group's last outcome to the next group's first program: the median, times their number.

    The median, since a search that was interrupted has a pause among them that says nothing of the proposer.
    """
    gaps: list[float] = []
    for episode in _episodes(run):
        rows = [row for row in run.proposals if row["episode"] == episode]
        groups = [list(group) for _, group in itertools.groupby(rows, key=lambda row: row["step"])]
        for before, after in itertools.pairwise(groups):
            ends = [row["settled_at"] for row in before]
            if all(ends):
                start = datetime.datetime.fromisoformat(min(row["proposed_at"] for row in after))
                gaps.append((start - datetime.datetime.fromisoformat(max(ends))).total_seconds())
    return max(0.0, statistics.median(gaps) * len(gaps)) if gaps else 0.0


def summary_table(run_dirs: Sequence[object]) -> Table:
    """The agents of some run directories as a table for the terminal, one column each.

    Args:
        run_dirs: Folders with a ledger in them or below them.

    Raises:
        FileNotFoundError: when there is no ledger in or below one of them.
    """
    runs = load_runs(map(str, run_dirs))
    summaries = [summarise(label, group) for label, group in by_label(runs).items()]
    caption = "±: half of the 95 % t interval over searches, from three on"
    if repeats := sum(len(run.repeats) for run in runs):
        caption += f"\nleft out, as the same search with the same seed is counted: {repeats}"
    table = Table(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left")
    table.add_column("")
    for summary in summaries:
        table.add_column(escape(summary.label), overflow="fold")
    rows: dict[str, Callable[[AgentSummary], object]] = {
        "searches": lambda s: s.seeds,
        "first step, %": lambda s: s.first,
        "last step, %": lambda s: s.last,
        "best proposal, %": lambda s: None if s.best is None else f"{100 * s.best:.1f}",
        "best program": lambda s: escape(s.best_program) or None,
        "test, %": lambda s: s.test,
        "inner runs": lambda s: s.inner_runs,
        "answered without one": lambda s: s.cached,
        "invalid": lambda s: s.invalid,
        "failed": lambda s: s.failed,
        "waiting": lambda s: s.waiting,
        "tokens": lambda s: quantity(s.tokens),
        "FLOPs": lambda s: quantity(s.flops),
        "time of inner runs": lambda s: duration(s.seconds - s.proposer_seconds),
    }
    for name, read in rows.items():
        values = [read(summary) for summary in summaries]
        if name not in ("test, %", "waiting") or any(values):
            table.add_row(name, *("-" if value is None else str(value) for value in values))
    return table
