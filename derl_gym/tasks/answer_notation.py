r"""How a mathematical answer is written: LaTeX in one plain form, exact rational numbers, units, bases, clock times.

Pure functions on short texts, no process and no sympy. Words, which LaTeX has in ``\text{}``, stand in quotes in the
plain form, so that ``\text{VW}`` is not taken for a product. What counts as equal is decided in ``answers.py``.
"""

from __future__ import annotations

import re
from fractions import Fraction

LARGEST_EXPONENT = 10_000
"""No larger one is computed. The largest in MATH is 4,950."""

_UNICODE = str.maketrans(
    {
        **{"−": "-", "–": "-", "⁄": "/", "×": r"\times ", "·": r"\cdot ", "÷": r"\div ", "±": r"\pm ", "√": r"\sqrt "},
        **{"π": r"\pi ", "∞": r"\infty ", "≤": r"\leq ", "≥": r"\geq ", "≠": r"\neq ", "∪": r"\cup ", "∩": r"\cap "},
        **{"∈": r"\in ", "²": "^2", "³": "^3", "°": r"^\circ ", "€": "", "£": "", "¥": "", '"': "", "\0": ""},
    }
)
_TEXT = re.compile(r"\\(text(?:normal|bf|it|rm|sf|tt)?|mathrm|mbox|hbox)\s*\{([^{}]*)\}")
_REPLACEMENTS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\?\$", ""),  # a currency sign, or the border of a formula
        (r",\s*\\!\s*|\{\s*,\s*\}", ","),  # a thousands comma
        (r"\\!", ""),
        (r"(?<!\\)\\[,;:> ]|~|\\q?quad(?![a-zA-Z])", " "),
        (r"\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])\.?", ""),
        (r"\\(?:displaystyle|limits)(?![a-zA-Z])", ""),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\(le|ge|ne)(?![a-zA-Z])", r"\\\1q "),
        (r"!=", r"\\neq "),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\*\*", "^"),
        (r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![a-zA-Z])", ' "degree" '),
        (r"\\?%|(?<![\\a-zA-Z])(?:percent|percentage|pct)(?![a-zA-Z])", ' "percent" '),
        (r"(?<![\\a-zA-Z])(?:and|or)(?![a-zA-Z])", " , "),
        (r"\\frac\s*(\{[^{}]*\}|[0-9a-zA-Z]|\\pi)\s*(\{[^{}]*\}|[0-9a-zA-Z]|\\pi)", r"\\frac{\1}{\2}"),
        (r"\\sqrt\s*([0-9a-zA-Z])", r"\\sqrt{\1}"),
        (r"\{\{([^{}]*)\}\}", r"{\1}"),
        (r" *([{}]) *", r"\1"),
        (r"(?:\s*,)+(?=\s*,)", ""),  # "6, 8, and 10"
        (r"\s+", " "),
    )
]


def normal_form(text: str) -> str:
    """The text in one plain form of LaTeX: same spelling for the same sign, words in quotes."""
    runs = re.findall(r"\\+", text)
    if runs and all(len(run) % 2 == 0 for run in runs) and re.search(r"\\[a-zA-Z]", text):
        text = text.replace("\\\\", "\\")  # escaped twice, as in JSON
    text = _TEXT.sub(_words, text.translate(_UNICODE))
    for pattern, replacement in _REPLACEMENTS:
        text = pattern.sub(replacement, text)
    return text.rstrip(" .,;:").lstrip(" ,;:").removeprefix(r"\approx").strip()


def _words(match: re.Match[str]) -> str:
    command, content = match.groups()
    if command == "mathrm" and len(content.strip()) < 2:
        return f" {content} "  # the constants e and i, the d of an integral
    pieces = re.split(r"(,|;|\b(?:and|or)\b)", content.replace('"', ""))
    return (
        " "
        + "".join(f' "{p.strip()}" ' if re.search("[a-zA-Z]{1}", p) and i % 2 == 0 else p for i, p in enumerate(pieces))
        + " "
    )


