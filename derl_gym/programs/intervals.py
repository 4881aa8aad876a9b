"""Interval arithmetic for reward programs: bounds that hold over whole boxes of the primitives' domain.

Vectorised over boxes; a box may be a point. Only :func:`bounds_of` is meant for others (analysis.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from derl_gym.programs.evaluate import Floats
from derl_gym.programs.parse import Instruction

Interval = tuple[Floats, Floats]


def bounds_of(code: Sequence[Instruction], low: Floats, high: Floats) -> tuple[float, float, str | None]:
    """Bounds of a program over a union of boxes.

    Args:
        code: From :func:`derl_gym.programs.parse.parse`.
        low: Lower corners, shape (B, k).
        high: Upper corners, shape (B, k).

    Returns:
        Lowest and highest value, infinite where unbounded, and the first part that is undefined or unbounded
        somewhere in the boxes, in words (``None`` if every part has a finite value everywhere).
    """
    culprit: str | None = None
    stack: list[Interval] = []
    with np.errstate(all="ignore"):
        for op, value, source in code:
            if op == "name":
                stack.append((low[:, int(value)], high[:, int(value)]))
                continue
            if op == "const":
                constant = np.full(len(low), value)
                stack.append((constant, constant))
                continue
            b = stack.pop()
            if op == "neg":
                stack.append((-b[1], -b[0]))
                continue
            a = stack.pop()
            bad = np.zeros(len(low), dtype=bool)
            if op == "+":
                lo, hi = a[0] + b[0], a[1] + b[1]
            elif op == "-":
                lo, hi = a[0] - b[1], a[1] - b[0]
            elif op == "*":
                lo, hi = _hull(a[0] * b[0], a[0] * b[1], a[1] * b[0], a[1] * b[1])
            elif op == "/":
                lo, hi, bad = _quotient(a, b)
            else:
                lo, hi, bad = _power(a, b)
            if culprit is None and (bad.any() or not (np.isfinite(lo).all() and np.isfinite(hi).all())):
                culprit = _reason(op, source, bool(bad.any()))
            stack.append((lo, hi))
    lo, hi = stack.pop()
    # Adding 0.0 turns -0.0 into 0.0.
    return float(lo.min(initial=np.inf)) + 0.0, float(hi.max(initial=-np.inf)) + 0.0, culprit


def _reason(op: str, source: str, outside: bool) -> str:
    if op == "/" and outside:
        return f"the denominator in {source} can be zero"
    if op == "**" and outside:
        return f"{source} can be zero to a negative power or a negative number to a fractional one"
    return f"{source} can overflow"


def _hull(*corners: Floats) -> Interval:
    """Smallest interval around the corners; 0*inf and 0/0 are left out."""
    lo, hi = corners[0], corners[0]
    for corner in corners[1:]:
        lo, hi = np.fmin(lo, corner), np.fmax(hi, corner)
    return np.where(np.isnan(lo), -np.inf, lo), np.where(np.isnan(hi), np.inf, hi)


def _quotient(a: Interval, b: Interval) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    bad = (b[0] <= 0) & (b[1] >= 0)
    through = (b[0] < 0) & (b[1] > 0) | (b[0] == 0) & (b[1] == 0)
    # A zero at the edge is approached from inside, so the sign of the infinity is known.
    near, far = np.where(b[0] == 0, 0.0, b[0]), np.where(b[1] == 0, -0.0, b[1])
    lo, hi = _hull(a[0] / near, a[0] / far, a[1] / near, a[1] / far)
    return np.where(through, -np.inf, lo), np.where(through, np.inf, hi), bad


def _power(a: Interval, b: Interval) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    # x**y is monotone in x and in y for x > 0, so the corners bound it; whole fixed exponents allow x < 0.
    whole = (b[0] == b[1]) & (b[0] == np.floor(b[0]))
    bad = (a[0] < 0) & ~whole | (a[0] <= 0) & (a[1] >= 0) & (b[0] < 0)
    lo, hi = _hull(a[0] ** b[0], a[0] ** b[1], a[1] ** b[0], a[1] ** b[1])
    dips = whole & (b[0] % 2 == 0) & (b[0] > 0) & (a[0] < 0) & (a[1] > 0)
    lo = np.where(dips, 0.0, lo)
    return np.where(bad, -np.inf, lo), np.where(bad, np.inf, hi), bad
