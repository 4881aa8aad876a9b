"""``derl-gym report``: the HTML page and the table of finished or running searches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console

from derl_gym.cli.command import Command
from derl_gym.report import load_runs, summary_table, write_report
from derl_gym.report.runs import Run
from derl_gym.trials.database import explained

if TYPE_CHECKING:
    from derl_gym.report.comparison import Metric


@dataclasses.dataclass
class Report(Command):
    """Write one HTML page on searches, and print their table."""

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DIR ...")]
    """Run directories, or folders that hold some, such as a comparison's."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """The HTML file. Without it: report.html in the first folder."""
    metric: Literal["area", "best", "last", "test"] = "area"
    """What agents are compared by: the best score so far averaged over the budget, the best one, the mean of the last
    outer step, or the test score of the best program."""
    against: Annotated[str | None, tyro.conf.arg(metavar="AGENT")] = None
    """The agent that the others are compared with. Without it: random search where it takes part, else all pairs."""

    def run(self) -> int:
        """Print the table, write the page."""
        if not self.folders:
            raise ValueError("which run directory? derl-gym report DIR")
        runs = load_runs(self.folders)
        print_tables(runs, self.metric, self.against)
        out = self.out or self.folders[0] / "report.html"
        with explained(out):
            written = write_report(runs, out, self.metric, self.against)
        print(f"report: {written}")
        return 0


def print_tables(runs: Sequence[Run], metric: Metric = "area", against: str | None = None) -> None:
    """The summary, and the comparison where there are several agents (and scipy)."""
    console = Console()
    console.print(summary_table(runs))
    if len({run.label for run in runs}) < 2:
        return
    try:
        from derl_gym.report import comparison
    except ImportError as error:
        console.print(f"no comparison: {error.name} is not installed; pip install 'derl-gym[report]'", markup=False)
        return
    if searches := comparison.searches_of(runs):
        compared = comparison.compare(searches, metric, against)
        console.print(comparison.standings_table(compared))
        if compared.duels:
            console.print(comparison.duels_table(compared))
        for line in compared.uneven:
            console.print(f"mind: {line}", markup=False)
