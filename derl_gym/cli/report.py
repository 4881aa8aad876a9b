"""``derl-gym report``: the HTML page and the table of finished or running searches."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from derl_gym.cli.command import Command
from derl_gym.report import summary_table, write_report
from derl_gym.trials.database import explained


@dataclasses.dataclass
class Report(Command):
    """Write one HTML page on searches, and print their table."""

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DIR ...")]
    """Run directories, or folders that hold some, such as a comparison's."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """The HTML file. Without it: report.html in the first folder."""

    def run(self) -> int:
        """Print the table, write the page."""
        if not self.folders:
            raise ValueError("which run directory? derl-gym report DIR")
        Console().print(summary_table(self.folders))
        out = self.out or self.folders[0] / "report.html"
        with explained(out):
            written = write_report(self.folders, out)
        print(f"report: {written}")
        return 0
