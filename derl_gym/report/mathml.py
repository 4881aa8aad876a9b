"""A reward program as presentation MathML, which browsers draw without a script.

Works on the parsed program's postfix code, as :meth:`RewardProgram.latex` does. Precedence decides where
parentheses stand, so redundant ones disappear.
"""

from __future__ import annotations

from html import escape

from derl_gym.programs import RewardProgram

_SUM, _PRODUCT, _POWER, _ATOM = range(4)
_Part = tuple[str, int]


def mathml(program: RewardProgram) -> str:
    """The program as one ``<math>`` element, safe to put into a page."""
    stack: list[_Part] = []
    for op, value, source in program.code:
        if op == "name":
            stack.append((f"<msub><mi>g</mi><mn>{int(value) + 1}</mn></msub>", _ATOM))
        elif op == "const":
            stack.append((f"<mn>{escape(source)}</mn>", _ATOM))
        elif op == "neg":
            stack.append((_row("<mo>&minus;</mo>", _wrap(stack.pop(), _PRODUCT)), _SUM))
        else:
            right, left = stack.pop(), stack.pop()
            stack.append(_binary(op, left, right))
    return f'<math display="block">{_row("<mi>R</mi><mo>=</mo>", stack.pop()[0])}</math>'


def _binary(op: str, left: _Part, right: _Part) -> _Part:
    if op == "/":
        return f"<mfrac>{left[0]}{right[0]}</mfrac>", _POWER
    if op == "**":
        return f"<msup>{_wrap(left, _ATOM)}{right[0]}</msup>", _POWER
    if op == "*":
        return _row(_wrap(left, _PRODUCT), "<mo>&sdot;</mo>", _wrap(right, _PRODUCT)), _PRODUCT
    sign = "+" if op == "+" else "&minus;"
    return _row(left[0], f"<mo>{sign}</mo>", _wrap(right, _PRODUCT)), _SUM


def _wrap(part: _Part, least: int) -> str:
    markup, binding = part
    return markup if binding >= least else _row("<mo>(</mo>", markup, "<mo>)</mo>")


def _row(*parts: str) -> str:
    return f"<mrow>{''.join(parts)}</mrow>"
