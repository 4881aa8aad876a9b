import pytest
import scipy.stats

from derl_gym.report.estimates import duration, estimate, quantity


def test_the_interval_is_students():
    values = [0.1, 0.25, 0.3, 0.5]
    found = estimate(values)
    low, high = scipy.stats.t.interval(
        0.95, len(values) - 1, loc=scipy.stats.tmean(values), scale=scipy.stats.sem(values)
    )
    assert found.mean == pytest.approx(0.2875)
    assert found.mean - found.half_width == pytest.approx(low, abs=1e-4)
    assert found.mean + found.half_width == pytest.approx(high, abs=1e-4)


@pytest.mark.parametrize("n", range(3, 120))
def test_quantiles_are_within_one_percent(n):
    values = [i / n for i in range(n)]
    exact = scipy.stats.t.ppf(0.975, n - 1) * scipy.stats.sem(values)
    assert estimate(values).half_width == pytest.approx(exact, rel=0.01)


def test_one_value_has_no_interval_and_none_no_mean():
    assert estimate([]) is None
    assert str(estimate([0.5])) == "50.0"
    assert estimate([0.5]).band() == (0.5, 0.5)


def test_two_values_have_a_mean_alone():
    assert str(estimate([0.03, 0.08])) == "5.5" and estimate([0.03, 0.08]).n == 2
    assert str(estimate([0.03, 0.08, 0.04])) == "5.0 ± 6.6"


def test_a_band_stays_where_scores_can_be():
    assert estimate([0.0, 0.5, 1.0]).band() == (0.0, 1.0)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (999, "999"), (1234, "1.23 k"), (2e6, "2 M"), (5.34e13, "53.4 T")]
)
def test_quantity(value, text):
    assert quantity(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(3.4, "3 s"), (59.7, "1 min 0 s"), (185, "3 min 5 s"), (7810, "2 h 10 min")]
)
def test_duration(seconds, text):
    assert duration(seconds) == text
