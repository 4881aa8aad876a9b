r"""Answers to mathematical problems: find the one that an output commits to, and tell whether it is right.

The last ``\boxed{}`` or ``####`` counts. Numbers, lists, words, units, bases and times are compared here, exactly and
without a process; the rest is math-verify's (``math_checker.py``). Notation is in ``answer_notation.py``.
"""

from __future__ import annotations

import re
from functools import lru_cache

from derl_gym.tasks import math_checker
from derl_gym.tasks.answer_notation import (
    LARGEST_EXPONENT,
    clock,
    decimals,
    exponents,
    items,
    latex,
    named,
    normal_form,
    number,
    numeral,
    without_unit,
    word,
)
from derl_gym.tasks.math_checker import unfinished

__all__ = ["boxed", "equal", "final_answer", "mentions", "unfinished"]

LONGEST_ANSWER = 400
"""Characters; a longer answer is compared as text, blanks aside. The longest of MATH has 159."""
DEEPEST_NESTING = 12
"""Brackets in brackets that are still handed to math-verify; MATH has 3."""
LONGEST_LIST = 40
"""Members; longer lists are compared in their order."""

# --- what an output says

_BRACES = re.compile(
    r"\\(?:boxed|fbox)(?:\s*\{|(?:\s+[0-9A-Za-z]|[0-9])(?![0-9A-Za-z.]))|\\\\(?!boxed|fbox)|\\[{}]|[{}]"
)
_HASHES = re.compile(r"#{4,}[ \t]*([^\n#]*)")
_HEADING = re.compile(r"[*_ ]*[a-zA-Z]{2}")
_MARKER = re.compile(r"^A:|\b(?:answer|Answer|ANSWER)\b", re.MULTILINE)
_NUMBER = re.compile(
    r"(?:(?<![0-9A-Za-z)\]}])[-\u2212])?"
    r"(?:(?<![0-9A-Za-z_])(?<![0-9]\.)"
    r"(?:[0-9]{1,3}(?:(?:,(?: ?\\! ?)?|\{,\}|\\,|[\u2009\u202f\u00a0])[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?"
    r"|(?<![0-9A-Za-z.])\.[0-9]+)"
)


def boxed(text: str) -> str | None:
    r"""What stands in the last balanced ``\boxed{...}`` or ``\fbox{...}``, without surrounding blanks.

    As in TeX, a box without braces holds one sign: ``\boxed 2``.

    Returns:
        The content, or ``None`` when no box is closed, or the last one is empty. Of boxes in a box the innermost.
    """
    return _last_box(text)[1]


def final_answer(text: str, plain: bool = False) -> str | None:
    r"""The answer that an output commits to: the last box or ``#### ...``, whichever stands later.

    Args:
        text: The output.
        plain: Where there is neither, take the number after the last ``A:`` or "answer", else the last number.

    Returns:
        The box's content, or the rest of the line behind ``####``; ``None`` when there is nothing. A ``####`` line
        that begins with a word may be a Markdown heading, and counts only where there is nothing else.
    """
    place, answer = _last_box(text)
    heading = None
    for match in _HASHES.finditer(text):
        line = match[1].strip(" \t\r*")
        if line and _HEADING.match(line):
            heading = line
        elif line and match.start() > place:
            place, answer = match.start(), line
    answer = answer or heading
    return _last_number(text) if answer is None and plain else answer


def mentions(text: str, truth: str) -> bool:
    r"""Whether the truth stands anywhere in the text, as a whole number or a whole expression.

    A number is found in any notation of its value (``1,234``, ``$18``, ``18.``, ``18.0``), and not inside of another
    (118, 1.18, 18,000, -18, 18.5). Anything else is found as LaTeX tokens, blanks and spacing aside, and not inside of
    a longer product, sum or power.
    """
    value = _canonical(without_unit(normal_form(truth))[0]) if len(truth) <= LONGEST_ANSWER else None
    if value is None:
        return _contains(_tokens(text), _tokens(truth))
    text = re.sub(r"([-\u2212]) ?\\?\$ ?(?=[0-9.])", r"\1", text)
    text = re.sub(r"(\\(?!frac|sqrt|[dtc]frac)[a-zA-Z]+)(?=[0-9])", r"\1 ", text)
    return any(_canonical(match[0]) == value for match in _NUMBER.finditer(text))


def _last_box(text: str) -> tuple[int, str | None]:
    """Place and content of the last balanced box; -1 and ``None`` without one. One pass, however it is nested."""
    place, content = -1, None
    open_braces: list[tuple[bool, int, int]] = []
    for match in _BRACES.finditer(text):
        if match[0][-1].isalnum():
            place, content = match.start(), (match.end() - 1, match.end())
        elif match[0].endswith("{") and match[0] != r"\{":
            open_braces.append((len(match[0]) > 1, match.start(), match.end()))
        elif match[0] == "}" and open_braces:
            is_box, start, end = open_braces.pop()
            if is_box and start > place:
                place, content = start, (end, match.start())
    return place, text[slice(*content)].strip() or None if content else None


