r"""Whether an answer equals the truth.

Numbers, lists, words, units, bases and times are compared here, exactly and without a process; the rest is
math-verify's (``checker.py``). How all of these are written is in ``notation.py``.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from derl_gym.tasks.answers import checker
from derl_gym.tasks.answers.arithmetic import LARGEST_EXPONENT, decimals, number
from derl_gym.tasks.answers.extract import LONGEST_ANSWER
from derl_gym.tasks.answers.notation import (
    exponents,
    interval,
    items,
    latex,
    named,
    normal_form,
    numeral,
    sides,
    word,
)
from derl_gym.tasks.answers.units import changes_value, clock, same_unit, without_unit

DEEPEST_NESTING = 12
"""Brackets in brackets; with more, an answer is compared as text as well. MATH has 3."""

_READABLE = re.compile(r"""[0-9A-Za-z\\{}()\[\]^_+*/=<>|,;:.!&" -]+""")
_MISREAD = re.compile(
    r"[0-9] *\{[0-9]*\}|(?:^|[-+*/=(, ])\{[0-9]+\}\{[0-9]*\}|[0-9] +\.?[0-9]|[0-9] ?_|[0-9][a-zA-Z][0-9]|\\approx"
)
"""Math-verify adds or joins two numbers that stand side by side, drops the base of a numeral, and takes the end of an
approximation; ``0x10`` is not a product."""
_CHOICE = re.compile(r'"\(([A-H])\)"')
_RELATION = re.compile(r"[<>]|\\(?:leq|geq|neq|in|equiv|sim)(?![a-zA-Z])|=")


