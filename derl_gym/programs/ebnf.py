"""The language of automaton.py, without the length limit, in two dialects of EBNF."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

_GBNF = """\
root ::= "-"? sum
sum ::= (constant addop)* product (addop (product | constant))*
addop ::= "+" | "-"
constant ::= number constant-tail*
constant-tail ::= "*" number | "/" nonzero
product ::= (constant mulop)? power (mulop power | constant-tail)*
mulop ::= "*" | "/"
power ::= base ("**" exponent)?
base ::= primitive | "(" root ")"
primitive ::= {names}
number ::= ("0" | [1-9]{more}) ("." [0-9]{more})?
nonzero ::= [1-9]{more} ("." [0-9]{more})? | "0." small
small ::= {small}
exponent ::= [1-9] ("." [0-9])? | "0." [1-9]
"""

_LARK = """\
start: program
program: "-"? sum
sum: (constant addop)* product (addop (product | constant))*
addop: "+" | "-"
constant: NUMBER constant_tail*
constant_tail: "*" NUMBER | "/" NONZERO
product: (constant mulop)? power (mulop power | constant_tail)*
mulop: "*" | "/"
power: base ("**" EXPONENT)?
base: PRIMITIVE | "(" program ")"
PRIMITIVE: {names}
NUMBER: /(0|[1-9]{more})(\\.[0-9]{more})?/
NONZERO: /[1-9]{more}(\\.[0-9]{more})?|0\\.({small})/
EXPONENT: /[1-9](\\.[0-9])?|0\\.[1-9]/
"""


def ebnf(names: Sequence[str], dialect: Literal["gbnf", "lark"], max_digits: int = 3) -> str:
    """The grammar as text.

    Args:
        names: Names of the primitives.
        dialect: ``"gbnf"`` or ``"lark"``.
        max_digits: Most digits of a number before the point, and after it.

    Raises:
        ValueError: for another dialect.
    """
    templates = {"gbnf": _GBNF, "lark": _LARK}
    if dialect not in templates:
        raise ValueError(f"expected dialect 'gbnf' or 'lark', got {dialect!r}")
    zeros = range(max_digits)  # of a number below one, behind the point
    if dialect == "gbnf":
        more = " [0-9]?" * (max_digits - 1)
        small = " | ".join(f'"{"0" * n}" [1-9]{" [0-9]?" * (max_digits - 1 - n)}'.removeprefix('"" ') for n in zeros)
    else:
        more = "[0-9]?" * (max_digits - 1)
        small = "|".join(f"{'0' * n}[1-9]{'[0-9]?' * (max_digits - 1 - n)}" for n in zeros)
    return templates[dialect].format(names=" | ".join(f'"{name}"' for name in names), more=more, small=small)
