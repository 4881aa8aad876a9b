import itertools
import json
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from derl_gym.programs import Grammar, RewardProgram, states_of
from derl_gym.programs.evaluate import evaluate_with_error


def analyse(text, primitives, states=None):
    return RewardProgram.parse(text, k=len(primitives)).analyse(primitives, states)


@pytest.mark.parametrize("continuous", [(), (2, 3, 4), (1, 2, 3, 4)], ids=["binary", "agent", "all continuous"])
@pytest.mark.parametrize(
    ("text", "structure"),
    [
        ("0.5*g1+0.8*g2", "stable"),
        ("g1/(g2+1)", "stable"),
        ("g1*(g2+0.2)*g3", "unstable"),
        ("-(g1+0.5*g2)", "invalid"),
        ("g1", "stable"),
        ("g2+g3", "stable"),
        ("g1-2*g2", "stable"),
        ("g1*(g2+g3)", "stable"),
        ("g1*(g2-g3)", "invalid"),
        ("g1*g2", "unstable"),
        ("g2+g1*g3", "unstable"),
        ("g1/g2", "unstable"),
        ("g1+g2**0.5", "stable"),
        ("g1+(g2-g3)**0.5", "unstable"),
        ("g1+(g2-2)**2", "stable"),
        ("g1+(g2+1)**-2", "stable"),
        ("g1+g2**-2", "unstable"),
        ("g1+9**(9**(9*g2))", "unstable"),
        ("g2-g1", "invalid"),
        ("3", "invalid"),
        ("g1-g1", "invalid"),
        ("0.1*g1+0.2*g1-0.3*g1", "invalid"),
        ("g1/(g2-g2)", "invalid"),
    ],
)
def test_structure(text, structure, continuous, make_primitives):
    found = analyse(text, make_primitives(4, continuous))
    assert found.structure == structure
    assert bool(found.reasons) == (structure != "stable")
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["structure"] == structure


def test_reasons_say_why(make_primitives):
    binary = make_primitives(4)
    for text, reason in [
        ("g1/g2", "the denominator in g1/g2 can be zero"),
        ("g1*g3", "g3 at zero wipes out all credit for g1"),
        ("g2-g1*g3", "raising g1 lowers the reward at g2=0, g3=1"),
        ("-g1", "raising g1 lowers the reward"),
        ("2", "constant"),
        ("g1/(g2-g2)", "never defined: division by zero in g1/(g2-g2)"),
        ("g1+(g2-g3)**0.5", "a negative number to a fractional one"),
        ("g1+9**(9**(9*g2))", "can overflow"),
    ]:
        assert any(reason in found for found in analyse(text, binary).reasons), text


def test_every_field(make_primitives):
    found = analyse("g1*g3+0.25*g2/(g3+1)", make_primitives(3))
    assert found.bounds == (0.0, 1.125)
    assert found.monotone_in_g1 and not found.constant and found.undefined == ()
    assert found.veto == ("g3",)
    assert (found.smallest_gap, found.largest) == (0.125, 1.125)
    undefined = analyse("g1+1/g2", make_primitives(2))
    assert undefined.undefined == ((0.0, 0.0), (1.0, 0.0))
    assert undefined.bounds == (-np.inf, np.inf)
    assert undefined.to_dict()["bounds"] == [None, None]
    assert undefined.largest == 2.0, "where it is defined"
    never = analyse("g1/0", make_primitives(1))
    assert np.isnan(never.bounds).all() and never.smallest_gap == never.largest == 0 and not never.constant
    assert analyse("2", make_primitives(1)).constant and analyse("2", make_primitives(1)).bounds == (2.0, 2.0)


def test_flipped_primitives_mean_themselves(make_primitives):
    flipped = make_primitives(4, flipped=(2,))
    assert analyse("g1-g2", flipped).bounds == (0.0, 2.0)
    assert analyse("g1/(g2+1)", flipped).structure == "unstable"
    assert analyse("g1/(g2+2)", flipped).structure == "stable"
    # Raising a flipped g1 is still raising g1.
    assert analyse("g1", make_primitives(2, flipped=(1,))).structure == "stable"
    assert analyse("-g1", make_primitives(2, flipped=(1,))).structure == "invalid"
    assert analyse("g1*g1", make_primitives(2, flipped=(1,))).structure == "invalid"
    assert analyse("g1*g2", make_primitives(2, flipped=(1,), continuous=(1,))).veto == ("g2",)


def test_reachable_states_only(make_primitives):
    binary = make_primitives(2)
    reachable = [[0.0, 1.0], [1.0, 1.0]]
    assert analyse("g1/g2", binary, reachable).structure == "stable"
    assert analyse("g1/g2", binary, reachable).bounds == (0.0, 1.0)
    assert analyse("g2", binary, reachable).structure == "invalid"
    with pytest.raises(ValueError, match=r"shape \(N, 2\)"):
        analyse("g1", binary, [[0.0]])
    with pytest.raises(ValueError, match="uses g2, but only 1 primitives"):
        RewardProgram.parse("g2", k=2).analyse(make_primitives(1))


