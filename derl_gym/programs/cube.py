"""Programs as points of the unit cube: what ``UnitCube`` and optimizers of real vectors stand on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from derl_gym.programs.grammar import Grammar


def from_cube(grammar: Grammar, point: Any) -> NDArray[np.int64]:
    """The program at a point of ``[0, 1]^L``.

    Coordinate i picks the i-th token among those that the grammar allows there. The unit interval is shared out by
    kind of token (primitive, operator, digit, parenthesis, ``<end>``), so that the ten digits weigh no more than one
    primitive does; every point is a well-formed program. Coordinates behind ``<end>`` do not matter.

    Args:
        grammar: The alphabet and its masks; L is its ``max_length``.
        point: Numbers (L,).

    Returns:
        int64 token ids (L,), padded with END.

    Raises:
        ValueError: when the point has another shape or lies outside the cube.
    """
    length = grammar.max_length
    point = np.asarray(point, dtype=np.float64)
    if point.shape != (length,) or not ((point >= 0) & (point <= 1)).all():
        raise ValueError(f"expected a point of [0, 1]^{length}, got {point!r}")
    kinds = np.unique([_kind(token) for token in grammar.tokens], return_inverse=True)[1]
    ids = np.zeros(length, dtype=np.int64)
    state = grammar.initial
    for i, coordinate in enumerate(point):
        legal = np.flatnonzero(grammar.mask_of(state))
        share = 1.0 / np.bincount(kinds[legal])[kinds[legal]]
        at = np.searchsorted(np.cumsum(share) / share.sum(), coordinate, side="right")
        ids[i] = legal[min(int(at), len(legal) - 1)]
        if ids[i] == 0:
            break
        state = grammar.advance_token(state, int(ids[i]))
    return ids


def _kind(token: str) -> str:
    if token == "<end>":
        return "end"
    if token.startswith("g"):
        return "primitive"
    return "digit" if token.isdigit() or token == "." else "parenthesis" if token in "()" else "operator"