def latex(text: str) -> str:
    r"""Back from the normal form to LaTeX: words in ``\text{}``."""
    return re.sub(r'"([^"]*)"', r"\\text{\1}", text)


def word(text: str) -> str | None:
    """The word or words that a normal form consists of, without parentheses round them and trailing dots."""
    match = re.fullmatch(r'[(\s]*"\(?([^"]*?)\)?[.\s]*"[)\s]*', text)
    return " ".join(match[1].split()) if match else None


# --- lists and names

_BRACKET = re.compile(r"\\?[{}]|[()\[\],;]")
_NAME = re.compile(r"(?:m ?\\angle )?\\?[a-zA-Z]+'?(?: ?_ ?(?:\w|\{\w+\}))?(?: ?\( ?[a-zA-Z](?: ?, ?[a-zA-Z])* ?\))?")
_EQUALS = re.compile(r"(?<![<>!:=])=(?!=)")


def items(text: str) -> tuple[str, list[str]]:
    r"""The members of a list, a set, a tuple or an interval in normal form, and the kind of its brackets.

    Semicolons part before commas do. A member with one ``\pm`` is two members.

    Returns:
        Kind ``""`` (bare), ``"{}"``, ``"()"``, ``"[]"``, ``"(]"`` or ``"[)"``, and the members; one bare member when
        the text is no list.
    """
    depth, cuts, closes = 0, {",": [], ";": []}, 0
    marks = list(_BRACKET.finditer(text))
    for match in marks:
        sign = match[0][-1]
        if sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
            closes = closes or (match.end() if depth == 0 else 0)
        elif depth == 0:
            cuts[sign].append(match.start())
    if marks and marks[0].start() == 0 and closes == len(text) and marks[0][0][-1] in "([{":
        opening, closing = marks[0], marks[-1]
        members = items(text[opening.end() : closing.start()])[1]
        return opening[0][-1] + closing[0][-1], members
    places = cuts[";"] or cuts[","]
    ends = [-1, *places, len(text)]
    members = [text[a + 1 : b].strip() for a, b in zip(ends[:-1], ends[1:], strict=True)]
    return "", [part for member in members for part in _both_signs(member) if part]


def _both_signs(text: str) -> list[str]:
    if len(parts := text.split(r"\pm")) != 2:
        return [text]
    return ["+".join(parts).removeprefix("+").strip(), "-".join(parts).strip()]


def named(text: str) -> tuple[str, str]:
    r"""Name and value of ``x = 5``, ``f(x) = 2x``, ``x = 5 + 6 = 11``; name ``""`` and the text where there is none.

    A chain of equations between numbers (``0.56 = 56\%``) stands for its last.
    """
    signs = [match.start() for match in _EQUALS.finditer(text) if _depth(text[: match.start()]) == 0]
    if not signs:
        return "", text
    first, last = text[: signs[0]].strip(), text[signs[-1] + 1 :].strip()
    if _NAME.fullmatch(first):
        return first.replace(" ", ""), last
    return "", last if number(first) is not None else text


def _depth(text: str) -> int:
    return sum((sign in "([{") - (sign in ")]}") for sign in text)


def exponents(text: str) -> list[str]:
    """What stands behind each ``^``: a group in brackets, however nested, or a number or sign."""
    found = []
    for match in re.finditer(r"\^ ?", text):
        depth, end = 0, match.end()
        for end in range(match.end(), len(text)):
            depth += (text[end] in "({") - (text[end] in ")}")
            if depth <= 0:
                break
        digits = re.match(r"-? ?[0-9]+", text[match.end() :])
        found.append(digits[0] if digits else text[match.end() : end + 1])
    return found


# --- units

