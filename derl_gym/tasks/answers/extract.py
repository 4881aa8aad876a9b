r"""What an output says: the answer that it commits to, and whether it holds the truth anywhere.

The last ``\boxed{}`` or ``####`` counts. Every function takes time linear in the output, whatever it holds.
"""

from __future__ import annotations

import re

from derl_gym.tasks.answers.notation import normal_form
from derl_gym.tasks.answers.units import without_unit

LONGEST_ANSWER = 400
"""Characters; a longer answer is taken as a mere text. The longest of MATH has 159."""

_BRACES = re.compile(
    r"\\(?:boxed|fbox)(?:\s*\{|(?:\s+[0-9A-Za-z]|[0-9])(?![0-9A-Za-z]|\.[0-9]))|\\\\(?!boxed|fbox)|\\[{}]|[{}]"
)
_HASHES = re.compile(r"#{4,}[ \t]*([^\n#]*)")
_HEADING = re.compile(r"[*_ ]*(?:[0-9]{1,3}[.)][*_ ]+)?[a-zA-Z]{2}")
_PREFIX = re.compile(
    r"[*_ ]*(?:the )?(?:final )?answer(?: is)?[:=*_ \t]+(?=[-+\u2212]?[ \t]*\\?\$?[\\0-9.(])", re.IGNORECASE
)
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
        that begins with a word, numbered or not, may be a Markdown heading, and counts only where there is nothing
        else; a ruler (``#### ---``) never does. "The answer is" in front of a value is left out.
    """
    place, answer = _last_box(text)
    heading = None
    for match in _HASHES.finditer(text):
        line = _PREFIX.sub("", match[1].strip(" \t\r*"), count=1)
        if not any(sign.isalnum() for sign in line):
            continue  # a ruler
        if _HEADING.match(line):
            heading = line
        elif match.start() > place:
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
