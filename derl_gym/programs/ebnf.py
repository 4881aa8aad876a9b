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
number ::= ("0" | [1-9] [0-9]? [0-9]?) ("." [0-9] [0-9]? [0-9]?)?
nonzero ::= [1-9] [0-9]? [0-9]? ("." [0-9] [0-9]? [0-9]?)? | "0." small
small ::= [1-9] [0-9]? [0-9]? | "0" [1-9] [0-9]? | "00" [1-9]
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
NUMBER: /(0|[1-9][0-9]{{0,2}})(\\.[0-9]{{1,3}})?/
NONZERO: /[1-9][0-9]{{0,2}}(\\.[0-9]{{1,3}})?|0\\.([1-9][0-9]{{0,2}}|0[1-9][0-9]?|00[1-9])/
EXPONENT: /[1-9](\\.[0-9])?|0\\.[1-9]/
"""


def ebnf(names: Sequence[str], dialect: Literal["gbnf", "lark"]) -> str:
    """The grammar as text.

    Args:
        names: Names of the primitives.
        dialect: ``"gbnf"`` or ``"lark"``.

    Raises:
        ValueError: for another dialect.
    """
    templates = {"gbnf": _GBNF, "lark": _LARK}
    if dialect not in templates:
        raise ValueError(f"expected dialect 'gbnf' or 'lark', got {dialect!r}")
    return templates[dialect].format(names=" | ".join(f'"{name}"' for name in names))
