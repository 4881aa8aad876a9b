"""Shared by the tests of the programs floor."""

import numpy as np
import pytest

from derl_gym.programs import Grammar
from derl_gym.tasks.base import Primitive


def masked_walk(grammar: Grammar, rng: np.random.Generator, end: float = 0.3) -> list[int]:
    """Token ids of one program, each drawn among those that the grammar mask allows."""
    ids: list[int] = []
    state = grammar.initial
    while True:
        mask = grammar.mask_of(state)
        legal = np.flatnonzero(mask[1:]) + 1
        if mask[0] and (len(legal) == 0 or rng.random() < end):
            return ids
        token = int(rng.choice(legal))
        ids.append(token)
        state = grammar.advance_token(state, token)


@pytest.fixture(scope="session")
def walk():
    return masked_walk


@pytest.fixture(scope="session")
def make_primitives():
    """binary(4) or with ``continuous=(2, 3)``: those are in [0, 1]."""

    def make(k: int = 4, continuous: tuple[int, ...] = (), flipped: tuple[int, ...] = ()):
        made = []
        for i in range(1, k + 1):
            primitive = Primitive(f"g{i}", "", lambda completion, example: 0.0, None if i in continuous else (0.0, 1.0))
            made.append(primitive.flipped() if i in flipped else primitive)
        return tuple(made)

    return make
