"""The statistics of comparisons, against values worked out by hand and against simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from derl_gym.report.statistics import (
    Interval,
    duels,
    holm,
    improvement,
    interquartile_mean,
    interval,
    paired_p,
    profile,
    seeds_needed,
)

SCORES = st.lists(st.floats(0, 1), min_size=3, max_size=12)


def test_interquartile_mean_by_hand():
    assert interquartile_mean([0.0, 0.2, 0.4, 1.0]) == pytest.approx(0.3)
    assert interquartile_mean([5.0, 1.0, 2.0, 3.0, 100.0, 4.0, 0.0]) == pytest.approx(3.0), "one is cut at either end"
    assert interquartile_mean([0.25, 0.5]) == 0.375, "nothing to cut"


def test_an_interval_holds_its_value_and_is_the_same_every_time():
    samples = [[0.1, 0.2, 0.3, 0.4, 0.5], [0.6, 0.7, 0.8]]
    found = interval(samples)
    assert found == interval(samples)
    assert found.low < found.value < found.high
    assert found.value == pytest.approx(interquartile_mean([*samples[0], *samples[1]]))
    pooled = interval([[*samples[0], *samples[1]]])
    assert found.high - found.low < pooled.high - pooled.low, "strata take their difference out"
    few = interval([[0.1, 0.2]])
    assert few.value == pytest.approx(0.15) and math.isnan(few.low) and few.percent() == "15.0 (no interval)"
    with pytest.raises(ValueError, match="no scores"):
        interval([[]])


def test_intervals_cover_what_they_should():
    rng = np.random.default_rng(0)
    hits = [
        found.low <= 0.5 <= found.high
        for _ in range(200)
        if (found := interval([rng.normal(0.5, 0.1, 20).tolist()], resamples=400))
    ]
    assert 0.88 < np.mean(hits) <= 0.99


def test_improvement_by_hand():
    assert improvement([1, 2, 3], [0, 2, 5]).value == pytest.approx(
        (1 + 1.5 + 2) / 9
    )  # wins of 1, of 2 (and a tie), of 3
    assert improvement([1, 2, 3], [4, 5, 6]) == Interval(0.0, 0.0, 0.0)
    assert improvement([0.3] * 4, [0.3] * 4).value == 0.5


@given(a=SCORES, b=SCORES)
def test_improvement_of_the_two_sides_is_one(a, b):
    assert improvement(a, b, resamples=10).value + improvement(b, a, resamples=10).value == pytest.approx(1.0)


def test_profile_by_hand():
    assert profile([0.1, 0.2, 0.2, 0.4], [0.0, 0.15, 0.2, 0.4]) == [1.0, 0.75, 0.25, 0.0]


def test_paired_p_by_hand():
    # Three differences of one sign: 2 of the 8 assignments of signs are as far from zero.
    assert paired_p([1, 2, 3], [0, 1, 1]) == 0.25
    assert paired_p([1.0] * 6, [0.5] * 6) == 2 / 64
    assert paired_p([1, 2], [1, 2]) == 1.0 and paired_p([1], [0]) == 1.0


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_seeds_needed_against_simulation():
    assert seeds_needed([1.0, 2.0]) is None and seeds_needed([1.0, -1.0, 0.0]) is None
    assert seeds_needed([0.5, 0.5, 0.5]) == 2
    differences = [-0.05, 0.0, 0.05, 0.1, 0.15]
    n = seeds_needed(differences)
    assert n == 22, "an effect of 0.632 standard deviations"
    mean, deviation = np.mean(differences), np.std(differences, ddof=1)
    rng = np.random.default_rng(0)
    draws = rng.normal(mean, deviation, (20_000, n))
    t = draws.mean(axis=1) / (draws.std(axis=1, ddof=1) / np.sqrt(n))
    assert (np.abs(t) > 2.0796).mean() == pytest.approx(0.8, abs=0.02)  # the 97.5 % quantile of t with 21 degrees


def test_duels_pair_the_seeds_and_correct_for_their_number():
    better = {seed: 0.3 + 0.01 * seed for seed in range(8)}
    worse = {seed: score - 0.1 - 0.005 * seed for seed, score in better.items()}
    alone = {99: 1.0}
    found = duels({"better": better, "worse": worse, "same": dict(better), "alone": alone})
    assert [(duel.a, duel.b, duel.pairs) for duel in found] == [
        ("better", "worse", 8),
        ("better", "same", 8),
        ("worse", "same", 8),
    ]
    first = found[0]
    assert first.difference.value == pytest.approx(0.1175) and first.p == 2 / 256 and first.corrected == 3 * 2 / 256
    assert first.shown and first.improvement.value > 0.9 and first.seeds_needed is not None
    assert found[1].p == 1.0 and not found[1].shown and found[1].seeds_needed is None
    against = duels({"worse": worse, "better": better, "same": better}, against="better")
    assert [(duel.a, duel.b) for duel in against] == [("worse", "better"), ("same", "better")]
    assert against[0].difference.value == pytest.approx(-0.1175)
    with pytest.raises(ValueError, match="there is no agent 'nobody' among worse, better"):
        duels({"worse": worse, "better": better}, against="nobody")
