"""The few statistics that the report needs: a mean over seeds with its interval, and numbers for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

# Two-sided 95 % quantiles of Student's t for 2, 3, .. degrees of freedom.
_T95 = (
    *(4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)


class Estimate(NamedTuple):
    """A mean over seeds with the half-width of its 95 % interval; ``None`` below three seeds."""

    mean: float
    half_width: float | None
    n: int

    def band(self) -> tuple[float, float]:
        """The interval as (low, high), cut to [0, 1] where scores lie."""
        half = self.half_width or 0.0
        return max(0.0, self.mean - half), min(1.0, self.mean + half)

    def __str__(self) -> str:
        """The mean in percent, with its interval: ``"31.2 ± 4.0"``; below three seeds, ``"31.2"``."""
        spread = "" if self.half_width is None else f" ± {100 * self.half_width:.1f}"
        return f"{100 * self.mean:.1f}{spread}"


def estimate(values: Sequence[float]) -> Estimate | None:
    """Mean and 95 % t interval of independent values, one per seed.

    The interval begins at three values: that of two is so wide (12.7 standard errors) that it says nothing.
    Beyond 21 values the normal quantile, slightly widened, stands in for Student's t (error below 1 %).

    Returns:
        ``None`` for no values.
    """
    n = len(values)
    if n == 0:
        return None
    mean = math.fsum(values) / n
    if n < 3:
        return Estimate(mean, None, n)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    quantile = _T95[n - 3] if n - 3 < len(_T95) else 1.96 + 2.4 / (n - 1)
    return Estimate(mean, quantile * deviation / math.sqrt(n), n)


def quantity(value: float) -> str:
    """A large number for people: ``1234567`` is ``"1.23 M"``."""
    for size, letter in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    """Seconds for people: ``"42 s"``, ``"3 min 5 s"``, ``"2 h 10 min"``."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"