_MEASURES = {
    "percent": "percent",
    "degree": "degree deg",
    "mm": "mm millimeter millimetre",
    "cm": "cm centimeter centimetre",
    "m": "m meter metre",
    "km": "km kilometer kilometre",
    "in": "in inch inche",
    "ft": "ft foot feet",
    "yd": "yd yard",
    "mi": "mi mile",
    "mph": "mph",
    "mg": "mg milligram",
    "g": "g gm gram",
    "kg": "kg kilogram",
    "oz": "oz ounce",
    "lb": "lb pound",
    "s": "s sec second",
    "min": "min minute",
    "h": "h hr hour",
    "day": "day",
    "week": "week wk",
    "month": "month",
    "year": "year yr",
    "cent": "cent",
    "dollar": "dollar usd",
    "ml": "ml milliliter millilitre",
    "l": "l liter litre",
    "gal": "gal gallon",
}
_MEASURE = {name: unit for unit, names in _MEASURES.items() for name in names.split()}
_NO_UNIT = "sin|cos|tan|sec|csc|cot|log|ln|exp|sqrt|pi|theta|infty|infinity|arc|frac"
_UNIT = re.compile(
    r'(?P<value>.*[0-9a-zA-Z)}\]!])\s*"(?P<text>[^"]*)"\s*(?:\^\s*\{?(?P<power>[0-9])\}?)?'
    rf"|(?P<value_>.*[0-9)}}\]])\s*(?P<text_>(?!{_NO_UNIT})[a-zA-Z]{{2,}}\.?(?:\s+[a-zA-Z]{{2,}}\.?)*)(?:\^\{{?(?P<power_>[0-9])\}}?)?"
)


def without_unit(text: str) -> tuple[str, str]:
    r"""A normal form's value, and the unit of measure behind it: ``('10', 'cm^2')``.

    Words behind a value are a label: ``18 apples`` is 18. The unit is ``""`` when there is none, or when the label is
    no unit of measure. Outside of ``\text{}`` a word of two or three letters might be a product, and has to be a unit.
    """
    unit = ""
    while match := _UNIT.fullmatch(text):
        label, power = match["text"] or match["text_"], match["power"] or match["power_"] or ""
        words = [w for w in re.split(r"[\s.]+", label.lower()) if w]
        if clock(text) is not None or (match["text"] is None and len(words[0]) < 4 and _measure(words[0]) is None):
            break
        if words and words[0] in ("square", "sq", "cubic", "cu"):
            power = "2" if words[0].startswith("s") else "3"
            words = words[1:]
        if len(words) == 1 and (measure := _measure(words[0])):
            unit = f"{measure}^{power}" if power not in ("", "1") else measure
        text = (match["value"] or match["value_"]).strip()
    return text, unit


def _measure(name: str) -> str | None:
    return _MEASURE.get(name) or _MEASURE.get(name.removesuffix("s"))


# --- numerals in other bases, and times of the day


def numeral(text: str) -> tuple[str, int] | None:
    """Digits and base of a numeral with a subscript: ``52_8`` is ``("52", 8)``; ``None`` for anything else."""
    match = re.fullmatch(r"(-?[0-9][0-9A-Z.]*) ?_ ?\{? ?([0-9]{1,2}) ?\}?", text.replace('"', ""))
    return (match[1], int(match[2])) if match else None


def clock(text: str) -> int | None:
    """Seconds since midnight of ``20:34``, ``8:34:00 p.m.`` or ``9 a.m.``; ``None`` for anything else."""
    match = re.fullmatch(
        r"([0-9]{1,2})(?: ?: ?([0-5][0-9])(?: ?: ?([0-5][0-9]))?)? ?(?:([ap])\.? ?m\.?)?",
        text.replace('"', "").strip().lower(),
    )
    if not match or not (match[2] or match[4]):
        return None
    hour = int(match[1])
    if match[4]:
        hour = hour % 12 + (12 if match[4] == "p" else 0)
    return hour * 3600 + int(match[2] or 0) * 60 + int(match[3] or 0)


