"""What a self-check found."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Report:
    """What a check found.

    Attributes:
        lines: What was checked, one line each.
        problems: What is wrong; empty when nothing is.
    """

    lines: list[str] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)
