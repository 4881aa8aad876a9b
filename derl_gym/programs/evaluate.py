"""Postfix code over columns of primitive values.

:func:`evaluate` is what training calls: fast, and it refuses at the first undefined row.
:func:`evaluate_with_error` is what analysis calls: undefined rows are marked, and every value comes with a bound
on its round-off. Parsing is in parse.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from derl_gym.programs.parse import Instruction

Floats = NDArray[np.float64]

_UFUNCS: dict[str, np.ufunc] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "**": np.power,
}
_ULP = float(np.finfo(np.float64).eps)


class UndefinedReward(ArithmeticError):
    """A reward that has no real, finite value.

    Attributes:
        reason: What happened, and in which part of the program.
        row: The first row of ``G`` where it happened.
    """

    def __init__(self, reason: str, row: int) -> None:
        super().__init__(reason, row)
        self.reason = reason
        self.row = row

    def __str__(self) -> str:
        return f"{self.reason} (row {self.row})"


def check_columns(G: Any, k: int) -> Floats:
    """``G`` as float64 (N, k).

    Raises:
        ValueError: when the shape is another, or a primitive's value is not finite.
    """
    values = np.asarray(G, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] != k:
        raise ValueError(f"expected primitive values of shape (N, {k}), got {values.shape}")
    finite = np.isfinite(values)
    if not finite.all():
        row, column = (int(i) for i in np.argwhere(~finite)[0])
        raise ValueError(f"primitive values must be finite, got g{column + 1} = {values[row, column]} in row {row}")
    return values


def evaluate(code: Sequence[Instruction], values: Floats) -> Floats:
    """The program's value on every row.

    Args:
        code: From :func:`derl_gym.programs.parse.parse`.
        values: Shape (N, k), finite.

    Returns:
        Shape (N,), a new array.

    Raises:
        UndefinedReward: at the first operation whose result is not finite in some row.
    """
    columns = np.ascontiguousarray(values.T)
    stack: list[Any] = []
    with np.errstate(all="ignore"):
        for op, value, source in code:
            if op == "name":
                stack.append(columns[int(value)])
            elif op == "const":
                stack.append(value)
            elif op == "neg":
                stack.append(np.negative(stack.pop()))
            else:
                right, left = stack.pop(), stack.pop()
                result = _UFUNCS[op](left, right)
                # Every failure shows here: x/0 and 0**-1 are inf, 0/0 and (-1)**0.5 are nan, and so is overflow.
                finite = np.isfinite(result)
                if not finite.all() and len(values):
                    raise _undefined(op, left, right, finite, source, len(values))
                stack.append(result)
    return np.array(np.broadcast_to(stack.pop(), (len(values),)), dtype=np.float64)


def _undefined(op: str, left: Any, right: Any, finite: Any, source: str, n: int) -> UndefinedReward:
    """Say why the first row that is not finite is not."""
    row = int(np.argmin(np.broadcast_to(finite, (n,))))
    a = float(np.broadcast_to(left, (n,))[row])
    b = float(np.broadcast_to(right, (n,))[row])
    if op == "/" and b == 0:
        what = "division by zero"
    elif op == "**" and a == 0 and b < 0:
        what = "zero to a negative power"
    elif op == "**" and a < 0 and not b.is_integer():
        what = "a negative number to a fractional power"
    else:
        what = "overflow"
    return UndefinedReward(f"{what} in {source}", row)


def evaluate_with_error(code: Sequence[Instruction], values: Floats) -> tuple[Floats, NDArray[np.bool_], Floats]:
    """Values, undefined rows, and a running bound on round-off.

    The bound is first order and counts the decimal constants' own rounding, so that ``0.1*g1+0.2*g1-0.3*g1`` is
    seen to be constant.

    Args:
        code: From :func:`derl_gym.programs.parse.parse`.
        values: Shape (N, k), finite.

    Returns:
        ``(rewards, undefined, error)``, each of shape (N,); rewards and error are 0 where undefined.
    """
    n = len(values)
    undefined = np.zeros(n, dtype=bool)
    stack: list[tuple[Floats, Floats]] = []
    with np.errstate(all="ignore"):
        for op, value, _ in code:
            if op == "name":
                stack.append((values[:, int(value)], np.zeros(n)))
                continue
            if op == "const":
                error = 0.0 if value.is_integer() else _ULP * abs(value)
                stack.append((np.full(n, value), np.full(n, error)))
                continue
            b, error_b = stack.pop()
            if op == "neg":
                stack.append((-b, error_b))
                continue
            a, error_a = stack.pop()
            result = _UFUNCS[op](a, b)
            undefined |= ~np.isfinite(result)
            result = np.where(undefined, 0.0, result)
            size = np.abs(result)
            if op in "+-":
                error = error_a + error_b + _ULP * size
            elif op == "*":
                error = np.abs(a) * error_b + np.abs(b) * error_a + _ULP * size
            elif op == "/":
                error = (error_a + size * error_b) / np.abs(b) + _ULP * size
            else:
                error = (
                    np.nan_to_num(np.abs(b) * size / np.abs(a) * error_a, posinf=0.0)
                    + np.nan_to_num(np.abs(np.log(np.abs(a))) * size * error_b, posinf=0.0)
                    + 4 * _ULP * size
                )
            stack.append((result, np.where(undefined, 0.0, error)))
    rewards, error = stack.pop()
    return np.where(undefined, 0.0, rewards), undefined, np.where(undefined, 0.0, error)
