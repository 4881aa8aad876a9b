"""What can be said about a reward program before it is trained with.

States and probe points, the equivalence key (equal GRPO advantages), interval bounds, and the classes stable,
unstable and invalid of paper section 5.4. Nothing here runs a policy.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np

from derl_gym.programs.evaluate import (
    Floats,
    UndefinedReward,
    check_columns,
    evaluate,
    evaluate_with_error,
)
from derl_gym.programs.intervals import bounds_of
from derl_gym.programs.parse import Instruction

MAX_STATES = 4096
_TINY = 2 * float(np.finfo(np.float64).tiny)
_GRID = 9  # values of a continuous g1 that are tried when asking what raising it does


class Domain(Protocol):
    """What the analysis reads of a primitive."""

    @property
    def low(self) -> float:
        """Smallest value."""
        ...

    @property
    def high(self) -> float:
        """Largest value."""
        ...

    @property
    def values(self) -> tuple[float, ...] | None:
        """All values, or ``None`` when any between low and high can come."""
        ...


@dataclasses.dataclass(frozen=True)
class Analysis:
    """What is known about one program (paper section 5.4).

    Attributes:
        structure: ``"invalid"``: constant, never defined, or raising g1 lowers the reward in some state.
            ``"unstable"``: not invalid, but undefined or unbounded somewhere in the primitives' domain, or
            another primitive at zero wipes out all credit for g1. ``"stable"``: the rest.
        reasons: Why it is not stable, in words; empty for stable programs.
        bounds: Lowest and highest reward; infinite where unbounded, ``nan`` when never defined. Exact over
            discrete primitives, guaranteed but perhaps too wide over continuous ones.
        monotone_in_g1: Raising g1 never lowers the reward where it is defined.
        undefined: The states without a reward; over continuous primitives their number among the probes.
        constant: The same reward in every state, up to round-off.
        veto: Names of the primitives that wipe out all credit for g1 when they are zero.
        smallest_gap: Smallest difference of reward between two states that are not equal, 0 when there is
            none. Over continuous primitives, where it would be arbitrarily small, the range of the rewards.
        largest: Largest size of a reward where it is defined, 0 when never. Over continuous primitives that of
            ``bounds``.
    """

    structure: Literal["stable", "unstable", "invalid"]
    reasons: tuple[str, ...]
    bounds: tuple[float, float]
    monotone_in_g1: bool
    undefined: tuple[tuple[float, ...], ...] | int
    constant: bool
    veto: tuple[str, ...]
    smallest_gap: float
    largest: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; numbers that are not finite become ``None``."""
        plain = dataclasses.asdict(self)
        plain["reasons"], plain["veto"] = list(self.reasons), list(self.veto)
        plain["bounds"] = [bound if math.isfinite(bound) else None for bound in self.bounds]
        for name in ("smallest_gap", "largest"):
            plain[name] = plain[name] if math.isfinite(plain[name]) else None
        if not isinstance(self.undefined, int):
            plain["undefined"] = [list(state) for state in self.undefined]
        return plain


