"""Which tokens of a language model may come next in a reward program.

A program is text, a language model writes tokens of its own. A vocabulary names the tokens that can write a
program ("columns", column 0 ends it) and, after any columns, the legal ones. No torch here.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from derl_gym.programs import Grammar, InvalidProgram

MaskKind = Literal["grammar", "charset"]
END = 0
"""The column that ends a program, in every vocabulary."""


class Vocabulary(Protocol):
    """What the proposer needs of a vocabulary.

    Attributes:
        ids: The language model's token id of every column; ``ids[0]`` ends the program.
        max_columns: Most columns that a program can take, END included.
    """

    ids: list[int]
    max_columns: int

    def start(self) -> Hashable:
        """The state before the first column."""
        ...

    def advance(self, state: Any, column: int) -> Hashable:
        """The state after a legal column other than END."""
        ...

    def legal(self, state: Any) -> np.ndarray:
        """Which columns may follow, bool (C,)."""
        ...

    def text(self, columns: Sequence[int]) -> str:
        """The program that columns write, up to END."""
        ...

    def columns(self, text: str) -> list[int]:
        """Columns that write a program, END included. Raises InvalidProgram where the mask forbids it."""
        ...


class AlphabetVocabulary:
    """The program alphabet itself, masked as the environment masks it: the vocabulary of the small model."""

    def __init__(self, grammar: Grammar, kind: MaskKind) -> None:
        self.grammar, self.kind = grammar, kind
        self.ids = list(range(grammar.vocab_size))
        self.max_columns = grammar.max_length + 1

    def start(self) -> Hashable:
        """See :class:`Vocabulary`."""
        return self.grammar.initial if self.kind == "grammar" else ()

    def advance(self, state: Any, column: int) -> Hashable:
        """See :class:`Vocabulary`."""
        return self.grammar.advance_token(state, column) if self.kind == "grammar" else (*state, column)

    def legal(self, state: Any) -> np.ndarray:
        """See :class:`Vocabulary`."""
        mask = self.grammar.mask_of(state) if self.kind == "grammar" else self.grammar.mask(state, "charset")
        return mask.astype(bool)

    def text(self, columns: Sequence[int]) -> str:
        """See :class:`Vocabulary`."""
        return self.grammar.decode(columns)

    def columns(self, text: str) -> list[int]:
        """See :class:`Vocabulary`."""
        ids = [int(i) for i in self.grammar.encode(text) if i != END]
        return checked(self, [*ids, END], text)


class LMVocabulary:
    """The tokens of a language model that consist of the alphabet's characters alone.

    Legality is decided character by character, so a token may span several of the alphabet's ("+g1", ")/(").
    Legal columns are worked out once per automaton state.

    Args:
        grammar: The program grammar.
        strings: The text of every token id of the model, ``None`` for tokens that are no plain text.
        end_id: The token that ends a program (end of text, or of the assistant's turn).
        kind: The mask.

    Raises:
        ValueError: Some character of the alphabet is no token of the model, so a program could get stuck.
    """

    def __init__(self, grammar: Grammar, strings: Sequence[str | None], end_id: int, kind: MaskKind) -> None:
        self.automaton: Any = grammar.automaton if kind == "grammar" else CharsetAutomaton(grammar)
        alphabet = set("".join(grammar.tokens[1:]))
        usable = {i: s for i, s in enumerate(strings) if s and i != end_id and alphabet.issuperset(s)}
        if missing := sorted(alphabet - set(usable.values())):
            raise ValueError(f"the model's vocabulary has no token for {' '.join(missing)} alone")
        self.ids = [end_id, *usable]
        self.strings = ["", *usable.values()]
        self.max_columns = max(len(token) for token in grammar.tokens[1:]) * grammar.max_length + 1
        self._trie: dict[str, Any] = {}
        for column, string in enumerate(self.strings[1:], start=1):
            node = self._trie
            for char in string:
                node = node.setdefault(char, {})
            node.setdefault("", []).append(column)
        self._legal: dict[Hashable, np.ndarray] = {}

    def start(self) -> Hashable:
        """See :class:`Vocabulary`."""
        return self.automaton.start()

    def advance(self, state: Hashable, column: int) -> Hashable:
        """See :class:`Vocabulary`."""
        for char in self.strings[column]:
            state = self.automaton.advance(state, char)
        return state

    def legal(self, state: Hashable) -> np.ndarray:
        """See :class:`Vocabulary`."""
        if (known := self._legal.get(state)) is not None:
            return known
        legal = np.zeros(len(self.ids), dtype=bool)
        legal[END] = self.automaton.can_end(state)
        paths = [(self._trie, state)]
        while paths:
            node, at = paths.pop()
            legal[node.get("", [])] = True
            for char, child in node.items():
                if char and (after := self.automaton.advance(at, char)) is not None:
                    paths.append((child, after))
        self._legal[state] = legal
        return legal

    def text(self, columns: Sequence[int]) -> str:
        """See :class:`Vocabulary`."""
        columns = list(columns)
        end = columns.index(END) if END in columns else len(columns)
        return "".join(self.strings[column] for column in columns[:end])

    def columns(self, text: str) -> list[int]:
        """See :class:`Vocabulary`."""
        columns, at = [], 0
        while at < len(text):
            node, match, length = self._trie, None, 0
            for offset, char in enumerate(text[at:], start=1):
                if (node := node.get(char)) is None:
                    break
                if "" in node:
                    match, length = node[""][0], offset
            if match is None:
                raise InvalidProgram(f"the model's vocabulary cannot write {text[at]!r} in {text!r}")
            columns.append(match)
            at += length
        return checked(self, [*columns, END], text)


def checked(vocabulary: Vocabulary, columns: list[int], text: str) -> list[int]:
    """The columns, if each of them is legal after those before it.

    Raises:
        InvalidProgram: One is not.
    """
    state = vocabulary.start()
    for column in columns:
        if not vocabulary.legal(state)[column]:
            raise InvalidProgram(f"the mask does not allow {text!r}")
        if column != END:
            state = vocabulary.advance(state, column)
    return columns


class CharsetAutomaton:
    """The paper's mask, character by character: the alphabet in any order, within the length limit.

    A state is (alphabet tokens so far, the token that is being written). Names must be completed; END is
    legal after any complete token.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.tokens = frozenset(grammar.tokens[1:])
        self.max_length = grammar.max_length
        self.prefixes = frozenset(token[:end] for token in self.tokens for end in range(1, len(token) + 1))

    def start(self) -> tuple[int, str]:
        """The state of the empty text."""
        return 0, ""

    def advance(self, state: tuple[int, str], char: str) -> tuple[int, str] | None:
        """The state after one more character, or ``None`` where no text goes on like that."""
        used, token = state
        if token + char in self.prefixes:
            token += char
            used += len(token) == 1
        elif token in self.tokens and char in self.prefixes:
            token, used = char, used + 1
        else:
            return None
        return (used, token) if used <= self.max_length else None

    def can_end(self, state: tuple[int, str]) -> bool:
        """Whether the text may end here."""
        return state[1] in self.tokens
