"""ProgramSpace: reward programs as a Gymnasium action space, alone and in batches.

Both spaces are MultiDiscrete over token ids, so every wrapper and library that knows MultiDiscrete knows them;
what they add is the grammar, and samples that are programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import MultiDiscrete
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from derl_gym.programs.grammar import Grammar


class ProgramSpace(MultiDiscrete):
    """Token ids of one program: int64 of shape (L,), padded with END (id 0).

    Any ids are members: what is no program is scored as such by the environment. Samples are programs of the
    grammar's prior.

    Example:
        >>> space = ProgramSpace(Grammar(k=4), seed=0)
        >>> space.decode(space.encode("g1 + 0.5*g2"))
        'g1+0.5*g2'

    Attributes:
        grammar: The alphabet and its masks.
    """

    def __init__(self, grammar: Grammar, seed: int | np.random.Generator | None = None) -> None:
        self.grammar = grammar
        super().__init__([grammar.vocab_size] * grammar.max_length, dtype=np.int64, seed=seed)

    def encode(self, text: str) -> NDArray[np.int64]:
        """Ids of a text: see :meth:`derl_gym.programs.Grammar.encode`."""
        return self.grammar.encode(text)

    def decode(self, ids: Iterable[Any]) -> str:
        """Text of ids: see :meth:`derl_gym.programs.Grammar.decode`."""
        return self.grammar.decode(ids)

    def mask(self, prefix: Iterable[Any], kind: Literal["grammar", "charset"] = "grammar") -> NDArray[np.int8]:
        """Legal next tokens: see :meth:`derl_gym.programs.Grammar.mask`."""
        return self.grammar.mask(prefix, kind)

    def sample(
        self, mask: tuple[Any, ...] | None = None, probability: tuple[Any, ...] | None = None
    ) -> NDArray[np.int64]:
        """A program of the grammar's prior; with a mask or probabilities, as MultiDiscrete does."""
        if mask is not None or probability is not None:
            return super().sample(mask, probability)
        return self.encode(self.grammar.sample(self.np_random))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProgramSpace) and self.grammar == other.grammar

    def __repr__(self) -> str:
        return f"ProgramSpace({self.grammar!r})"


class BatchedProgramSpace(MultiDiscrete):
    """Token ids of n programs: int64 of shape (n, L).

    Attributes:
        grammar: The alphabet and its masks.
    """

    def __init__(self, grammar: Grammar, n: int, seed: int | np.random.Generator | None = None) -> None:
        self.grammar = grammar
        nvec = np.full((n, grammar.max_length), grammar.vocab_size)
        super().__init__(nvec, dtype=np.int64, seed=seed)

    def encode(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Ids of texts, shape (len(texts), L).

        Raises:
            InvalidProgram: when one of them has other characters or is too long.
        """
        return np.stack([self.grammar.encode(text) for text in texts])

    def decode(self, ids: Iterable[Iterable[Any]]) -> list[str]:
        """Texts of ids."""
        return [self.grammar.decode(row) for row in ids]

    def sample(
        self, mask: tuple[Any, ...] | None = None, probability: tuple[Any, ...] | None = None
    ) -> NDArray[np.int64]:
        """Programs of the grammar's prior, one per row; with a mask or probabilities, as MultiDiscrete does."""
        if mask is not None or probability is not None:
            return super().sample(mask, probability)
        return self.encode([self.grammar.sample(self.np_random) for _ in range(self.shape[0])])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BatchedProgramSpace) and self.grammar == other.grammar and self.shape == other.shape

    def __repr__(self) -> str:
        return f"BatchedProgramSpace({self.grammar!r}, n={self.shape[0]})"


@batch_space.register(ProgramSpace)
def _batch_program_space(space: ProgramSpace, n: int = 1) -> BatchedProgramSpace:
    return BatchedProgramSpace(space.grammar, n, seed=deepcopy(space.np_random))
