r"""Exact rational numbers: ``1,234.5``, ``1 1/2``, ``\frac{3}{4}``, ``3 \times 10^{-2}``, computed without sympy.

Where there is a letter, a root or anything else that is no arithmetic, there is no value.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

LARGEST_EXPONENT = 10_000
"""No larger one is computed. The largest in MATH is 4,950."""
LARGEST_FACTORIAL = 4_000
"""See above. The largest in MATH is 2,004."""
MOST_BITS = 50_000
"""Of a number that is computed exactly."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[1-9][0-9]{0,2}(?:(?:,[0-9]{3})+|(?: [0-9]{3})+)(?![0-9]|,[0-9])(?:\.[0-9]+)?"
    r"|[0-9]+(?:\.[0-9]*)?|\.[0-9]+)|(?P<sign>\\frac(?![a-zA-Z])|\\(?:cdot|times|div)(?![a-zA-Z])|[-+*/^(){}!]))"
)
_SIGNS = {r"\cdot": "*", r"\times": "*", r"\div": "/"}


def number(text: str) -> Fraction | None:
    r"""The value of a normal form that holds rational numbers, ``+ - * / ^ !`` and ``\frac`` only; else ``None``.

    Mixed numbers are sums (``1 1/2``, ``6\frac{1}{6}``), ``1,000`` and ``1 000`` are a thousand. Exact, and bounded:
    no exponent above 10,000 is computed.
    """
    text = text.strip()
    tokens: list[str] = []
    end = 0
    while end < len(text):
        match = _TOKEN.match(text, end)
        if not match:
            return None
        tokens.append(
            re.sub("[, ]", "", match["number"]) if match["number"] else _SIGNS.get(match["sign"], match["sign"])
        )
        end = match.end()
    try:
        return _Arithmetic(tokens).value()
    except (ArithmeticError, ValueError, IndexError, RecursionError):
        return None


def decimals(text: str) -> int:
    """How many digits stand behind the point of a plain decimal number; 0 for anything else."""
    match = re.fullmatch(r"[-+]?[0-9, ]*\.([0-9]+)", text)
    return len(match[1]) if match else 0


class _Arithmetic:
    """A recursive descent; raises ValueError or IndexError on what is no arithmetic."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = [*tokens, ""]
        self._place = 0

    def value(self) -> Fraction:
        value = self._sum()
        if self._next:
            raise ValueError(f"{self._next!r} stands behind the end")
        return value

    @property
    def _next(self) -> str:
        return self._tokens[self._place]

    def _take(self, *expected: str) -> str:
        if self._next not in expected:
            raise ValueError(f"{self._next!r} is none of {expected}")
        self._place += 1
        return self._tokens[self._place - 1]

    def _sum(self) -> Fraction:
        total = Fraction(0)
        sign = self._take("+", "-") if self._next in ("+", "-") else "+"
        while True:
            total = _bounded(total + self._product() if sign == "+" else total - self._product())
            if self._next not in ("+", "-"):
                return total
            sign = self._take("+", "-")

    def _product(self) -> Fraction:
        total = self._power()
        while self._next in ("*", "/"):
            total = _bounded(total * self._power() if self._take("*", "/") == "*" else total / self._power())
        return total

    def _power(self) -> Fraction:
        base = self._atom()
        while self._next == "!" and self._take("!"):
            base = _factorial(base)
        if self._next != "^":
            return base
        self._take("^")
        sign = -1 if self._next == "-" and self._take("-") else 1
        exponent = sign * self._power()
        if exponent.denominator != 1 or abs(exponent) > LARGEST_EXPONENT or _bits(base) * abs(exponent) > MOST_BITS:
            raise ValueError("an exponent is a root or too large")
        return base ** int(exponent)

    def _atom(self) -> Fraction:
        token = self._next
        if token in ("(", "{"):
            return self._group()
        self._place += 1
        if token == r"\frac":
            return self._group() / self._group()
        value = Fraction(token)
        if "." in token or not (
            self._next == r"\frac" or (self._next[:1].isdigit() and self._tokens[self._place + 1] == "/")
        ):
            return value
        if self._take(self._next) == r"\frac":
            part = self._group() / self._group()
        else:
            part = Fraction(self._tokens[self._place - 1]) / Fraction(self._tokens[self._place + 1])
            self._place += 2
        if not 0 < part < 1:
            raise ValueError("no mixed number")
        return value + part

    def _group(self) -> Fraction:
        closing = {"(": ")", "{": "}"}[self._take("(", "{")]
        value = self._sum()
        self._take(closing)
        return value


def _factorial(value: Fraction) -> Fraction:
    if value.denominator != 1 or not 0 <= value <= LARGEST_FACTORIAL:
        raise ValueError(f"no factorial of {value} is computed")
    return Fraction(math.factorial(int(value)))


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _bounded(value: Fraction) -> Fraction:
    if _bits(value) > MOST_BITS:
        raise ValueError("a number is too large")
    return value
