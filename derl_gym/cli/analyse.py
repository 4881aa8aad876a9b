"""``derl-gym analyse``: a finished search's inner policies on the test split, for people and for no search."""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from derl_gym.cli.command import Command, Failed, check_packages
from derl_gym.cli.search import finished, refuse_comparison
from derl_gym.envs.outer_loop import InfrastructureFailure
from derl_gym.protocol import TEST_ANALYSIS, analyse_on_test
from derl_gym.report.runs import load_runs
from derl_gym.report.summary import test_curve
from derl_gym.trials.ledger import Ledger


@dataclasses.dataclass
class Analyse(Command):
    """Evaluate the inner policies of a finished search on the test split (the paper's Figure 4).

    The search must have been run with --keep-policies. The scores go into a file that no search reads, and into its
    report.
    """

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Run directory of the search."""
    workers: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    """Evaluations at a time."""
    pool: Literal["processes", "ray"] = "processes"
    """Where they go: processes of this machine, or a Ray cluster."""

    def run(self) -> int:
        """Evaluate, and print the mean scores of every outer step."""
        refuse_comparison(self.folder)
        if not (self.folder / "ledger.sqlite").exists():
            raise ValueError(f"there is no ledger in {self.folder}")
        if not finished(self.folder):
            raise ValueError(f"the search in {self.folder} is not finished: `derl-gym resume {self.folder}` first")
        check_packages(*(["ray"] if self.pool == "ray" else []))
        with Ledger(self.folder) as ledger:
            proposed = {row["identity"] for row in ledger.proposals()}
            try:
                with Console(stderr=True).status("evaluating on the test split"):
                    scores = analyse_on_test(ledger, self.workers, self.pool)
            except InfrastructureFailure as error:
                raise Failed(str(error)) from error
        for step, (validation, test) in test_curve(load_runs([self.folder])[:1]).items():
            print(f"step {step + 1}: validation {100 * validation:.1f} %, test {100 * test:.1f} %")
        searched = [score for identity, score in scores.items() if identity in proposed]
        mean = f", mean test score {100 * statistics.fmean(searched):.1f} %" if searched else ""
        print(f"{len(searched)} policies of the search{mean}")
        for score in (score for identity, score in scores.items() if identity not in proposed):
            print(f"reference run, not among them: test {100 * score:.1f} %")
        print(f"results: {self.folder / TEST_ANALYSIS}")
        return 0