def _last_number(text: str) -> str | None:
    end = len(text)
    for marker in reversed(list(_MARKER.finditer(text))):
        line_end = text.find("\n", marker.end(), end)
        if match := _NUMBER.search(text, marker.end(), line_end if line_end >= 0 else end):
            return match[0]
        end = marker.start()
    numbers = _NUMBER.findall(text)
    return numbers[-1] if numbers else None


def _canonical(text: str) -> str | None:
    """A decimal number without separators and needless zeros; ``None`` for anything else. Linear in its length."""
    if not _NUMBER.fullmatch(text):
        return None
    digits = re.sub(r"[^0-9.]", "", text)
    whole, _, fraction = digits.partition(".")
    digits = f"{whole.lstrip('0') or '0'}.{fraction.rstrip('0')}"
    return f"-{digits}" if text[0] in "-\u2212" and digits != "0." else digits


_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|[0-9]+(?:\.[0-9]+)?[A-Za-z]*|[A-Za-z][0-9A-Za-z]*|\S", re.DOTALL)
_OPERATORS = {"+", "-", "*", "/", "^", "_", r"\cdot", r"\times", r"\div", r"\pm"}
_SPACING = re.compile(r"\\[!,;: ]|\\(?:left|right)(?![a-zA-Z])|\$|~|\\q?quad(?![a-zA-Z])")


def _tokens(text: str) -> list[tuple[str, int, int]]:
    """Tokens of LaTeX with the places where they begin and end; words in lower case."""
    text = re.sub(r"\\(?:text|mbox|mathrm|textbf|textit)\s*\{([^{}]*)\}", r" \1 ", text)
    text = re.sub(r"\\[dtc]frac(?![a-zA-Z])", r"\\frac", _SPACING.sub(" ", text))
    text = re.sub(r"([_^]) ?\{ ?([0-9A-Za-z]+) ?\}", r"\1\2", text)
    found = ((match[0], match.start(), match.end()) for match in _TOKEN.finditer(text))
    return [(t.lower() if len(t) > 1 and t.isalpha() else t, start, end) for t, start, end in found]


def _contains(tokens: list[tuple[str, int, int]], wanted: list[tuple[str, int, int]]) -> bool:
    words, size = [token for token, _, _ in wanted], len(wanted)
    if not size:
        return False
    places = [i for i, (token, _, _) in enumerate(tokens) if token == words[0]]
    return any([t for t, _, _ in tokens[i : i + size]] == words and _stands_alone(tokens, i, i + size) for i in places)


def _stands_alone(tokens: list[tuple[str, int, int]], first: int, last: int) -> bool:
    if first > 0:
        before, _, end = tokens[first - 1]
        if before in _OPERATORS or (end == tokens[first][1] and (before[-1].isalnum() or before in (")", "}"))):
            return False
    if last < len(tokens):
        after, start, _ = tokens[last]
        attached = start == tokens[last - 1][2] and (after[0].isalnum() or after in ("(", "!"))
        return after not in _OPERATORS and not attached
    return True


# --- whether it is right

_READABLE = re.compile(r"""[0-9A-Za-z\\{}()\[\]^_+*/=<>|,;:.!&" -]+""")
_MISREAD = re.compile(r"[0-9] +\.?[0-9]|[0-9] ?_")
"""Math-verify adds two numbers that stand side by side, and drops the base of a numeral."""


@lru_cache(maxsize=65536)
def equal(answer: str, truth: str) -> bool:
    r"""Whether the answer equals the truth, mathematically.

    Any texts will do: what cannot be read equals only itself. The rules, in this order:

    - Rational numbers are compared exactly. A decimal of six places or more also stands for a fraction that it is
      rounded from. ``10\%`` is 10 and not 0.1: MATH asks for "what percent" and gives ``10\%`` or ``10``.
    - A label behind a value may be left out (``18 apples``); two different units of measure are never equal.
    - A name in front of a value may be left out (``x = 5``); two different names are never equal.
    - The order of a bare list or of a set does not matter, that of a tuple does; ``(`` is not ``[``.
    - A numeral in a base equals only the same numeral: its notation is what was asked for.
    - Words are compared as words, without regard to case.
    - Anything else is left to math-verify.

    A check that takes too long or too much memory counts as not equal; :func:`unfinished` counts those.

    Args:
        answer: A final answer, as :func:`final_answer` gives it.
        truth: The right one; the two are not interchangeable.

    Raises:
        ImportError: the comparison needs math-verify, and it is not installed.
    """
    if answer == truth:
        return True
    if max(len(answer), len(truth)) > LONGEST_ANSWER:
        return answer.split() == truth.split()
    return _same(normal_form(answer), normal_form(truth))


