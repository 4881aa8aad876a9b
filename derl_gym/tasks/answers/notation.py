r"""How a mathematical answer is written: LaTeX in one normal form, lists, names, units, bases, times.

Pure functions on short texts, no process and no sympy. Words, which LaTeX has in ``\text{}``, stand in quotes in the
normal form, so that ``\text{VW}`` is not taken for a product. What counts as equal is decided in ``compare.py``.
"""

from __future__ import annotations

import re

from derl_gym.tasks.answers.arithmetic import number

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
        # Products and quotients are read from the left: 1/2x is a half of x.
        (r"(?<![0-9a-zA-Z}.,^_/])([0-9]+) ?/ ?([0-9]+)(?![0-9.^!])", r"\\frac{\1}{\2}"),
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
    pieces = re.split(r"(?:,|;|\b(?:and|or)\b)", content)
    return " , ".join(f' "{piece.strip()}" ' if re.search("[a-zA-Z]", piece) else f" {piece} " for piece in pieces)


def latex(text: str) -> str:
    r"""Back from the normal form to LaTeX: words in ``\text{}``; decimals, unless alone, as fractions.

    Math-verify keeps decimals to fifteen digits, and so could not compare ``0.1\pi`` with ``\frac{\pi}{10}`` to thirty.
    """
    if not re.fullmatch(r"-?[0-9.]+", text):
        text = re.sub(r"(?<![0-9.])([0-9]*)\.([0-9]+)(?![0-9.])", _as_fraction, text)
    return re.sub(r'"([^"]*)"', r"\\text{\1}", text)


def _as_fraction(match: re.Match[str]) -> str:
    fraction = f"\\frac{{{match[1]}{match[2]}}}{{1{'0' * len(match[2])}}}"
    return f"{{{fraction}}}" if match.string[: match.start()].rstrip().endswith("^") else fraction


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
    rf"|(?P<value_>.*[0-9)}}\]])\s*(?P<text_>(?!{_NO_UNIT})[a-zA-Z]{{2,}}(?:/[a-z]+)?\.?(?:\s+[a-zA-Z]{{2,}}\.?)*)"
    r"(?:\^\{?(?P<power_>[0-9])\}?)?"
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
