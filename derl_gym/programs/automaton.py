"""The grammar of reward programs as an automaton over characters that counts tokens.

    program  = ["-"] term {("+" | "-") term}                 with at least one primitive
    term     = factor {"*" factor | "/" divisor}
    factor   = number | base ["**" exponent]
    base     = primitive | "(" program ")"                   so every group holds a primitive
    divisor  = like factor, but a number is not zero
    number   = up to three digits without leading zeros, then perhaps "." and one to three digits (``max_digits``)
    exponent = one digit, then perhaps "." and one digit; not zero

The restrictions make every sentence a valid program: no constant part of one can divide by zero, overflow or
leave the real numbers. A state carries what keeps the sentence completable within the length limit.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

_START, _OPERAND, _DIVISOR, _EXPONENT = "start", "operand", "divisor", "exponent"
_ATOM, _STAR, _STAR_AFTER_ATOM = "atom", "star", "star-after-atom"
_NAME = "name:"


class State(NamedTuple):
    """Where a prefix stands.

    Attributes:
        phase: What the last characters were.
        depth: Open parentheses.
        has_primitive: Whether the innermost open group (or the program) holds a primitive yet. One flag is
            enough: a group that closes holds one, and so does everything around it.
        tokens: Tokens of the alphabet so far.
    """

    phase: str
    depth: int
    has_primitive: bool
    tokens: int


class Automaton:
    """Character-level recogniser; make one through ``Grammar(...).automaton``.

    Args:
        names: Names of the primitives.
        max_length: Longest program in tokens.
        max_digits: Most digits of a number before the point, and after it.
    """

    def __init__(self, names: tuple[str, ...], max_length: int, max_digits: int = 3) -> None:
        self.max_length = max_length
        self._moves = _moves(names, max_digits)
        self._complete = {phase for phase, moves in self._moves.items() if ")" in moves}
        self._need = _least_tokens(self._moves, self._complete)

    def start(self) -> State:
        """The state of the empty prefix."""
        return State(_START, 0, False, 0)

    def advance(self, state: State, char: str) -> State | None:
        """The state after one more character, or ``None`` when no program goes on like that.

        Every state that is returned can be completed to a program within ``max_length`` tokens.
        """
        move = self._moves[state.phase].get(char)
        if move is None:
            return None
        phase, cost = move
        depth, has_primitive = state.depth, state.has_primitive or phase == _ATOM or phase.startswith(_NAME)
        if char == "(":
            depth, has_primitive = depth + 1, False
        elif char == ")":
            if depth == 0 or not state.has_primitive:
                return None
            depth -= 1
        tokens = state.tokens + cost
        if tokens + depth + self._need[phase, has_primitive] > self.max_length:
            return None
        return State(phase, depth, has_primitive, tokens)

    def can_end(self, state: State) -> bool:
        """Whether the prefix is a whole program."""
        return state.phase in self._complete and state.depth == 0 and state.has_primitive

    def legal(self, state: State) -> Iterator[str]:
        """The characters that :meth:`advance` accepts."""
        return (char for char in self._moves[state.phase] if self.advance(state, char) is not None)


Moves = dict[str, dict[str, tuple[str, int]]]
"""phase -> character -> (next phase, tokens that the character costs)"""


@functools.cache
def _moves(names: tuple[str, ...], max_digits: int) -> Moves:
    moves: Moves = {}
    digits = "0123456789"

    def operand(kind: str) -> dict[str, tuple[str, int]]:
        first = {digit: (f"{kind} {'0' if digit == '0' else 'd'}", 1) for digit in digits}
        return {"(": (_START, 1), "g": (_NAME + "g", 1)} | first

    follow = {"+": (_OPERAND, 1), "-": (_OPERAND, 1), "*": (_STAR, 1), "/": (_DIVISOR, 1), ")": (_ATOM, 1)}
    moves[_OPERAND] = operand("number")
    moves[_START] = operand("number") | {"-": (_OPERAND, 1)}
    moves[_DIVISOR] = operand("nonzero")
    moves[_STAR] = operand("number")
    moves[_STAR_AFTER_ATOM] = operand("number") | {"*": (_EXPONENT, 0)}
    moves[_EXPONENT] = {char: move for char, move in operand("power").items() if char in digits}
    moves[_ATOM] = follow | {"*": (_STAR_AFTER_ATOM, 1)}
    for name in names:
        for end in range(1, len(name)):
            moves.setdefault(_NAME + name[:end], {})[name[end]] = (_NAME + name[: end + 1], 0)
    for name in names:
        moves.setdefault(_NAME + name, {}).update(moves[_ATOM])
    _add_number(moves, "number", max_digits, True, follow)
    _add_number(moves, "nonzero", max_digits, False, follow)
    _add_number(moves, "power", 1, False, follow)
    return moves


def _add_number(moves: Moves, kind: str, most: int, zero_allowed: bool, follow: dict[str, tuple[str, int]]) -> None:
    """Phases of a number, named by its shape so far: ``0`` while it is zero, ``d`` afterwards."""
    nonzero = "123456789"
    shapes: dict[str, dict[str, str]] = {"0": {".": "0."}}
    for n in range(1, most + 1):
        shapes["d" * n] = {".": "d."} | (dict.fromkeys("0" + nonzero, "d" * (n + 1)) if n < most else {})
    for n in range(most + 1):
        zero, other = "0." + "0" * n, "d." + "d" * n
        room = n < most
        shapes[zero] = dict.fromkeys(nonzero, f"d.{'d' * (n + 1)}") | {"0": zero + "0"} if room else {}
        shapes[other] = dict.fromkeys("0" + nonzero, other + "d") if room else {}
    for shape, longer in shapes.items():
        ends = not shape.endswith(".") and (zero_allowed or "d" in shape)
        moves[f"{kind} {shape}"] = {char: (f"{kind} {after}", 1) for char, after in longer.items()} | (
            follow if ends else {}
        )


def _least_tokens(moves: Moves, complete: set[str]) -> dict[tuple[str, bool], int]:
    """Fewest further tokens, closing parentheses aside, until the innermost group may end (Bellman-Ford)."""
    far = 10**6
    need = {(phase, has): 0 if has and phase in complete else far for phase in moves for has in (False, True)}
    changed = True
    while changed:
        changed = False
        for phase, has in need:
            for char, (after, cost) in moves[phase].items():
                if char not in "()":
                    through = cost + need[after, has or after == _ATOM or after.startswith(_NAME)]
                    if through < need[phase, has]:
                        need[phase, has], changed = through, True
    return need
