r"""How a mathematical answer is written: LaTeX in one normal form, lists, names, bases.

Pure functions on short texts, no process and no sympy. Words, which LaTeX has in ``\text{}``, stand in quotes in the
normal form, so that ``\text{VW}`` is not taken for a product. What counts as equal is decided in ``compare.py``.
"""

from __future__ import annotations

import re

from derl_gym.tasks.answers.units import multiplied

_UNICODE = str.maketrans(
    {
        **{"−": "-", "–": "-", "⁄": "/", "×": r"\times ", "·": r"\cdot ", "÷": r"\div ", "±": r"\pm ", "√": r"\sqrt "},
        **{"½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}"},
        **{"π": r"\pi ", "∞": r"\infty ", "≤": r"\leq ", "≥": r"\geq ", "≠": r"\neq ", "∪": r"\cup ", "∩": r"\cap "},
        **{"∈": r"\in ", "²": "^2", "³": "^3", "°": r"^\circ ", "£": "", '"': "", "\0": ""},
    }
)
_TEXT = re.compile(r"\\(text(?:normal|bf|it|rm|sf|tt)?|mathrm|mbox|hbox)\s*\{([^{}]*)\}")
_AMOUNT = r"([0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]*\.?[0-9]+)((?:\*[0-9^]+)*)"
_REPLACEMENTS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:boldsymbol|bm|mathbf|mathit|mathsf|underline)\s*\{([^{}]*)\}", r"\1"),
        (r",\s*\\!\s*|\{\s*,\s*\}", ","),  # a thousands comma
        (r"\\!", ""),
        (rf'^\s*(-?)\s*\\?\$\s*{_AMOUNT}(?=\s*(?:/?\s*"[^"$]*")?[\s.]*$)', r'\1\2\3 "dollar"'),
        (rf"€\s*{_AMOUNT}", r'\1\2 "euro"'),
        (rf"¥\s*{_AMOUNT}", r'\1\2 "yen"'),
        (r"(?<=[0-9])\s*(?:\\?\$|\\q?quad(?![a-zA-Z]))+\s*(?=[0-9])", " , "),  # two numbers
        (r"\\?\$", ""),  # a currency sign, or the border of a formula
        ("€", ' "euro" '),
        ("¥", ' "yen" '),
        (r"(?<!\\)\\[,;:> ]|~|\\q?quad(?![a-zA-Z])", " "),
        (r"\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])\.?", " "),
        (r"\\(?:displaystyle|limits)(?![a-zA-Z])", " "),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\(le|ge|ne)(?![a-zA-Z])", r"\\\1q "),
        (r"!=", r"\\neq "),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\*\*", "^"),
        (r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![a-zA-Z])", ' "degree" '),
        (r'"degree"\s*(?:"\s*C\s*"|C(?![a-zA-Z]))', '"celsius"'),
        (r'"degree"\s*(?:"\s*F\s*"|F(?![a-zA-Z]))', '"fahrenheit"'),
        (r'"\s*/\s*"', "/"),
        (r"(?<![0-9a-zA-Z.\\])([0-9]+(?:\.[0-9]+)?)[eE]([-+]?[0-9]{1,4})(?![0-9a-zA-Z.])", r"\1*10^{\2}"),
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


_ROOT = re.compile(r"√\s*(?:([0-9]+(?:\.[0-9]+)?)|\(((?:[^()]|\([^()]*\))*)\)|\{([^{}]*)\})")
_REPEATING = re.compile(r"(?<![0-9.])([0-9]*)\.([0-9]*)\\overline\s*\{([0-9]+)\}(?!\s*[0-9.])")


