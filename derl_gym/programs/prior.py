"""The prior over programs that "random search" means, sampled by class rather than token by token.

Uniform tokens would give mostly constants, since ten of the tokens are digits. Instead:

- Every primitive joins the sum: the first (g1 where it may be used) with probability 0.85, the others with 0.5 each;
  if none did, one at random.
- Its sign is + with probability 0.95 for the first and 0.75 for the others.
- Its coefficient is 1 (not written) with probability 0.4, else one of 2, 3, 4, 5, 10, 0.1, 0.2, 0.5, 1.5.
- With probability 0.2 one term is bent: its primitive is multiplied by ``g`` or by ``(g+c)``, divided by
  ``(g+c)``, or raised to 2, 3 or 0.5. ``g`` is any primitive and c is 1, 2 or 0.5; all choices are even.
- Where numbers are shorter, coefficients that are too long are left out of the choice.
- Terms after the first are dropped at random until the program fits the length limit; where not even one fits,
  a primitive alone is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

_COEFFICIENTS = ("2", "3", "4", "5", "10", "0.1", "0.2", "0.5", "1.5")
_GUARDS = ("1", "2", "0.5")
_EXPONENTS = ("2", "3", "0.5")


def sample(rng: np.random.Generator, names: Sequence[str], fits: Callable[[str], bool], max_digits: int = 3) -> str:
    """One program.

    Args:
        rng: Source of randomness.
        names: Primitives that may be used; the first is the one that is favoured.
        fits: Whether a text is within the length limit; a primitive alone always is.
        max_digits: Most digits of a number before the point, and after it.
    """
    coefficients = [text for text in _COEFFICIENTS if all(len(part) <= max_digits for part in text.split("."))]
    joins = rng.random(len(names)) < np.where(np.arange(len(names)) == 0, 0.85, 0.5)
    if not joins.any():
        joins[rng.integers(len(names))] = True
    terms = []
    for i in np.flatnonzero(joins).tolist():
        sign = "+" if rng.random() < (0.95 if i == 0 else 0.75) else "-"
        scale = "" if rng.random() < 0.4 else _pick(rng, coefficients) + "*"
        terms.append((sign, scale, names[i]))
    bent = int(rng.integers(len(terms))) if rng.random() < 0.2 else None
    if bent is not None:
        sign, scale, name = terms[bent]
        terms[bent] = (sign, scale, _bend(rng, name, names))
    while True:
        text = "".join(sign + scale + body for sign, scale, body in terms).removeprefix("+")
        if fits(text):
            return text
        if len(terms) == 1:
            return _pick(rng, names)
        terms.pop(int(rng.integers(1, len(terms))))


def _bend(rng: np.random.Generator, name: str, names: Sequence[str]) -> str:
    other = _pick(rng, names)
    guarded = f"({other}+{_pick(rng, _GUARDS)})"
    power = f"{name}**{_pick(rng, _EXPONENTS)}"
    return _pick(rng, (f"{name}*{other}", f"{name}*{guarded}", f"{name}/{guarded}", power))


def _pick(rng: np.random.Generator, choices: Sequence[str]) -> str:
    return choices[int(rng.integers(len(choices)))]