# --- exact rational numbers

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[1-9][0-9]{0,2}(?:(?:,[0-9]{3})+|(?: [0-9]{3})+)(?![0-9]|,[0-9])(?:\.[0-9]+)?"
    r"|[0-9]+(?:\.[0-9]*)?|\.[0-9]+)|(?P<sign>\\frac(?![a-zA-Z])|\\(?:cdot|times|div)(?![a-zA-Z])|[-+*/^(){}]))"
)
_SIGNS = {r"\cdot": "*", r"\times": "*", r"\div": "/"}


def number(text: str) -> Fraction | None:
    r"""The value of a normal form that holds rational numbers, ``+ - * / ^`` and ``\frac`` only; else ``None``.

    Mixed numbers are sums (``1 1/2``, ``6\frac{1}{6}``), ``1,000`` and ``1 000`` are a thousand. Exact, and bounded:
    no exponent above 10,000 is computed.
    """
    text = text.strip()
    tokens: list[str] = []
    end = 0
    while end < len(text):
        match = _TOKEN.match(text, end)
        if not match:
            return None
        tokens.append(
            re.sub("[, ]", "", match["number"]) if match["number"] else _SIGNS.get(match["sign"], match["sign"])
        )
        end = match.end()
    try:
        return _Arithmetic(tokens).value()
    except (ArithmeticError, ValueError, IndexError, RecursionError):
        return None


def decimals(text: str) -> int:
    """How many digits stand behind the point of a plain decimal number; 0 for anything else."""
    match = re.fullmatch(r"[-+]?[0-9, ]*\.([0-9]+)", text)
    return len(match[1]) if match else 0


class _Arithmetic:
    """A recursive descent; raises ValueError or IndexError on what is no arithmetic."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = [*tokens, ""]
        self._place = 0

    def value(self) -> Fraction:
        value = self._sum()
        if self._next:
            raise ValueError(f"{self._next!r} stands behind the end")
        return value

    @property
    def _next(self) -> str:
        return self._tokens[self._place]

    def _take(self, *expected: str) -> str:
        if self._next not in expected:
            raise ValueError(f"{self._next!r} is none of {expected}")
        self._place += 1
        return self._tokens[self._place - 1]

    def _sum(self) -> Fraction:
        total = Fraction(0)
        sign = self._take("+", "-") if self._next in ("+", "-") else "+"
        while True:
            total += self._product() if sign == "+" else -self._product()
            if self._next not in ("+", "-"):
                return total
            sign = self._take("+", "-")

    def _product(self) -> Fraction:
        total = self._power()
        while self._next in ("*", "/"):
            total = total * self._power() if self._take("*", "/") == "*" else total / self._power()
        return total

    def _power(self) -> Fraction:
        base = self._atom()
        if self._next != "^":
            return base
        self._take("^")
        sign = -1 if self._next == "-" and self._take("-") else 1
        exponent = sign * self._power()
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if exponent.denominator != 1 or abs(exponent) > LARGEST_EXPONENT or bits * abs(exponent) > 100_000:
            raise ValueError("an exponent is a root or too large")
        return base ** int(exponent)

    def _atom(self) -> Fraction:
        token = self._next
        if token in ("(", "{"):
            return self._group()
        self._place += 1
        if token == r"\frac":
            return self._group() / self._group()
        value = Fraction(token)
        if "." in token or not (
            self._next == r"\frac" or (self._next[:1].isdigit() and self._tokens[self._place + 1] == "/")
        ):
            return value
        if self._take(self._next) == r"\frac":
            part = self._group() / self._group()
        else:
            part = Fraction(self._tokens[self._place - 1]) / Fraction(self._tokens[self._place + 1])
            self._place += 2
        if not 0 < part < 1:
            raise ValueError("no mixed number")
        return value + part

    def _group(self) -> Fraction:
        closing = {"(": ")", "{": "}"}[self._take("(", "{")]
        value = self._sum()
        self._take(closing)
        return value