def equal(answer: str, truth: str) -> bool:
    r"""Whether the answer equals the truth, mathematically.

    Any texts will do: what cannot be read equals only itself. The rules, in this order:

    - Rational numbers are compared exactly. A decimal of six places or more also stands for a fraction that it is
      rounded from, never for an irrational number. ``10\%`` is 10 and not 0.1: MATH asks for "what percent" and gives
      ``10\%`` or ``10``.
    - A label behind a value may be left out (``18 apples``), but no words that change the value (``18 over seven``);
      ``2 million`` is 2,000,000; two different units of measure are never equal.
    - A name in front of a value may be left out (``x = 5``, not ``2x = 5``); two different names are never equal. Names
      of a tuple's members may be, in the truth's order or, in an answer, put in alphabetical order.
    - A chain of equations is a value when all of its sides are (``36 + 36 = 72``); behind a name, its first and last.
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
    if max(len(answer), len(truth)) > LONGEST_ANSWER or max(_depth(answer), _depth(truth)) > DEEPEST_NESTING:
        return answer.split() == truth.split()
    return compared(answer, truth)


@lru_cache(maxsize=65536)  # of short texts only: a policy writes the same answers again and again
def compared(answer: str, truth: str) -> bool:
    """See :func:`equal`, which compares long texts itself."""
    try:
        return _Comparison().same(normal_form(answer), normal_form(truth))
    except checker.GivenUp:
        return False


class _Comparison:
    """One comparison, of texts in normal form and of their parts; math-verify's CPU time is for all parts together."""

    def __init__(self) -> None:
        self._seconds = checker.CPU_SECONDS

    def same(self, answer: str, truth: str) -> bool:
        if not answer or not truth:
            return False
        if word(truth) is None and _key(answer) == _key(truth):
            return True
        if (verdict := self._same_text(answer, truth)) is not None:
            return verdict
        if number(answer) is None or number(truth) is None:
            lists = items(answer), items(truth)
            if len(lists[0][1]) > 1 and len(lists[1][1]) > 1:
                return self._same_lists(*lists)
            spans = [interval(answer), interval(truth)]
            if spans != [None, None] and max(len(lists[0][1]), len(lists[1][1])) > 1:
                return self.same(spans[0] or answer, spans[1] or truth)
            inner = [_inner(answer, lists[0]), _inner(truth, lists[1])]
            if inner != [answer, truth]:
                return self.same(*inner)
        return self._same_values(answer, truth)

    def _same_text(self, answer: str, truth: str) -> bool | None:
        """The verdict on times, numerals in a base and words; ``None`` when neither text is one of these."""
        times = clock(answer), clock(truth)
        if times != (None, None):
            return times[0] == times[1]
        numerals = numeral(answer), numeral(truth)
        if any(n is not None and n[1] != 10 for n in numerals):
            return numerals[0] == numerals[1]
        if numerals != (None, None):
            return self.same(*(n[0] if n else text for n, text in zip(numerals, (answer, truth), strict=True)))
        words = word(answer), word(truth)
        if (choice := _CHOICE.match(answer)) and re.fullmatch("[A-H]", letter := words[1] or truth):
            return choice[1] == letter
        if words != (None, None):
            a, t = (w if w is not None else text.strip("() ") for w, text in zip(words, (answer, truth), strict=True))
            return a == t or (len(t) > 1 and a.lower() == t.lower())
        return None

    def _same_lists(self, answer: tuple[str, list[str]], truth: tuple[str, list[str]]) -> bool:
        (kind_a, members_a), (kind_t, members_t) = answer, truth
        if len(members_a) != len(members_t):
            return False
        names_a, names_t = ([named(m)[0] for m in ms] if kind == "" else [] for kind, ms in (answer, truth))
        named_a, named_t = bool(names_a) and all(names_a), bool(names_t) and all(names_t)
        unordered = kind_a in ("", "{}") and kind_t in ("", "{}")
        if named_a == named_t:
            if unordered:
                return self._same_members(members_a, members_t)
            # With two members, brackets may be those of an interval.
            vectors = kind_a in ("()", "[]") and kind_t in ("()", "[]") and len(members_t) > 2
            return (kind_a == kind_t or vectors) and self._same_in_order(members_a, members_t)
        # x = 1, y = 2 may be told as a tuple or in short, x first.
        names = names_a if named_a else names_t
        if unordered and (named_a or len(set(names)) == 1):
            return self._same_members(members_a, members_t)
        if {kind_a, kind_t} - {"", "()"} or len(set(names)) < len(names):
            return False
        if named_a:
            members_a = [member for _, member in sorted(zip(map(_alphabetical, names), members_a, strict=True))]
        return self._same_in_order(members_a, members_t)

    def _same_in_order(self, answer: list[str], truth: list[str]) -> bool:
        return all(self.same(a, t) for a, t in zip(answer, truth, strict=True))

    def _same_members(self, answer: list[str], truth: list[str]) -> bool:
        left = sorted(answer)
        for member in sorted(truth, key=lambda t: all(_key(a) != _key(t) for a in answer)):  # the plain ones first
            found = next((a for a in left if _key(a) == _key(member)), None)
            found = found or next((a for a in left if self.same(a, member)), None)
            if found is None:
                return False
            left.remove(found)
        return True

    def _same_values(self, answer: str, truth: str) -> bool:
        (value_a, unit_a), (value_t, unit_t) = without_unit(answer), without_unit(truth)
        if not same_unit(unit_a, unit_t):
            return False
        (name_a, right_a), (name_t, right_t) = named(value_a), named(value_t)
        sides_a, sides_t = sides(value_a), sides(value_t)
        if len(sides_t) > 1 and not name_t and number(sides_t[0]) is not None:
            value_t = right_t = sides_t[-1]  # 0.56 = 56\%
            sides_t = [value_t]
        if (len(sides_a) > 2 or (len(sides_a) > 1 and not name_a)) and (name_t or len(sides_t) == 1):
            if not name_a and name_t and re.search("[a-zA-Z]", right_t):
                pass  # y - 2x = 3 is y = 2x + 3
            else:
                return self._same_chain(name_a, sides_a, name_t, right_t)
        equation = any(len(s) > 1 and not name for s, name in ((sides_a, name_a), (sides_t, name_t)))
        if not equation and (not (name_a and name_t) or name_a == name_t):
            value_a, value_t = right_a, right_t
        if _key(value_a) == _key(value_t):
            return True
        if re.fullmatch(r"-?[0-9]+,[0-9]+", value_a) and decimals(value_t):
            value_a = value_a.replace(",", ".")  # a decimal comma
        a, t = number(value_a), number(value_t)
        if a is not None and t is not None:
            return a == t or _rounded(a, t, decimals(value_a)) or _rounded(t, a, decimals(value_t))
        if (value_a, value_t) != (answer, truth):
            return self.same(value_a, value_t)
        if not (_comparable(value_a, value_t) and _harmless(value_a) and _harmless(value_t)):
            return False
        verdict, seconds = checker.verify(latex(value_a), latex(value_t), self._seconds)
        self._seconds -= seconds
        return verdict

    def _same_chain(self, name: str, parts: list[str], name_of_truth: str, truth: str) -> bool:
        """``36 + 36 = 72``: all sides are the truth; behind a name the first and the last are."""
        if not name:
            return not name_of_truth and all(self.same(part, truth) for part in parts)
        return name_of_truth in ("", name) and self.same(parts[1], truth) and self.same(parts[-1], truth)


