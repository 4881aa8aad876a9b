"""Reports on searches: one self-contained HTML page, and a table for the terminal.

Reads ledgers and changes nothing. The page needs the extra ``report``; the table needs nothing more than the core.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from derl_gym.report.runs import Run, load_runs
from derl_gym.report.summary import summary_table

if TYPE_CHECKING:
    from derl_gym.report.comparison import Metric

__all__ = ["load_runs", "summary_table", "write_report"]


def write_report(
    run_dirs: Sequence[str | Path | Run], out: str | Path, metric: Metric = "area", against: str | None = None
) -> Path:
    """Write the HTML report of some searches.

    The page holds the scores of the proposals over outer steps, a comparison of the agents where there are several,
    the structures, the best programs with formulas and audits, learning curves of inner runs, and costs. It works on
    a search that has just begun.

    Args:
        run_dirs: Folders with a ledger in them or below them, or what :func:`load_runs` read there; a comparison's
            folder holds one per agent and seed.
        out: The HTML file.
        metric: What agents are compared by, see :data:`derl_gym.report.comparison.METRICS`.
        against: The agent that the others are compared with; ``None``: random search where it takes part, else all
            pairs.

    Returns:
        The file's path.

    Raises:
        FileNotFoundError: when there is no ledger in or below one of the folders.
        LedgerError: when a ledger cannot be read.
        ImportError: without plotly, jinja2 and scipy.
    """
    try:
        from derl_gym.report.page import render
    except ImportError as error:
        if error.name not in ("plotly", "jinja2", "markupsafe", "scipy"):
            raise
        raise ImportError(
            f"the HTML report needs {error.name}, which is not installed: pip install 'derl-gym[report]'"
        ) from error
    return render(run_dirs, out, metric, against)
