"""A search on trials that were measured beforehand (``cache="bundled"``): whether they fit it, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from derl_gym.trials.bundled import Bundled, open_table


class NotMeasured(LookupError):
    """A program is not in the table of measured trials, and ``on_miss="error"`` forbids to train it."""


def fitting_table(folder: Path, common: dict[str, Any]) -> Bundled:
    """The table of a folder.

    Args:
        folder: :attr:`derl_gym.tasks.Task.measured`.
        common: What all trials of the search have in common, :meth:`OuterLoop.common`.

    Raises:
        ValueError: the table's were measured with other settings, another policy or other data; says what differs.
    """
    table = open_table(folder)
    there = table.made["trials"]
    inner = [f"inner.{name}" for name, value in common["inner"].items() if there["inner"].get(name) != value]
    if differing := inner + [name for name in ("task", "data", "policy") if there[name] != common[name]]:
        raise ValueError(
            f"cache='bundled' has trials of the task as it comes, but {', '.join(differing)} differ: leave them as "
            "they are, or choose another cache"
        )
    return table


def not_measured(table: Bundled, programs: Sequence[str]) -> NotMeasured:
    """The error for programs that the table has not."""
    language = table.made["language"]
    more = " and others" if len(programs) > 3 else ""
    return NotMeasured(
        f"there are no measured trials of {', '.join(map(repr, programs[:3]))}{more}, and on_miss='error' forbids to "
        f"train: on_miss='run' does. With mask='grammar', max_program_length={language['max_program_length']} and "
        f"max_digits={language['max_digits']}, which cache='bundled' sets by itself, every program has been measured"
    )
