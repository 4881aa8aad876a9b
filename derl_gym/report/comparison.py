"""Outer optimisers judged by their ledgers alone: one line of measures per search, one row per agent, duels of agents.

Every proposal of a complete outer step counts, in its order; what is invalid or failed for good scores 0. The budget on
the x-axis is proposals, the same for every agent; what they cost in inner runs and seconds is in the summary.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from rich import box
from rich.markup import escape
from rich.table import Table

from derl_gym.report.runs import Row, Run
from derl_gym.report.statistics import Duel, Interval, duels, interval
from derl_gym.tasks.base import task_class
from derl_gym.trials import bundled

Metric = Literal["area", "best", "last", "test"]
METRICS: dict[Metric, str] = {
    "area": "area under the best score so far, over the budget",
    "best": "best validation score",
    "last": "mean validation score of the last outer step",
    "test": "test score of the best program",
}
REACHED = 0.95
"""Of the best score of all searches: the threshold that "proposals to threshold" counts to."""
RANDOM = "random"
"""The agent that every other has to beat first."""


@dataclasses.dataclass(frozen=True)
class Search:
    """One search of one agent.

    Attributes:
        label: The agent.
        environment: Its id.
        seed: The search's.
        scores: Validation score of every proposal.
        last: Mean of the last outer step.
        invalid: Share of proposals that scored 0 as invalid.
        duplicates: Share of proposals whose class the search had proposed before.
        test: Test score of the best program, where it is known: of a final policy, of the trial's own policy that was
            analysed on the test split, or the table's mean over its seeds.
        inner_runs: Inner runs that were made for it.
    """

    label: str
    environment: str
    seed: object
    scores: tuple[float, ...]
    last: float
    invalid: float
    duplicates: float
    test: float | None
    inner_runs: int

    @property
    def best_so_far(self) -> np.ndarray:
        """Best validation score after each proposal, float64 (proposals,)."""
        return np.maximum.accumulate(self.scores)

    @property
    def best(self) -> float:
        """Best validation score."""
        return max(self.scores)

    @property
    def area(self) -> float:
        """Mean of the best score so far over the budget, in [0, 1]: what a search is worth that may end at any time."""
        return float(self.best_so_far.mean())

    @property
    def gap(self) -> float | None:
        """By how much the best program's validation score is above its test score."""
        return None if self.test is None else self.best - self.test

    def reached(self, threshold: float) -> int | None:
        """Proposals until a score of at least this, or ``None``."""
        return next((i for i, score in enumerate(self.scores, start=1) if score >= threshold), None)


