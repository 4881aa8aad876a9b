"""Text of a reward program -> postfix code.

The text is checked character by character before Python's ``ast`` sees it, and the tree is walked through a
whitelist; nothing is ever evaluated by ``eval``. Evaluation is in evaluate.py, judgement in analysis.py.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

MAX_CHARACTERS = 512
"""Longest text that is looked at (spaces included)."""
MAX_DEPTH = 64
"""Deepest nesting of parentheses."""

_FOREIGN = re.compile(r"[^0-9g+\-*/.() ]")
_TOKEN = re.compile(r"\*\*|g[0-9]+|[^ ]")
_BINARY: dict[type, tuple[str, Callable[[float, float], float]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
    ast.Pow: ("**", operator.pow),
}


class InvalidProgram(ValueError):
    """A text that is no reward program.

    Attributes:
        reason: What is wrong, without the place.
        column: Where, counted from 1; ``None`` when the whole text is meant.
    """

    def __init__(self, reason: str, column: int | None = None) -> None:
        super().__init__(reason, column)
        self.reason = reason
        self.column = column

    def __str__(self) -> str:
        return self.reason if self.column is None else f"{self.reason} (column {self.column})"


class Instruction(NamedTuple):
    """One step of postfix code.

    Attributes:
        op: ``"const"``, ``"name"``, ``"neg"``, or a binary operator ``+ - * / **``.
        value: The constant, or the column of the primitive (g1 is 0); 0 for operators.
        source: The text of this subexpression, without spaces.
    """

    op: str
    value: float
    source: str


def check_text(text: str) -> None:
    """Refuse foreign characters and over-long texts, in constant or linear time.

    Raises:
        InvalidProgram: naming the first foreign character, or the length.
        TypeError: for anything but a string.
    """
    if not isinstance(text, str):
        raise TypeError(f"a reward program is a str, not {type(text).__name__}")
    if len(text) > MAX_CHARACTERS:
        raise InvalidProgram(f"{len(text)} characters, the limit is {MAX_CHARACTERS}")
    foreign = _FOREIGN.search(text)
    if foreign:
        raise InvalidProgram(
            f"character {foreign.group()!r} is not in the alphabet g1..gk + - * / ** 0-9 . ( )",
            foreign.start() + 1,
        )


def parse(
    text: str, k: int, primitives: Sequence[str] | None = None, max_length: int | None = None
) -> tuple[Instruction, ...]:
    """Parse a reward program.

    Args:
        text: The program; Python's rules of precedence, spaces and numbers, on the alphabet of the grammar.
        k: Number of primitives g1..gk.
        primitives: Names that may be used; ``None``: all.
        max_length: Longest program in tokens of the alphabet; ``None``: no limit.

    Returns:
        Postfix code that leaves one value.

    Raises:
        InvalidProgram: for anything that is not well formed, a name that is not there, a number that is not
            finite in float64, or a constant part that cannot be computed (``1/0``, ``9**9**9``).
        TypeError: for a text that is no string.
        ValueError: for primitives that are not among g1..gk.
    """
    check_text(text)
    if not text.strip(" "):
        raise InvalidProgram("empty program: expected an expression over the primitives")
    if max_length is not None and (length := token_count(text)) > max_length:
        raise InvalidProgram(f"{length} tokens, the limit is {max_length}")
    _check_parentheses(text)
    # ast refuses indentation, so leading spaces go; what ast reports is counted from there.
    indent = len(text) - len(text.lstrip(" "))
    body = text[indent:].rstrip(" ")
    try:
        tree = ast.parse(body, mode="eval").body
    except SyntaxError as error:
        if body[-1] in "+-*/":
            reason, column = "the program ends too early: expected a primitive, a number or '('", len(body) + 1
        else:
            reason, column = error.msg.partition(";")[0], error.offset or 1
        raise InvalidProgram(reason, column + indent) from None
    except (RecursionError, MemoryError, ValueError) as error:
        raise InvalidProgram(f"cannot be parsed: {type(error).__name__}") from None
    columns = {f"g{i + 1}": i for i in range(k)}
    if primitives is not None:
        if unknown := sorted(set(primitives) - set(columns)):
            raise ValueError(f"expected primitives among g1..g{k}, got {', '.join(unknown)}")
        columns = {name: i for name, i in columns.items() if name in primitives}
    return _flatten(tree, body, columns, indent)


def token_count(text: str) -> int:
    """Length of a text in tokens of the alphabet, END not counted."""
    return len(_TOKEN.findall(text))


def _check_parentheses(text: str) -> None:
    """Balance and depth, before ``ast`` spends time on them."""
    open_at: list[int] = []
    for column, char in enumerate(text, start=1):
        if char == "(":
            open_at.append(column)
            if len(open_at) > MAX_DEPTH:
                raise InvalidProgram(f"parentheses nested deeper than {MAX_DEPTH}", column)
        elif char == ")":
            if not open_at:
                raise InvalidProgram("')' without a '('", column)
            open_at.pop()
    if open_at:
        raise InvalidProgram("'(' is never closed", open_at[-1])


def _flatten(tree: ast.expr, text: str, columns: dict[str, int], indent: int) -> tuple[Instruction, ...]:
    """Post-order walk without recursion; ``known`` shadows the stack with the values of constant parts."""
    code: list[Instruction] = []
    known: list[float | None] = []
    stack: list[tuple[ast.expr, bool]] = [(tree, False)]
    while stack:
        node, children_done = stack.pop()
        column = node.col_offset + 1 + indent
        source = text[node.col_offset : node.end_col_offset].replace(" ", "")
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            code.append(Instruction("const", _number(node.value, column), source))
            known.append(code[-1].value)
        elif isinstance(node, ast.Name):
            if node.id not in columns:
                raise InvalidProgram(
                    f"{_short(node.id)} is not a primitive; expected one of {', '.join(columns)}", column
                )
            code.append(Instruction("name", columns[node.id], source))
            known.append(None)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
            if not children_done:
                stack += [(node, True), (node.operand, False)]
            elif isinstance(node.op, ast.USub):
                code.append(Instruction("neg", 0.0, source))
                value = known.pop()
                known.append(None if value is None else -value)
        elif isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            if not children_done:
                stack += [(node, True), (node.right, False), (node.left, False)]
                continue
            symbol, function = _BINARY[type(node.op)]
            code.append(Instruction(symbol, 0.0, source))
            right, left = known.pop(), known.pop()
            if left is None or right is None:
                known.append(None)
            else:
                known.append(_fold(function, left, right, source, column))
        else:
            raise InvalidProgram(f"{_describe(node)} is not allowed: {_short(source)}", column)
    return tuple(code)


def _number(value: int | float, column: int) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidProgram("number too large for float64", column)
    return number


def _fold(function: Callable[[float, float], float], left: float, right: float, source: str, column: int) -> float:
    """The value of a constant part, in float64."""
    try:
        value = function(left, right)
    except ZeroDivisionError:
        raise InvalidProgram(f"division by zero in the constant {_short(source)}", column) from None
    except OverflowError:
        value = math.inf
    if isinstance(value, complex):
        raise InvalidProgram(f"the constant {_short(source)} is not real", column)
    if not math.isfinite(value):
        raise InvalidProgram(f"the constant {_short(source)} overflows float64", column)
    return value


def _short(source: str) -> str:
    return repr(source if len(source) <= 40 else source[:37] + "...")


def _describe(node: ast.expr) -> str:
    if isinstance(node, ast.BinOp):
        return "floor division '//'" if isinstance(node.op, ast.FloorDiv) else type(node.op).__name__
    if isinstance(node, ast.Call):
        return "a factor directly before '(' (write '*' between them)"
    if isinstance(node, ast.Tuple):
        return "an empty pair of parentheses"
    return type(node).__name__