def _key(text: str) -> str:
    return re.sub(r'(?<![0-9.])[\s"]+|[\s"]+(?![0-9.\s"])', "", text)


def _alphabetical(name: str) -> list[str | int]:
    return [int(part) if i % 2 else part for i, part in enumerate(re.split("([0-9]+)", name))]


def _comparable(answer: str, truth: str) -> bool:
    """Whether math-verify may be asked: it leaves words out, mixes cases, and takes sets and relations for numbers."""
    if sorted(re.findall('"[^"]*"', answer.lower())) != sorted(re.findall('"[^"]*"', truth.lower())):
        return False
    if changes_value(answer) != changes_value(truth):
        return False
    letters_a, letters_t = (
        set(re.findall("[a-zA-Z]", re.sub(r'\\[a-zA-Z]+|"[^"]*"', " ", t))) for t in (answer, truth)
    )
    if any(letter.swapcase() in letters_t for letter in letters_a - letters_t):
        return False
    for one, other in ((answer, truth), (truth, answer)):
        kind, members = items(one)
        if len(members) > 1 and len(items(other)[1]) == 1 and (kind in ("", "{}") or number(other) is not None):
            return False
        if _RELATION.search(one) and number(other) is not None:
            return False
        if "=" in one and not re.search(r"[=<>]|\\(?:leq|geq|neq|in)(?![a-zA-Z])", other):
            return False
    return True


def _inner(text: str, read: tuple[str, list[str]]) -> str:
    """What stands in parentheses round a single thing, else the text."""
    kind, members = read
    return members[0] if kind == "()" and len(members) == 1 else text


def _rounded(decimal: Fraction, exact: Fraction, places: int) -> bool:
    """Whether a decimal of six places or more is the nearest one to a fraction that has no finite decimal."""
    endless = exact.denominator
    for prime in (2, 5):
        while endless % prime == 0:
            endless //= prime
    return places >= 6 and endless > 1 and 2 * abs(decimal - exact) <= 10 ** -min(places, 12)


def _harmless(text: str) -> bool:
    """Whether a text may be handed to math-verify: only signs that it doesn't skip, and bounded exponents."""
    if not _READABLE.fullmatch(text) or _MISREAD.search(text):
        return False
    return all(
        "^" not in exponent and all(int(digits) <= LARGEST_EXPONENT for digits in re.findall("[0-9]+", exponent))
        for exponent in exponents(text)
    )


def _depth(text: str) -> int:
    """How deep brackets stand in brackets."""
    depth = deepest = 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        deepest = max(deepest, depth)
    return deepest
