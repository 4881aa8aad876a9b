"""``derl-gym export``: a search's ledger as tables for other programs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import tyro

from derl_gym.cli.command import Command, Folder
from derl_gym.cli.search import refuse_comparison
from derl_gym.trials.export import export
from derl_gym.trials.ledger import Ledger


@dataclasses.dataclass
class Export(Command):
    """Write a search's trials, proposals and final scores as CSV or Parquet; also while it runs."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Run directory of the search."""
    format: Literal["csv", "parquet"] = "csv"
    """Parquet has types and lists, and needs pyarrow (which the extra train brings)."""
    out: Folder = None
    """Folder of the tables. Without it: "export" in the run directory."""

    def run(self) -> int:
        """Write the tables and say where they are."""
        refuse_comparison(self.folder)
        with Ledger(self.folder, readonly=True) as ledger:
            written = export(ledger, self.out or self.folder / "export", self.format)
        for path, rows in written.items():
            print(f"{path}: {rows} rows")
        return 0