@dataclasses.dataclass(frozen=True)
class Standing:
    """One agent in a comparison; intervals are 95 % bootstrap intervals of interquartile means over searches.

    Attributes:
        label: The agent.
        searches: Number of searches.
        area, best, last, test: See :data:`METRICS`; ``test`` is ``None`` where no search has one.
        gap: Mean of :attr:`Search.gap`, as an interquartile mean.
        reached: Searches that came to the threshold.
        proposals: Median number of proposals until then, over those that did.
        invalid: Mean share.
        duplicates: Mean share.
        inner_runs: Mean number per search.
    """

    label: str
    searches: int
    area: Interval
    best: Interval
    last: Interval
    test: Interval | None
    gap: Interval | None
    reached: int
    proposals: float | None
    invalid: float
    duplicates: float
    inner_runs: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Several agents on the same environments, seeds and budget.

    Attributes:
        standings: One per agent.
        threshold: Score that "reached" means.
        metric: What the duels are about.
        duels: Of all pairs, or of every agent against one.
        anytime: Agent -> interquartile mean of the best score so far after each proposal.
        uneven: What is not the same for all agents, in words; empty where the comparison is fair.
    """

    standings: tuple[Standing, ...]
    threshold: float
    metric: Metric
    duels: tuple[Duel, ...]
    anytime: dict[str, tuple[Interval, ...]]
    uneven: tuple[str, ...]


def searches_of(runs: Sequence[Run]) -> list[Search]:
    """The searches that have at least one complete outer step, an episode of a run directory each."""
    found = []
    for run in runs:
        groups = [group for _, steps in sorted(run.steps().items()) for group in steps]
        for episode in dict.fromkeys(group[0]["episode"] for group in groups):
            found.append(_search(run, episode, [group for group in groups if group[0]["episode"] == episode]))
    return found


def compare(searches: Sequence[Search], metric: Metric = "area", against: str | None = None) -> Comparison:
    """Judge agents against each other.

    Args:
        searches: Of :func:`searches_of`.
        metric: What the duels are about, a key of :data:`METRICS`.
        against: The agent that all others are compared with; ``None``: ``"random"`` where it takes part, else all
            pairs.

    Raises:
        ValueError: no search, an unknown metric or agent, or ``"test"`` where test scores are not known.
    """
    if not searches:
        raise ValueError("no search has a complete outer step: there is nothing to compare")
    if metric not in METRICS:
        raise ValueError(f"there is no metric {metric!r}; there are {', '.join(METRICS)}")
    groups: dict[str, list[Search]] = {}
    for search in searches:
        groups.setdefault(search.label, []).append(search)
    if against is None and RANDOM in groups:
        against = RANDOM
    threshold = REACHED * max(search.best for search in searches)
    values: dict[str, dict[object, float]] = {}
    for label, group in groups.items():
        known: dict[object, float] = {(one.environment, one.seed): getattr(one, metric) for one in group}
        if None in known.values():
            raise ValueError(f"the metric 'test' needs test scores, which a search of {label} has not")
        values[label] = known
    return Comparison(
        standings=tuple(_standing(label, group, threshold) for label, group in groups.items()),
        threshold=threshold,
        metric=metric,
        duels=tuple(duels(values, against=against)) if len(groups) > 1 else (),
        anytime={label: _anytime(group) for label, group in groups.items()},
        uneven=_uneven(groups),
    )


def _search(run: Run, episode: int, groups: Sequence[Sequence[Row]]) -> Search:
    rows = [row for group in groups for row in group]
    keys = [run.trials.get(row["identity"] or "", {}).get("key") or row["program"] for row in rows]
    best = max(rows, key=lambda row: _score(row))
    trained = {row["identity"] for row in rows if not row["cached"] and row["identity"] in run.trials}
    return Search(
        label=run.label,
        environment=str(run.config.get("environment")),
        seed=run.seed if episode == 0 else (run.seed, episode),
        scores=tuple(map(_score, rows)),
        last=statistics.fmean(map(_score, groups[-1])),
        invalid=sum(row["status"] == "invalid" for row in rows) / len(rows),
        duplicates=1 - len(set(keys)) / len(keys),
        test=_test(run, best),
        inner_runs=len(trained),
    )


def _score(row: Row) -> float:
    return row["score"] or 0.0


def _test(run: Run, row: Row) -> float | None:
    if row["identity"] in run.tests:
        return run.tests[row["identity"]]
    finals = [final for final in run.finals if final["programs"] == [row["program"]] and not final["again"]]
    if finals:
        return statistics.fmean(final["test"] for final in finals)
    key = run.trials.get(row["identity"] or "", {}).get("key")
    if run.config.get("cache") == "bundled" and key:
        scores = bundled.mean_test_scores(task_class(run.config["task"]).measured)
        return scores.get(key)
    return None


def _standing(label: str, group: Sequence[Search], threshold: float) -> Standing:
    def over(name: str) -> Interval | None:
        by_environment: dict[str, list[float]] = {}
        for search in group:
            if (value := getattr(search, name)) is not None:
                by_environment.setdefault(search.environment, []).append(value)
        return interval(list(by_environment.values())) if by_environment else None

    area, best, last = over("area"), over("best"), over("last")
    assert area and best and last
    reached = [count for search in group if (count := search.reached(threshold)) is not None]
    return Standing(
        label=label,
        searches=len(group),
        area=area,
        best=best,
        last=last,
        test=over("test"),
        gap=over("gap"),
        reached=len(reached),
        proposals=statistics.median(reached) if reached else None,
        invalid=statistics.fmean(search.invalid for search in group),
        duplicates=statistics.fmean(search.duplicates for search in group),
        inner_runs=statistics.fmean(search.inner_runs for search in group),
    )


def _anytime(group: Sequence[Search]) -> tuple[Interval, ...]:
    length = min(len(search.scores) for search in group)
    curves = np.array([search.best_so_far[:length] for search in group])
    return tuple(interval([curves[:, i].tolist()], resamples=400) for i in range(length))


def _uneven(groups: Mapping[str, Sequence[Search]]) -> tuple[str, ...]:
    said = []
    budgets = {label: sorted({len(search.scores) for search in group}) for label, group in groups.items()}
    if len({tuple(found) for found in budgets.values()}) > 1 or any(len(found) > 1 for found in budgets.values()):
        told = ", ".join(f"{label} {' or '.join(map(str, found))}" for label, found in budgets.items())
        said.append(f"not all searches have the same number of proposals: {told}")
    seeds = {label: {(one.environment, one.seed) for one in group} for label, group in groups.items()}
    if len({frozenset(found) for found in seeds.values()}) > 1:
        said.append("not all agents have searched with the same seeds; duels are of those that both have")
    return tuple(said)


def standings_table(comparison: Comparison) -> Table:
    """The standings for the terminal: interquartile means with 95 % intervals, in percent."""
    table = Table(box=box.SIMPLE_HEAD, title="interquartile means over searches, %", title_justify="left")
    for title in ("", "searches", *columns(comparison)):
        table.add_column(title, overflow="fold")
    for standing in comparison.standings:
        table.add_row(escape(standing.label), str(standing.searches), *cells(comparison, standing))
    return table


def duels_table(comparison: Comparison) -> Table:
    """The duels for the terminal."""
    table = Table(box=box.SIMPLE_HEAD, title=METRICS[comparison.metric], title_justify="left")
    for title in ("", "difference, points", "better in, %", "p", "differ", "seeds"):
        table.add_column(title, overflow="fold")
    for duel in comparison.duels:
        table.add_row(escape(f"{duel.a} - {duel.b}"), *duel_cells(duel))
    return table


def columns(comparison: Comparison) -> list[str]:
    """What :func:`cells` says of an agent."""
    tested = any(standing.test for standing in comparison.standings)
    return [
        *("area", "best", "last step"),
        *(("test", "over test") if tested else ()),
        *(f"proposals to {100 * comparison.threshold:.1f}", "invalid, %", "duplicate, %", "inner runs"),
    ]


def cells(comparison: Comparison, standing: Standing) -> list[str]:
    """One agent's numbers in words, in the order of :func:`columns`."""
    tested = any(one.test for one in comparison.standings)
    known = [standing.area, standing.best, standing.last, *((standing.test, standing.gap) if tested else ())]
    to_threshold = "never" if standing.proposals is None else f"{standing.proposals:g}"
    return [
        *("-" if value is None else value.percent() for value in known),
        f"{to_threshold} ({standing.reached} of {standing.searches})",
        *(f"{100 * share:.0f}" for share in (standing.invalid, standing.duplicates)),
        f"{standing.inner_runs:.1f}",
    ]


def duel_cells(duel: Duel) -> list[str]:
    """A duel in words: difference, probability of improvement, corrected p, verdict, pairs and what they would need."""
    needed = "" if duel.seeds_needed is None else f", {duel.seeds_needed} needed"
    return [
        duel.difference.percent(),
        duel.improvement.percent(),
        f"{duel.corrected:.3g}",
        "yes" if duel.shown else "not shown",
        f"{duel.pairs}{needed}",
    ]
