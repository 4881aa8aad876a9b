"""How a search shows that it lives: a bar in a terminal, a line per outer step everywhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class SearchProgress:
    """Goes to stderr, so that stdout holds results alone.

    Args:
        title: Of the search.
        outer_steps: Their number.
        group_size: Programs per outer step.
    """

    def __init__(self, title: str, outer_steps: int, group_size: int) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.outer_steps = outer_steps
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
            transient=True,
        )
        self.console.print(f"[bold]{escape(title)}[/]")
        self.task = self.bar.add_task("outer step 1, programs", total=group_size)
        self.since = time.monotonic()

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.bar.stop()

    def scored(self, _: Any) -> None:
        """A program has its score."""
        self.bar.advance(self.task)

    def news(self, text: str) -> None:
        """Something else than a program is trained."""
        self.console.print(escape(text), soft_wrap=True)

    def step(self, step: int, programs: list[str], scores: np.ndarray, info: Mapping[str, Any]) -> None:
        """An outer step is done."""
        best = int(np.argmax(scores))
        statuses = list(info.get("status", ()))
        notes = [f"{n} {what}" for what in ("invalid", "failed") if (n := statuses.count(what))]
        now = time.monotonic()
        self.console.print(
            f"step {step + 1}/{self.outer_steps}: mean {100 * scores.mean():5.1f} %, "
            f"best {100 * scores[best]:5.1f} % {escape(programs[best] or '(empty)')}"
            + (f" ({', '.join(notes)})" if notes else "")
            + f", {now - self.since:.0f} s",
            soft_wrap=True,
        )
        self.since = now
        self.bar.reset(self.task, description=f"outer step {min(step + 2, self.outer_steps)}, programs")
