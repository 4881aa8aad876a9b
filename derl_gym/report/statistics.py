"""Statistics of a comparison: few seeds, no normal distribution taken for granted, every number with its interval.

The measures are those of Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice"
(NeurIPS 2021): interquartile mean, stratified bootstrap, probability of improvement, performance profiles. Paired
searches (same seed) are tested as pairs, and many tests are corrected for. Needs scipy (extra ``report``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

RESAMPLES = 2000
LEVEL = 0.95

Scores = Sequence[Sequence[float]]
"""Scores of one agent by environment: a sequence of seeds' scores for each."""


class Interval(NamedTuple):
    """A value with its confidence interval; ``low`` and ``high`` are nan below three seeds."""

    value: float
    low: float
    high: float

    def percent(self) -> str:
        """``"31.2 (28.0 to 34.1)"``; without an interval ``"31.2 (no interval)"``."""
        if math.isnan(self.low):
            return f"{100 * self.value:.1f} (no interval)"
        return f"{100 * self.value:.1f} ({100 * self.low:.1f} to {100 * self.high:.1f})"


class Duel(NamedTuple):
    """One agent against another on the same seeds.

    Attributes:
        a: The agent.
        b: The other one.
        difference: Mean of a minus b over pairs, with a bootstrap interval.
        improvement: Probability that a search of a scores higher than one of b, ties half.
        p: Of the paired permutation test of the mean difference, two-sided.
        corrected: ``p`` after Holm's correction for all duels of the comparison.
        pairs: Seeds that both have searched with.
        seeds_needed: Pairs at which a difference of this size would be found with 80 % power at 5 %; ``None`` where
            the difference is zero or there are fewer than three pairs.
    """

    a: str
    b: str
    difference: Interval
    improvement: Interval
    p: float
    corrected: float
    pairs: int
    seeds_needed: int | None

    @property
    def shown(self) -> bool:
        """Whether the agents differ with 95 % confidence after the correction."""
        return self.corrected < 1 - LEVEL


def interquartile_mean(values: Any, axis: int = -1) -> Any:
    """Mean of the middle half; a quarter of the values, rounded down, is cut at either end."""
    return stats.trim_mean(values, 0.25, axis=axis)


def interval(
    samples: Scores, statistic: Callable[..., Any] = interquartile_mean, *, seed: int = 0, resamples: int = RESAMPLES
) -> Interval:
    """A statistic of the pooled samples with its stratified bootstrap interval: seeds are drawn within each sample.

    Args:
        samples: One or more samples, of the environments, say.
        statistic: Of the pooled values along an axis.
        seed: Of the drawing.
        resamples: Bootstrap samples.

    Raises:
        ValueError: there is no value.
    """
    arrays = [np.asarray(sample, dtype=np.float64) for sample in samples if len(sample)]
    if not arrays:
        raise ValueError("no scores to take a statistic of")

    def pooled(*parts: Any, axis: int = -1) -> Any:
        return statistic(np.concatenate(parts, axis=axis), axis=axis)

    return _bootstrapped(arrays, pooled, seed, resamples)


def improvement(a: Sequence[float], b: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """Probability that a value of ``a`` is higher than one of ``b``; a tie counts half."""

    def probability(x: Any, y: Any, axis: int = -1) -> Any:
        x, y = np.moveaxis(x, axis, -1), np.moveaxis(y, axis, -1)
        return (np.sign(x[..., :, None] - y[..., None, :]).mean(axis=(-2, -1)) + 1) / 2

    return _bootstrapped([np.asarray(a, float), np.asarray(b, float)], probability, seed, resamples)


def profile(scores: Sequence[float], thresholds: Sequence[float]) -> list[float]:
    """Performance profile: the share of searches that score more than each threshold."""
    values = np.asarray(scores, dtype=np.float64)
    return [float((values > threshold).mean()) for threshold in thresholds]


def paired_p(a: Sequence[float], b: Sequence[float], *, seed: int = 0) -> float:
    """Two-sided p of the permutation test of the mean difference of pairs: exact up to 13 pairs.

    Returns:
        1.0 where all pairs are equal, or there is only one.
    """
    differences = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    if len(differences) < 2 or not differences.any():
        return 1.0
    found = stats.permutation_test(
        (differences,),
        np.mean,
        permutation_type="samples",
        vectorized=True,
        n_resamples=9999,
        rng=np.random.default_rng(seed),
    )
    return float(found.pvalue)


def holm(ps: Sequence[float]) -> list[float]:
    """P-values corrected by Holm's method (1979): the chance of one false finding among all stays below the level."""
    corrected, largest = [1.0] * len(ps), 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[place]))
        corrected[place] = largest
    return corrected


def seeds_needed(differences: Sequence[float], power: float = 0.8) -> int | None:
    """Pairs at which a paired t test finds a difference of this size, two-sided at 5 %.

    Args:
        differences: Of the pairs that were measured: their mean and deviation are taken as the truth.
        power: Chance to find it.

    Returns:
        ``None`` for fewer than three pairs or a mean of zero; at least 2.
    """
    values = np.asarray(differences, dtype=np.float64)
    if len(values) < 3 or values.mean() == 0:
        return None
    effect = abs(values.mean()) / values.std(ddof=1) if values.std(ddof=1) else math.inf

    def reached(n: int) -> bool:
        critical = stats.t.ppf((1 + LEVEL) / 2, n - 1)
        return bool(stats.nct.sf(critical, n - 1, effect * math.sqrt(n)) >= power)

    if math.isinf(effect):
        return 2
    high = 2
    while not reached(high):
        high *= 2
        if high > 1_000_000:
            return None
    return next(n for n in range(max(2, high // 2), high + 1) if reached(n))


def duels(scores: Mapping[str, Mapping[Any, float]], *, against: str | None = None, seed: int = 0) -> list[Duel]:
    """Every pair of agents on the seeds that both have, or one agent against all others.

    Args:
        scores: Agent -> seed -> score.
        against: The agent to compare all others with; ``None``: all pairs.
        seed: Of the drawing.

    Raises:
        ValueError: ``against`` is none of the agents.
    """
    if against is not None and against not in scores:
        raise ValueError(f"there is no agent {against!r} among {', '.join(scores)}")
    pairs = (
        list(itertools.combinations(scores, 2))
        if against is None
        else [(name, against) for name in scores if name != against]
    )
    found = []
    for a, b in pairs:
        common = [one for one in scores[a] if one in scores[b]]
        if not common:
            continue
        first, second = ([scores[name][one] for one in common] for name in (a, b))
        differences = [x - y for x, y in zip(first, second, strict=True)]
        mean = _bootstrapped([np.array(differences)], lambda x, axis=-1: np.mean(x, axis=axis), seed, RESAMPLES)
        better = improvement(first, second, seed=seed)
        needed = seeds_needed(differences)
        found.append(Duel(a, b, mean, better, paired_p(first, second, seed=seed), 1.0, len(common), needed))
    corrected = holm([duel.p for duel in found])
    return [duel._replace(corrected=p) for duel, p in zip(found, corrected, strict=True)]


def _bootstrapped(samples: list[np.ndarray], statistic: Callable[..., Any], seed: int, resamples: int) -> Interval:
    value = float(statistic(*samples, axis=-1))
    if min(map(len, samples)) < 3:
        return Interval(value, math.nan, math.nan)
    found = stats.bootstrap(
        samples,
        statistic,
        confidence_level=LEVEL,
        n_resamples=resamples,
        method="percentile",
        vectorized=True,
        paired=False,
        batch=500,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(value, float(found.low), float(found.high))