def test_continuous_domains_are_covered_by_intervals(make_primitives):
    mixed = make_primitives(3, continuous=(2, 3))
    # No probe point need hit the zero of the denominator.
    assert analyse("g1/(g2-0.123)", mixed).bounds == (-np.inf, np.inf)
    assert analyse("g1/g2", mixed).bounds == (0.0, np.inf)
    # A binary primitive is enumerated, not taken for an interval.
    assert analyse("g1+g2/(g1-0.5)", mixed).bounds == (-2.0, 3.0)
    assert analyse("g1+(g1-0.5)**0.5", mixed).undefined > 0
    # Cutting the range into boxes tells g2-g2 from an independent difference.
    assert analyse("g1/(1+g2-g2)", mixed).structure == "stable"
    # A dip between the probes' ends is seen: raising g1 first lowers the reward.
    assert not analyse("(g1-0.5)**2", make_primitives(1, continuous=(1,))).monotone_in_g1
    assert analyse("0.5*g1+g2", mixed).smallest_gap == 1.5


programs = st.integers(0, 2**32)


@settings(max_examples=150, deadline=None)
@given(programs)
def test_interval_bounds_hold_everywhere(walk, make_primitives, seed):
    rng = np.random.default_rng(seed)
    grammar = Grammar(k=3, max_length=20)
    primitives = make_primitives(3, continuous=(2, 3), flipped=(3,) if seed % 2 else ())
    points = rng.uniform(0, 1, (200, 3)) * [1, 1, -1 if seed % 2 else 1]
    points[:, 0] = points[:, 0] < 0.5
    program = RewardProgram.parse(grammar.decode(walk(grammar, rng)), k=3)
    found = program.analyse(primitives)
    low, high = found.bounds
    unbounded = any("undefined or unbounded" in reason for reason in found.reasons)
    for point in points:
        try:
            value = float(program(point[None])[0])
        except ArithmeticError:
            assert unbounded or np.isnan(low)
        else:
            assert np.isnan(low) or low - 1e-9 * abs(low) <= value <= high + 1e-9 * abs(high)


def test_states(make_primitives):
    assert states_of(make_primitives(2)).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert states_of(make_primitives(2, flipped=(2,))).tolist() == [[0, -1], [0, 0], [1, -1], [1, 0]]
    assert len(states_of(make_primitives(12))) == 4096
    for primitives in (make_primitives(13), make_primitives(4, continuous=(2, 3), flipped=(3,))):
        probes = states_of(primitives, n_probes=200)
        assert probes.shape == (200, len(primitives)) and probes.dtype == np.float64
        assert (probes == states_of(primitives, n_probes=200)).all()
        assert len(np.unique(probes, axis=0)) > 100
        for column, primitive in zip(probes.T, primitives, strict=True):
            assert column.min() == primitive.low and column.max() == primitive.high
            assert primitive.values is None or set(column) == set(primitive.values)
    corners = {
        corner for corner in map(tuple, states_of(make_primitives(3, continuous=(2, 3)))) if set(corner) <= {0, 1}
    }
    assert corners == set(itertools.product((0, 1), repeat=3))


# --- equivalence ---------------------------------------------------------------------------------


def exact_advantages(text: str, states) -> tuple:
    """What standardisation leaves of a program, in exact rational arithmetic."""
    exact = re.sub(r"(?<![\w.])(\d+(?:\.\d+)?)", r"F('\1')", text)
    rewards = []
    for row in states:
        names = {f"g{i + 1}": Fraction(value) for i, value in enumerate(row)}
        try:
            rewards.append(eval(exact, {"__builtins__": {}, "F": Fraction}, names))
        except ZeroDivisionError:
            rewards.append(None)
    defined = [reward for reward in rewards if reward is not None]
    low, spread = (min(defined), max(defined) - min(defined)) if defined else (0, 0)
    return tuple(None if r is None else (r - low) / spread if spread else 0 for r in rewards)


def without_powers(grammar, walk, rng):
    while True:
        text = grammar.sample(rng) if rng.random() < 0.7 else grammar.decode(walk(grammar, rng))
        if "**" not in text:
            return text


def test_equal_keys_are_equal_advantages(walk, make_primitives):
    """Over all pairs of many programs: same key exactly when the exact standardised rewards are the same."""
    grammar = Grammar(k=2, max_length=12)
    states = states_of(make_primitives(2))
    rng = np.random.default_rng(0)
    found = {}
    for _ in range(1500):
        text = without_powers(grammar, walk, rng)
        key = RewardProgram.parse(text, k=2).equivalence_key(states)
        found.setdefault(key, set()).add(exact_advantages(text, states))
    assert all(len(advantages) == 1 for advantages in found.values())
    assert len(set.union(*found.values())) == len(found)
    assert 100 < len(found) < 1400


