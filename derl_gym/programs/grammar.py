"""Grammar: the alphabet of reward programs, token masks, EBNF and the prior of random search.

Token ids are what environments and agents exchange. Which sentences are in the language is decided in
automaton.py; a text is parsed, without regard to the language's restrictions, in parse.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from derl_gym.programs import prior
from derl_gym.programs.automaton import Automaton, State
from derl_gym.programs.ebnf import ebnf
from derl_gym.programs.parse import InvalidProgram, check_text, token_count

END = "<end>"
_OPERATORS = ("+", "-", "*", "/", "**")
_JOINED = re.compile(r"[0-9g.] +[0-9.]|\* +\*")

TokenState = State | None
"""State of the token automaton; ``None`` once END was read."""


class Grammar:
    """The action alphabet and its two masks (paper section 3.2 and appendix on the proposer).

    The ``"charset"`` mask is the paper's: any token at any place, END not first. The ``"grammar"`` mask keeps every
    prefix completable within ``max_length`` tokens, and every finished sentence is a program with at least one
    primitive. Its language is that of automaton.py: unary minus only at the start or after ``(``; numbers such as
    10, 0.5 or 12.25; powers of primitives and groups, with a small positive number as exponent.

    Args:
        k: Number of primitives g1..gk.
        max_length: Longest program in tokens, END not counted.
        primitives: Names that may be used, in order; ``None``: all k.
        max_digits: Most digits of a number before the point, and after it.

    Attributes:
        tokens: The alphabet; a token's id is its index, and ``tokens[0]`` is END.
        k, max_length, primitives, max_digits: The arguments, with ``primitives`` always a tuple.

    Raises:
        ValueError: for a k, length, name or number of digits that is out of range.
    """

    def __init__(
        self, k: int = 4, max_length: int = 32, primitives: Sequence[str] | None = None, max_digits: int = 3
    ) -> None:
        if not 1 <= k <= 99:
            raise ValueError(f"expected 1 to 99 primitives, got k={k}")
        if not 1 <= max_length <= 128:
            raise ValueError(f"expected max_length from 1 to 128 tokens, got {max_length}")
        if not 1 <= max_digits <= 3:
            raise ValueError(f"expected max_digits from 1 to 3, got {max_digits}")
        every = tuple(f"g{i + 1}" for i in range(k))
        names = every if primitives is None else tuple(name for name in every if name in primitives)
        if not names or set(primitives or names) != set(names):
            raise ValueError(f"expected primitives among {', '.join(every)}, got {primitives!r}")
        self.k = k
        self.max_length = max_length
        self.primitives = names
        self.max_digits = max_digits
        self.tokens: tuple[str, ...] = (END, *names, *_OPERATORS, *"0123456789", ".", "(", ")")
        self.automaton = Automaton(names, max_length, max_digits)
        self.initial: TokenState = self.automaton.start()
        self._ids = {token: i for i, token in enumerate(self.tokens)}
        longest_first = sorted(self.tokens[1:], key=len, reverse=True)
        self._token = re.compile("|".join(map(re.escape, longest_first)) + "|g[0-9]*")
        self._known: dict[TokenState, tuple[NDArray[np.int8], tuple[TokenState, ...]]] = {}
        self._only_end = np.zeros(len(self.tokens), dtype=np.int8)
        self._only_end[0] = 1

    @property
    def vocab_size(self) -> int:
        """V, the number of tokens with END."""
        return len(self.tokens)

    def encode(self, text: str) -> NDArray[np.int64]:
        """Token ids of a text, which need not be well formed.

        Args:
            text: Over the alphabet; spaces are dropped.

        Returns:
            int64 of shape (max_length,), padded with END.

        Raises:
            InvalidProgram: for a character or name outside the alphabet, or too many tokens.
        """
        check_text(text)
        joined = _JOINED.search(text)
        if joined:
            raise InvalidProgram("a space inside a name, number or operator", joined.start() + 1)
        ids: list[int] = []
        for match in self._token.finditer(text):
            if match.group() not in self._ids:
                raise InvalidProgram(
                    f"{match.group()!r} is not a primitive; expected one of {', '.join(self.primitives)}",
                    match.start() + 1,
                )
            ids.append(self._ids[match.group()])
        if len(ids) > self.max_length:
            raise InvalidProgram(f"{len(ids)} tokens, the limit is {self.max_length}")
        return np.array(ids + [0] * (self.max_length - len(ids)), dtype=np.int64)

    def decode(self, ids: Iterable[Any]) -> str:
        """Text of the ids before the first END (``<end>``).

        Raises:
            ValueError: for an id outside ``[0, vocab_size)``.
        """
        text = []
        for token in _plain(ids):
            if not 0 <= token < len(self.tokens):
                raise ValueError(f"expected token ids from 0 to {len(self.tokens) - 1}, got {token}")
            if token == 0:
                break
            text.append(self.tokens[token])
        return "".join(text)

    def advance_token(self, state: TokenState, token: int) -> TokenState:
        """The state after one more token; ``initial`` is the state of the empty prefix.

        Raises:
            InvalidProgram: when the grammar mask forbids the token there.
        """
        mask, after = self._edges(state)
        if not 0 <= token < len(after) or not mask[token]:
            shown = repr(self.tokens[token]) if 0 <= token < len(after) else f"id {token}"
            raise InvalidProgram(f"token {shown} is not legal here")
        return after[token]

    def mask_of(self, state: TokenState) -> NDArray[np.int8]:
        """The grammar mask in a state: int8 (V,), 1 for legal tokens. A copy."""
        return self._edges(state)[0].copy()

    def mask(self, prefix: Iterable[Any], kind: Literal["grammar", "charset"] = "grammar") -> NDArray[np.int8]:
        """Which tokens may follow a prefix; after END or ``max_length`` tokens only END may.

        Args:
            prefix: Token ids so far.
            kind: ``"grammar"`` or ``"charset"``, see the class.

        Returns:
            int8 of shape (V,), a new array.

        Raises:
            InvalidProgram: when the prefix itself is not legal under the grammar mask.
            ValueError: for another kind.
        """
        ids = _plain(prefix)
        if kind == "charset":
            if len(ids) >= self.max_length or 0 in ids:
                return self._only_end.copy()
            mask = np.ones(len(self.tokens), dtype=np.int8)
            mask[0] = len(ids) > 0
            return mask
        if kind != "grammar":
            raise ValueError(f"expected kind 'grammar' or 'charset', got {kind!r}")
        state = self.initial
        for place, token in enumerate(ids):
            try:
                state = self.advance_token(state, token)
            except InvalidProgram as error:
                raise InvalidProgram(f"{error.reason}: after {self.decode(ids[:place])!r}") from None
        return self.mask_of(state)

    def sample(self, rng: np.random.Generator) -> str:
        """A program from the prior that "random search" means: see prior.py."""
        return prior.sample(rng, self.primitives, lambda text: token_count(text) <= self.max_length, self.max_digits)

    def sample_charset(self, rng: np.random.Generator) -> str:
        """A text of the charset mask: END with probability 0.1 after the first token, else uniform tokens."""
        length = min(int(rng.geometric(0.1)), self.max_length)
        return "".join(self.tokens[i] for i in rng.integers(1, len(self.tokens), length))

    def ebnf(self, dialect: Literal["gbnf", "lark"] = "gbnf") -> str:
        """The language without the length limit, for constrained decoding.

        Args:
            dialect: ``"gbnf"`` (llama.cpp, xgrammar) or ``"lark"`` (lark, llguidance).
        """
        return ebnf(self.primitives, dialect, self.max_digits)

    def _edges(self, state: TokenState) -> tuple[NDArray[np.int8], tuple[TokenState, ...]]:
        """Mask and successors of a state, worked out once."""
        known = self._known.get(state)
        if known is None:
            if state is None:
                known = self._only_end, (None,) * len(self.tokens)
            else:
                after = [self._after(state, token) for token in self.tokens[1:]]
                ends = self.automaton.can_end(state)
                mask = np.array([ends] + [s is not None for s in after], dtype=np.int8)
                known = mask, (None, *after)
            self._known[state] = known
        return known

    def _after(self, state: State, token: str) -> State | None:
        after: State | None = state
        for char in token:
            after = self.automaton.advance(after, char) if after is not None else None
        # A character that joins the token before it (a second "*", the 0 of g10) is no token of its own.
        return after if after is not None and after.tokens == state.tokens + 1 else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Grammar) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[int, int, tuple[str, ...], int]:
        return self.k, self.max_length, self.primitives, self.max_digits

    def __reduce__(self) -> tuple[type[Grammar], tuple[int, int, tuple[str, ...], int]]:
        return Grammar, self._key()

    def __repr__(self) -> str:
        names = "" if len(self.primitives) == self.k else f", primitives={self.primitives}"
        digits = "" if self.max_digits == 3 else f", max_digits={self.max_digits}"
        return f"Grammar(k={self.k}, max_length={self.max_length}{names}{digits})"


def _plain(ids: Iterable[Any]) -> list[int]:
    return ids.tolist() if isinstance(ids, np.ndarray) else [int(i) for i in ids]
