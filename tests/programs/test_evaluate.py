import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from derl_gym.programs import RewardProgram, UndefinedReward
from derl_gym.programs.evaluate import evaluate_with_error


class Checked(float):
    """A Python float that refuses every operation whose result is not a finite real number."""


def _checked(name):
    plain = getattr(float, name)

    def method(self, *others):
        value = plain(self, *(float(other) for other in others))
        if isinstance(value, complex) or not math.isfinite(value):
            raise ArithmeticError(name)
        return Checked(value)

    return method


for _name in ("add", "sub", "mul", "truediv", "pow"):
    for _side in (f"__{_name}__", f"__r{_name}__"):
        setattr(Checked, _side, _checked(_side))
for _name in ("__neg__", "__pos__"):
    setattr(Checked, _name, _checked(_name))


def python_value(text: str, row) -> float | None:
    """The value by Python's own float arithmetic, ``None`` where it is undefined."""
    floats = re.sub(r"(?<![\w.])(\d+)(?![\d.])", r"\1.0", text)
    names = {f"g{i + 1}": Checked(value) for i, value in enumerate(row)}
    try:
        return float(eval(floats, {"__builtins__": {}}, names))
    except ArithmeticError:
        return None


numbers = st.sampled_from(["0", "1", "2", "3", "10", "0.5", "0.1", ".25", "7.", "0.001", "999"])
leaves = st.one_of(st.sampled_from(["g1", "g2", "g3"]), numbers)


def expressions(operators):
    def grow(inner):
        return st.one_of(
            st.tuples(inner, st.sampled_from(operators), inner).map("".join),
            inner.map(lambda text: f"({text})"),
            inner.map(lambda text: f"-{text}"),
        )

    return st.recursive(leaves, grow, max_leaves=12)


rows = st.lists(
    st.tuples(*[st.sampled_from([0.0, 1.0, -1.0, 0.5, 0.1, 1 / 3, 1e-200, 1e200])] * 3), min_size=1, max_size=8
)


def parse_or_skip(text):
    try:
        return RewardProgram.parse(text, k=3)
    except ValueError:
        return None


@settings(max_examples=500, deadline=None)
@given(expressions(["+", "-", "*", "/"]), rows)
def test_equals_python_bit_for_bit(text, points):
    program = parse_or_skip(text)
    if program is None:
        return
    expected = [python_value(text, row) for row in points]
    if None in expected:
        with pytest.raises(UndefinedReward) as caught:
            program(points)
        assert expected[caught.value.row] is None
    else:
        assert program(points).tolist() == expected
    _, undefined, _ = evaluate_with_error(program.code, np.array(points))
    assert undefined.tolist() == [value is None for value in expected]


@settings(max_examples=300, deadline=None)
@given(expressions(["+", "-", "*", "/", "**"]), rows)
def test_powers_are_within_the_error_bound(text, points):
    program = parse_or_skip(text)
    if program is None:
        return
    values, undefined, error = evaluate_with_error(program.code, np.array(points))
    for row, value, missing, bound in zip(points, values, undefined, error, strict=True):
        expected = python_value(text, row)
        if expected is not None and not missing:
            assert abs(value - expected) <= bound
        # Round-off of a power may turn a zero denominator into a tiny one, but not without a power.
        elif "**" not in text:
            assert missing and expected is None


@settings(max_examples=300, deadline=None)
@given(st.floats(0, 1e6), st.sampled_from([0.1, 0.5, 2.0, 3.0, 1.5, 9.0]))
def test_a_power_is_within_4_ulp(base, exponent):
    value = RewardProgram.parse(f"g1**{exponent}", k=1)([[base]])[0]
    assert abs(value - base**exponent) <= 4 * math.ulp(base**exponent)


def test_the_papers_example():
    program = RewardProgram.parse("g1+(g2*(g3/2))-(g4/3)", k=4)
    rewards = program(np.array([[1, 1, 0.5, 0], [0, 0, 0, 1]]))
    assert rewards.dtype == np.float64 and rewards.shape == (2,)
    assert rewards.tolist() == [1.25, -1 / 3]


@pytest.mark.parametrize(
    ("text", "row", "reason"),
    [
        ("g1/g2", 1, "division by zero in g1/g2"),
        ("1/(1/g2)", 1, "division by zero in 1/g2"),
        ("0*(g1/(g2-g2))", 0, "division by zero in g1/(g2-g2)"),
        ("(0-g1)**0.5", 2, "negative number to a fractional power in (0-g1)**0.5"),
        ("g1+g2**-1", 1, "zero to a negative power in g2**-1"),
        ("g1/0", 0, "division by zero"),
        ("9**(9**g3)", 2, "overflow in 9**(9**g3)"),
        ("1/(9**(100*g3)*9**(300*g3))", 2, "overflow"),
    ],
)
def test_undefined_rewards_are_never_silent(text, row, reason):
    points = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 3.0]])
    with pytest.raises(UndefinedReward) as caught:
        RewardProgram.parse(text, k=3)(points)
    assert isinstance(caught.value, ArithmeticError)
    assert caught.value.row == row
    assert reason in caught.value.reason
    assert f"(row {row})" in str(caught.value)


def test_constants_no_rows_and_copies():
    assert RewardProgram.parse("2*3-1", k=2)(np.ones((3, 2))).tolist() == [5.0, 5.0, 5.0]
    for text in ("g1", "1", "g1/0"):
        assert RewardProgram.parse(text, k=2)(np.ones((0, 2))).shape == (0,)
    points = np.ones((3, 2))
    RewardProgram.parse("g1", k=2)(points)[:] = 7.0
    assert (points == 1).all()


def test_columns_are_checked():
    program = RewardProgram.parse("g1", k=2)
    with pytest.raises(ValueError, match=r"shape \(N, 2\), got \(3, 4\)"):
        program(np.ones((3, 4)))
    with pytest.raises(ValueError, match=r"shape \(N, 2\), got \(2,\)"):
        program(np.ones(2))
    with pytest.raises(ValueError, match="g2 = nan in row 1"):
        program(np.array([[0, 0], [0, np.nan]]))
