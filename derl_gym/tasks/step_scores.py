"""The agent primitives: how well each step of an episode was reasoned, by rules, and their means over its thirds.

A policy's reply at one turn holds one tag that says what kind of thought it is, and one action (RLVMR, Zhang et al.,
2025b). Rules turn replies into step scores of 0 or 1, and their means over the first, middle and last third of the
episode are g2, g3 and g4 (paper section 4.3). Pure functions of text; the worlds are in worlds/.
"""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections.abc import Sequence
from typing import Literal

TAGS = ("planning", "explore", "reflection", "monitor")
"""Kinds of thought."""

Compat = Literal["rlvmr"]

_MARK = re.compile(rf"<(/?)({'|'.join(TAGS)}|action)>", re.IGNORECASE | re.ASCII)


@dataclasses.dataclass(frozen=True)
class Reply:
    """One reply of the policy, taken apart.

    Attributes:
        action: What stands between ``<action>`` and ``</action>``, blanks and line ends run together; ``None`` unless
            there is exactly one action, and it says something.
        tag: The kind of thought, one of :data:`TAGS`; ``None`` unless there is exactly one.
        thought: What stands inside the tag.
        valid: Exactly one action, exactly one tag, neither of them empty, and the tag ends before the action begins.
            What has nothing to be seen in it, such as zero-width characters, is empty.
    """

    action: str | None
    tag: str | None
    thought: str
    valid: bool


def parse_reply(text: str) -> Reply:
    """Take a reply apart. Any text will do; what stands outside the tag and the action does not matter.

    A tag that is opened twice, left open, or stands inside another makes the reply invalid, also where its twin is
    empty. The action of an invalid reply is still given where it is clear, so that it can be carried out.
    """
    marks = list(_MARK.finditer(text))
    names = [match[2].lower() for match in marks]
    action_at, tag_at = _only(marks, [name == "action" for name in names]), _only(marks, [n != "action" for n in names])
    action = _seen(_inside(text, marks, action_at)) if action_at is not None else ""
    tag = thought = None
    if tag_at is not None and names[tag_at] == names[tag_at + 1]:
        tag, thought = names[tag_at], _seen(text[marks[tag_at].end() : marks[tag_at + 1].start()].strip())
    valid = bool(action and thought) and (tag_at, action_at) == (0, 2)
    return Reply(action or None, tag, thought or "", valid)


def find_command(action: str | None, admissible: Sequence[str]) -> str | None:
    """The admissible command that an action means, case and blanks aside; ``None`` where it is not available."""
    if action is None:
        return None
    meant = _same(action)
    return next((command for command in admissible if _same(command) == meant), None)


def step_scores(
    replies: Sequence[Reply], available: Sequence[bool], success: bool, compat: Compat | None = None
) -> list[float]:
    """Score every step of an episode with 0 or 1.

    - planning: 1 if the episode succeeds.
    - explore: 1 if the action was not issued at an earlier valid step.
    - reflection: 1 if the previous step was invalid or its action not available, and this action is another one.
    - monitor, and every invalid step: 0.

    Args:
        replies: The episode's replies, in order.
        available: Whether each action was among the admissible ones; validity is another matter.
        success: Whether the episode succeeded.
        compat: ``"rlvmr"``: as RLVMR's code has it, a reflection at the first step scores 1, though there is nothing
            to reflect upon.

    Returns:
        As many floats as there are replies.

    Raises:
        ValueError: the numbers of replies and flags differ, or ``compat`` is unknown.
    """
    if len(replies) != len(available):
        raise ValueError(f"expected one flag per reply, got {len(replies)} replies and {len(available)} flags")
    if compat not in (None, "rlvmr"):
        raise ValueError(f"compat must be None or 'rlvmr', not {compat!r}")
    scores: list[float] = []
    issued: set[str] = set()
    for step, reply in enumerate(replies):
        action = _same(reply.action or "")
        good = False
        if reply.valid and reply.tag == "planning":
            good = success
        elif reply.valid and reply.tag == "explore":
            good = action not in issued
        elif reply.valid and reply.tag == "reflection":
            if step == 0:
                good = compat == "rlvmr"
            else:
                before = replies[step - 1]
                good = not (before.valid and available[step - 1]) and action != _same(before.action or "")
        if reply.valid:
            issued.add(action)
        scores.append(float(good))
    return scores


def thirds(scores: Sequence[float]) -> tuple[float, float, float]:
    """Means of the first, middle and last third: g2, g3, g4.

    Of steps that cannot be shared out evenly the first third gets one, then the middle one: five steps are 2 + 2 + 1,
    four are 2 + 1 + 1. The mean of a third without steps is 0.
    """
    size, rest = divmod(len(scores), 3)
    first = size + (rest > 0)
    middle = first + size + (rest > 1)
    parts = scores[:first], scores[first:middle], scores[middle:]
    g2, g3, g4 = (sum(part) / len(part) if part else 0.0 for part in parts)
    return g2, g3, g4


def agent_primitives(
    outputs: Sequence[str], available: Sequence[bool], success: bool, compat: Compat | None = None
) -> tuple[float, float, float, float]:
    """The paper's g1 to g4 of one episode (section 4.3): success, and the mean step scores of its thirds.

    Args:
        outputs: What the policy wrote, one text per turn.
        available: Whether each turn's action was among the admissible ones.
        success: Whether the episode succeeded.
        compat: See :func:`step_scores`.

    Raises:
        ValueError: see :func:`step_scores`.
    """
    scores = step_scores([parse_reply(output) for output in outputs], available, success, compat)
    return (float(success), *thirds(scores))


def _only(marks: Sequence[re.Match], chosen: Sequence[bool]) -> int | None:
    """Where the only opening mark among the chosen ones is, if the only closing one follows it directly."""
    places = [place for place, taken in enumerate(chosen) if taken]
    if len(places) != 2 or places[1] != places[0] + 1 or marks[places[0]][1] or not marks[places[1]][1]:
        return None
    return places[0]


def _inside(text: str, marks: Sequence[re.Match], place: int) -> str:
    return " ".join(text[marks[place].end() : marks[place + 1].start()].split())


def _seen(text: str) -> str:
    """The text; empty where it has no letter, number, punctuation or symbol in it."""
    return text if any(unicodedata.category(char)[0] in "LNPS" for char in text) else ""


def _same(action: str) -> str:
    return " ".join(action.split()).casefold()