def normal_form(text: str) -> str:
    """The text in one plain form of LaTeX: same spelling for the same sign, words in quotes."""
    runs = re.findall(r"\\+", text)
    if runs and all(len(run) % 2 == 0 for run in runs) and re.search(r"\\[a-zA-Z]", text):
        text = text.replace("\\\\", "\\")  # escaped twice, as in JSON
    text = _REPEATING.sub(_repeating, _ROOT.sub(_root, text))
    text = multiplied(_TEXT.sub(_words, text.translate(_UNICODE)))
    for pattern, replacement in _REPLACEMENTS:
        text = pattern.sub(replacement, text)
    return text.rstrip(" .,;:").lstrip(" ,;:").removeprefix(r"\approx").strip()


def _root(match: re.Match[str]) -> str:
    return f"\\sqrt{{{match[1] or match[2] or match[3] or ''}}}"


def _repeating(match: re.Match[str]) -> str:
    before, again = f"{match[1]}{match[2]}" or "0", match[3]
    top = int(before + again) - int(before)
    return f"\\frac{{{top}}}{{{'9' * len(again)}{'0' * len(match[2])}}}"


def _words(match: re.Match[str]) -> str:
    command, content = match.groups()
    if command == "mathrm" and len(content.strip()) < 2:
        return f" {content} "  # the constants e and i, the d of an integral
    pieces = re.split(r"(?:,|;|\b(?:and|or)\b)", content)
    return " , ".join(f' "{piece.strip()}" ' if re.search("[a-zA-Z]", piece) else f" {piece} " for piece in pieces)


def latex(text: str) -> str:
    r"""Back from the normal form to LaTeX: words in ``\text{}``, decimals as fractions.

    Math-verify keeps decimals to fifteen digits, and so could not compare ``0.1\pi`` with ``\frac{\pi}{10}`` to
    thirty. A decimal alone it would take for any number that rounds to the same six places.
    """
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
_GREEK = "alpha|beta|gamma|delta|epsilon|theta|lambda|mu|phi|varphi|psi|rho|sigma|tau|omega"
_NAME = re.compile(
    rf"(?:m ?\\angle ?[A-Z]{{1,3}}|\\angle ?[A-Z]{{1,3}}|\\(?:{_GREEK})|[a-zA-Z]|[A-Z]{{2,4}}|[A-Z][a-z]{{2,}})'?"
    r"(?: ?_ ?(?:\w|\{\w+\}))?(?: ?\( ?-?\w+(?: ?, ?-?\w+)* ?\))?"
)
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

    A name is a letter, a word or points in capitals (``AB``), with an index or arguments or not: ``2x``, ``x^2`` and
    ``xy`` are none.
    """
    parts = sides(text)
    if len(parts) > 1 and _NAME.fullmatch(parts[0]):
        return parts[0].replace(" ", ""), parts[-1]
    return "", text


def sides(text: str) -> list[str]:
    """What stands between the signs ``=`` of a text; one part when there is none outside of brackets."""
    cuts = [match.start() for match in _EQUALS.finditer(text) if _depth(text[: match.start()]) == 0]
    return [text[a + 1 : b].strip() for a, b in zip([-1, *cuts], [*cuts, len(text)], strict=True)]


def interval(text: str) -> str | None:
    """``1 < x <= 2`` as the interval ``(1,2]``; ``None`` for anything else."""
    match = re.fullmatch(r"([^<>=,]+?)(<|\\leq) ?[a-z] ?(<|\\leq)([^<>=,]+)", text)
    if not match or r"\leq" in match[1] + match[4]:
        return None
    return f"{'(' if match[2] == '<' else '['}{match[1].strip()},{match[4].strip()}{')' if match[3] == '<' else ']'}"


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


# --- numerals in other bases


def numeral(text: str) -> tuple[str, int] | None:
    """Digits and base of a numeral with a subscript: ``52_8`` is ``("52", 8)``; ``None`` for anything else."""
    match = re.fullmatch(r"(-?[0-9][0-9A-Z.]*) ?_ ?\{? ?([0-9]{1,2}) ?\}?", text.replace('"', ""))
    return (match[1], int(match[2])) if match else None