def states_of(primitives: Sequence[Domain], n_probes: int = 256) -> Floats:
    """The states on which programs are compared.

    Args:
        primitives: g1..gk.
        n_probes: Number of probe points when the states cannot be listed.

    Returns:
        float64 (S, k). Every combination of values when all primitives are discrete and there are at most
        4,096; else ``n_probes`` fixed pseudo-random points, the first of which are corners of the domain.
    """
    if _listable(primitives):
        return np.array(list(itertools.product(*(p.values or () for p in primitives))), dtype=np.float64)
    rng = np.random.default_rng(0)
    probes = np.empty((n_probes, len(primitives)))
    for column, p in enumerate(primitives):
        uniform = rng.uniform(p.low, p.high, n_probes)
        probes[:, column] = uniform if p.values is None else rng.choice(np.array(p.values), n_probes)
    corners = itertools.product(*((p.low, p.high) for p in primitives))
    for row, corner in zip(range(n_probes // 2), corners, strict=False):
        probes[row] = corner
    return probes


@np.errstate(all="ignore")
def equivalence_key(code: Sequence[Instruction], states: Floats) -> str:
    """A digest of what GRPO can see of a program.

    GRPO standardises rewards inside a group, so a*R + b with a > 0 trains exactly as R does. The key is taken
    from the vector of rewards over the states, shifted and scaled to [0, 1] and rounded to nine decimals,
    together with the pattern of undefined states: a program that fails somewhere equals only programs that fail
    in the same states. All constants are one program, and so are all that are never defined. Valid only when
    rewards are standardised in the group and their standard deviation is well above the trainer's epsilon.

    Where the rewards vary by less than a millionth of their size, round-off may give equals different keys; that
    costs one more trial and never a wrong score.

    Args:
        code: From :func:`derl_gym.programs.parse.parse`.
        states: Shape (S, k).

    Returns:
        32 hexadecimal digits.
    """
    rewards, undefined, error = evaluate_with_error(code, states)
    digest = hashlib.blake2b(np.packbits(undefined).tobytes(), digest_size=16)
    defined = rewards[~undefined]
    if not _is_constant(defined, error[~undefined]):
        low = defined.min()
        unit = defined / 2 - low / 2  # halves: the range of huge rewards must not overflow
        unit /= unit.max()
        # The irrational offset keeps simple fractions away from the rounding boundary.
        digest.update(np.floor(unit * 1e9 + 1 / math.pi).astype("<i8").tobytes())
    return digest.hexdigest()


@np.errstate(all="ignore")
def analyse(code: Sequence[Instruction], primitives: Sequence[Domain], states: Any = None) -> Analysis:
    """Judge a program over the primitives' domain.

    Exact over the states when every primitive is discrete. Otherwise bounds come from interval arithmetic over
    the domain cut into boxes, which misses no denominator that can be zero, and the rest from probe points.

    Args:
        code: From :func:`derl_gym.programs.parse.parse`.
        primitives: g1..gk, one per column; g1 is the outcome.
        states: The reachable states (S, k), when a task knows them: the program is then judged on them alone. Where
            a primitive is continuous they are probe points like any others.

    Raises:
        ValueError: when the program uses more primitives than are given, or ``states`` has another shape.
    """
    k = len(primitives)
    used = sorted({int(step.value) for step in code if step.op == "name"})
    if used and used[-1] >= k:
        raise ValueError(f"the program uses g{used[-1] + 1}, but only {k} primitives are given")
    exact = _listable(primitives)
    points = states_of(primitives) if states is None else check_columns(states, k)
    rewards, undefined, error = evaluate_with_error(code, points)
    defined = rewards[~undefined]
    constant = len(defined) > 0 and _is_constant(defined, error[~undefined])
    low, high, culprit = bounds_of(code, *_boxes(primitives, points if exact else None))

    # Along g1, everything else held: the states themselves, or the probes with g1 swept over its range.
    lines = points if exact else _sweep_g1(points, primitives[0])
    drop, credit, _ = _along_g1(code, lines)
    veto = []
    for column in used:
        if column > 0 and credit:
            _, credit_left, steps = _along_g1(code, _at_zero(lines, column, primitives[column], exact))
            if steps and not credit_left:
                veto.append(f"g{column + 1}")

    invalid, unstable = [], []
    if len(defined) == 0:
        invalid.append(f"never defined: {_failure(code, points)}")
    elif constant:
        invalid.append("constant: the same reward in every state, so nothing can be learnt from it")
    if drop is not None:
        at = ", ".join(f"g{i + 1}={drop[i]:g}" for i in used if i > 0)
        invalid.append("raising g1 lowers the reward" + (f" at {at}" if at else ""))
    if culprit and len(defined):
        unstable.append(f"undefined or unbounded: {culprit}")
    unstable += [f"veto: {name} at zero wipes out all credit for g1" for name in veto]
    return Analysis(
        structure="invalid" if invalid else "unstable" if unstable else "stable",
        reasons=tuple(invalid + unstable),
        bounds=(low, high) if len(defined) else (math.nan, math.nan),
        monotone_in_g1=drop is None,
        undefined=tuple(map(tuple, points[undefined].tolist())) if exact else int(undefined.sum()),
        constant=constant,
        veto=tuple(veto),
        smallest_gap=0.0 if constant or len(defined) == 0 else _gap(defined, error[~undefined], exact),
        largest=float(np.abs(defined).max(initial=0.0)) if exact else max(abs(low), abs(high)),
    )


def _listable(primitives: Sequence[Domain]) -> bool:
    combinations = math.prod(len(p.values or ()) for p in primitives)
    return 0 < combinations <= MAX_STATES


def _failure(code: Sequence[Instruction], points: Floats) -> str:
    try:
        evaluate(code, points)
    except UndefinedReward as error:
        return error.reason
    return "there are no states"


def _is_constant(rewards: Floats, error: Floats) -> bool:
    """No two rewards differ by more than their round-off explains (also true of none at all)."""
    return len(rewards) == 0 or bool((rewards - error).max() <= (rewards + error).min() + _TINY)


def _gap(rewards: Floats, error: Floats, exact: bool) -> float:
    if not exact:
        return float(rewards.max() - rewards.min())
    order = np.argsort(rewards)
    gaps = np.diff(rewards[order])
    noise = error[order][1:] + error[order][:-1]
    return float(gaps[gaps > noise].min(initial=rewards.max() - rewards.min()))


def _boxes(primitives: Sequence[Domain], points: Floats | None) -> tuple[Floats, Floats]:
    """Lower and upper corners (B, k) of boxes that cover the domain: points when it is listed."""
    if points is not None:
        return points, points
    continuous = sum(p.values is None for p in primitives)
    listed = math.prod(len(p.values) for p in primitives if p.values)
    if listed > MAX_STATES:
        return (
            np.array([[p.low for p in primitives]], dtype=np.float64),
            np.array([[p.high for p in primitives]], dtype=np.float64),
        )
    # Cutting the ranges makes interval arithmetic tighter where a primitive occurs twice.
    cuts = max(1, min(8, int((MAX_STATES / listed) ** (1 / max(continuous, 1)))))
    sides = []
    for p in primitives:
        if p.values is None:
            edges = np.linspace(p.low, p.high, cuts + 1).tolist()
            sides.append(list(itertools.pairwise(edges)))
        else:
            sides.append([(value, value) for value in p.values])
    boxes = np.array(list(itertools.product(*sides)), dtype=np.float64)
    return boxes[:, :, 0], boxes[:, :, 1]


def _sweep_g1(points: Floats, g1: Domain) -> Floats:
    values = np.array(g1.values or np.linspace(g1.low, g1.high, _GRID), dtype=np.float64)
    lines = np.repeat(points, len(values), axis=0)
    lines[:, 0] = np.tile(values, len(points))
    return lines


def _at_zero(lines: Floats, column: int, primitive: Domain, exact: bool) -> Floats:
    """The states in which a primitive is zero; no rows when it never is."""
    if exact:
        return lines[lines[:, column] == 0]
    if not (primitive.low <= 0 <= primitive.high) or (primitive.values and 0 not in primitive.values):
        return lines[:0]
    zero = lines.copy()
    zero[:, column] = 0.0
    return zero


def _along_g1(code: Sequence[Instruction], lines: Floats) -> tuple[Floats | None, bool, int]:
    """What raising g1 does between neighbouring defined states that agree in everything else.

    Returns:
        A state after which the reward falls (or ``None``), whether the reward changes anywhere, and the number
        of steps that could be looked at.
    """
    rewards, undefined, error = evaluate_with_error(code, lines)
    order = np.lexsort(lines.T)
    order = order[~undefined[order]]
    a, b = order[:-1], order[1:]
    neighbours = (lines[a, 1:] == lines[b, 1:]).all(axis=1) & (lines[a, 0] < lines[b, 0])
    a, b = a[neighbours], b[neighbours]
    change, noise = rewards[b] - rewards[a], error[a] + error[b]
    falls = np.flatnonzero(change < -noise)
    return (lines[a[falls[0]]] if len(falls) else None), bool((np.abs(change) > noise).any()), len(a)