def noise(program: RewardProgram, states) -> float:
    """Bound on round-off as a part of the range of the rewards."""
    rewards, undefined, error = evaluate_with_error(program.code, states)
    spread = np.ptp(rewards[~undefined]) if not undefined.all() else 0.0
    return error.max() / spread if spread > 4 * error.max() else 0.0


# Derandomised: over 256 probes, round-off pushes a value over a rounding boundary once in some 10,000 programs.
@settings(max_examples=200, deadline=None, derandomize=True)
@given(programs, st.sampled_from(["2", "0.5", "3", "10", "0.001", "7"]), st.sampled_from(["0", "1", "0.3", "-5"]))
def test_positive_affine_maps_keep_the_key(walk, make_primitives, seed, scale, shift):
    grammar = Grammar(k=4, max_length=20)
    rng = np.random.default_rng(seed)
    text = grammar.decode(walk(grammar, rng)) if seed % 2 else grammar.sample(rng)
    for primitives in (make_primitives(4), make_primitives(4, continuous=(2, 3, 4))):
        states = states_of(primitives)
        program = RewardProgram.parse(text, k=4)
        key = program.equivalence_key(states)
        mapped = RewardProgram.parse(f"{scale}*({text})+{shift}", k=4)
        if max(noise(program, states), noise(mapped, states)) < 1e-14:
            assert mapped.equivalence_key(states) == key
        turned = RewardProgram.parse(f"{shift}-{scale}*({text})", k=4)
        flat = turned.analyse(primitives)
        assert (turned.equivalence_key(states) == key) == (flat.constant or np.isnan(flat.bounds[0]))


def test_classes_of_keys(make_primitives):
    states = states_of(make_primitives(4))

    def key(text):
        return RewardProgram.parse(text, k=4).equivalence_key(states)

    assert re.fullmatch(r"[0-9a-f]{32}", key("g1"))
    for group in (
        ("0", "3", "g1-g1", "0.1*g1+0.2*g1-0.3*g1", "-0*g1", "1+0*g2", "0.1+0.2-0.3"),
        ("g1/0", "g2/(g3-g3)", "1/(1-g1-(1-g1))"),
        ("g1", "g1**2", "2*g1+1", "g1*0.1", "g1/3-7", "2**g1", "g1--g1", "-(0-g1)"),
        ("g1/g2", "2*(g1/g2)", "(g1+1)/g2", "g1/g2+1/g2-1"),
        ("g1*g2", "g1*g2**0.5"),
        ("g2/g2", "5/g2"),
    ):
        assert len({key(text) for text in group}) == 1, group
    different = ["1", "g1/0", "g1", "-g1", "g1/g2", "1/g2", "g1/g3", "g1+g2", "g1+2*g2", "g1+1.000001*g2", "g1+g3"]
    assert len({key(text) for text in different}) == len(different)


def test_key_of_huge_and_tiny_rewards(make_primitives):
    states = states_of(make_primitives(2))
    huge = "9**99*9**99*9**99*9**22*7000*"
    big = RewardProgram.parse(f"{huge}g1-{huge}g2", k=2)
    assert np.isfinite(big(states)).all() and big(states).max() > 1.7e308
    assert big.equivalence_key(states) == RewardProgram.parse("g1-g2", k=2).equivalence_key(states)
    assert big.analyse(make_primitives(2)).structure == "stable"
    tiny = RewardProgram.parse("g1/9**99/9**99/9**99", k=2)
    assert tiny.equivalence_key(states) == RewardProgram.parse("g1", k=2).equivalence_key(states)
    vanishing = RewardProgram.parse("g1/9**99/9**99/9**99/9**40", k=2)
    assert vanishing.equivalence_key(states) == RewardProgram.parse("1", k=2).equivalence_key(states)


def test_states_that_are_only_probes_do_not_make_the_judgement_exact():
    class Graded:
        values, low, high = None, 0.0, 1.0

    class Binary:
        values, low, high = (0.0, 1.0), 0.0, 1.0

    primitives = (Binary(), Binary(), Graded())
    probes = states_of(primitives)
    pole = RewardProgram.parse("g1+g2/(g3-0.3)", k=3)
    for states in (None, probes):
        analysis = pole.analyse(primitives, states=states)
        assert analysis.structure == "unstable" and analysis.bounds == (-np.inf, np.inf)
    linear = RewardProgram.parse("g1+0.5*g3", k=3).analyse(primitives, states=probes)
    assert linear.smallest_gap == pytest.approx(1.5), "the range, not the spacing of the probes"
    assert linear.largest == 1.5 and pole.analyse(primitives).largest == np.inf
