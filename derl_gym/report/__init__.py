"""Reports on searches: one self-contained HTML page, and a table for the terminal.

Reads ledgers and changes nothing. The page needs the extra ``report``; the table needs nothing more than the core.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from derl_gym.report.summary import summary_table

__all__ = ["summary_table", "write_report"]


def write_report(run_dirs: Sequence[str | Path], out: str | Path) -> Path:
    """Write the HTML report of some searches.

    The page holds the scores of the proposals over outer steps, their structures, the best programs with
    formulas and audits, learning curves of inner runs, and costs. It works on a search that has just begun.

    Args:
        run_dirs: Folders with a ledger in them or below them; a comparison's folder holds one per agent and seed.
        out: The HTML file.

    Returns:
        The file's path.

    Raises:
        FileNotFoundError: when there is no ledger in or below one of the folders.
        LedgerError: when a ledger cannot be read.
        ImportError: without plotly and jinja2.
    """
    try:
        from derl_gym.report.page import render
    except ImportError as error:
        if error.name not in ("plotly", "jinja2", "markupsafe"):
            raise
        raise ImportError(
            f"the HTML report needs {error.name}, which is not installed: pip install 'derl-gym[report]'"
        ) from error
    return render(run_dirs, out)