def _same(answer: str, truth: str) -> bool:
    if not answer or not truth:
        return False
    if _key(answer) == _key(truth):
        return True
    if (verdict := _same_text(answer, truth)) is not None:
        return verdict
    if number(answer) is None or number(truth) is None:
        lists = items(answer), items(truth)
        if len(lists[0][1]) > 1 and len(lists[1][1]) > 1:
            return _same_lists(*lists)
        if lists[0][0] == "()" or lists[1][0] == "()":  # brackets round a single thing
            inner = [
                parts[0] if kind == "()" and len(parts) == 1 else text
                for text, (kind, parts) in zip((answer, truth), lists, strict=True)
            ]
            if inner != [answer, truth]:
                return _same(*inner)
    return _same_values(answer, truth)


def _key(text: str) -> str:
    return re.sub(r'[\s"]', "", text)


def _same_text(answer: str, truth: str) -> bool | None:
    """The verdict on words, times and numerals in a base; ``None`` when neither text is one of these."""
    times = clock(answer), clock(truth)
    if times != (None, None):
        return times[0] == times[1]
    numerals = numeral(answer), numeral(truth)
    if any(n is not None and n[1] != 10 for n in numerals):
        return numerals[0] == numerals[1]
    if numerals != (None, None):
        return _same(*(n[0] if n else text for n, text in zip(numerals, (answer, truth), strict=True)))
    words = word(answer), word(truth)
    if words != (None, None):
        a, t = (w if w is not None else text.strip("() ") for w, text in zip(words, (answer, truth), strict=True))
        return a == t or (len(t) > 1 and a.lower() == t.lower())
    return None


def _same_lists(answer: tuple[str, list[str]], truth: tuple[str, list[str]]) -> bool:
    (kind_a, members_a), (kind_t, members_t) = answer, truth
    if len(members_a) != len(members_t):
        return False
    named_a, named_t = (kind == "" and all(named(m)[0] for m in ms) for kind, ms in (answer, truth))
    loose = ("", "{}")
    if kind_a in loose and kind_t in loose and named_a == named_t and len(members_t) <= LONGEST_LIST:
        left = list(members_a)
        for member in members_t:
            match = next((a for a in left if _key(a) == _key(member)), None)
            match = match if match is not None else next((a for a in left if _same(a, member)), None)
            if match is None:
                return False
            left.remove(match)
        return True
    vectors = {kind_a, kind_t} <= {"()", "[]"} and (kind_a == kind_t or len(members_t) > 2)
    in_order = vectors or kind_a == kind_t or named_a != named_t or (kind_a in loose and kind_t in loose)
    return in_order and all(_same(a, t) for a, t in zip(members_a, members_t, strict=True))


def _same_values(answer: str, truth: str) -> bool:
    (value_a, unit_a), (value_t, unit_t) = without_unit(answer), without_unit(truth)
    if unit_a and unit_t and unit_a != unit_t:
        return False
    (name_a, right_a), (name_t, right_t) = named(value_a), named(value_t)
    if not (name_a and name_t) or name_a == name_t:
        value_a, value_t = right_a, right_t
    if _key(value_a) == _key(value_t):
        return True
    if re.fullmatch(r"-?[0-9]+,[0-9]+", value_a) and decimals(value_t):
        value_a = value_a.replace(",", ".")  # a decimal comma
    a, t = number(value_a), number(value_t)
    if a is not None and t is not None:
        return a == t or _rounded(a, t, decimals(value_a)) or _rounded(t, a, decimals(value_t))
    if (value_a, value_t) != (answer, truth) and (verdict := _same_text(value_a, value_t)) is not None:
        return verdict
    if not (_harmless(value_a) and _harmless(value_t)):
        return False
    return math_checker.verify(latex(value_a), latex(value_t))


def _rounded(decimal, exact, places: int) -> bool:
    """Whether a decimal of six places or more is the nearest one to a fraction that has no finite decimal."""
    endless = exact.denominator
    for prime in (2, 5):
        while endless % prime == 0:
            endless //= prime
    return places >= 6 and endless > 1 and 2 * abs(decimal - exact) <= 10 ** -min(places, 12)


def _harmless(text: str) -> bool:
    """Whether a text may be handed to math-verify: signs that it doesn't skip, nesting and exponents bounded."""
    if not _READABLE.fullmatch(text) or _MISREAD.search(text):
        return False
    depth = 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        if depth > DEEPEST_NESTING:
            return False
    return all(
        "^" not in exponent and all(int(digits) <= LARGEST_EXPONENT for digits in re.findall("[0-9]+", exponent))
        for exponent in exponents(text)
    )
