"""What the scripts of this folder share: arguments, running cells, printing published numbers beside ours.

A script names its cells and lays out its rows; everything else is here. Nothing that has ended is run again, and what
was broken off goes on. Beyond the smoke scale nothing starts without --yes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import os
import platform
import shlex
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

os.environ.setdefault("OMP_NUM_THREADS", "1")

import text_worlds
from cells import Cell, Command, Runs, Scale, Step, cores
from costs import in_words, left
from rich import box
from rich.console import Console
from rich.table import Table
from served import StandIn

from derl_gym.cli import main as derl_gym
from derl_gym.cli.search import write_json
from derl_gym.report.estimates import duration, estimate, quantity
from derl_gym.trials.devices import visible_devices
from derl_gym.trials.pool import warm_servers

NO_RESULT = "smoke scale: it shows that every command runs; its numbers are no result"
PACKAGES = ("derl-gym", "torch", "transformers", "trl", "vllm", "peft", "math-verify")


class Bench:
    """One script's run.

    Args:
        name: Of the table or figure.
        about: The script's docstring.
        seeds: Final policies per row at paper scale.
        **parts: Option -> the parts of the table that it chooses from.

    Attributes:
        runs: Where cells lie, and how they are filled.
        missing: Why a cell has no result.
    """

    def __init__(self, name: str, about: str | None, seeds: int = 3, **parts: Sequence[str]) -> None:
        self.name = name
        parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--scale", default="paper", choices=get_args(Scale), help="preset of every run")
        parser.add_argument("--policy", default="", help="inner policy, hub name or folder; default: the scale's")
        parser.add_argument("--out", type=Path, default=Path("runs/paper"), help="folder of the run directories")
        parser.add_argument(
            "--seeds", type=int, help=f"final policies per row; default: {seeds} at paper scale, else 1"
        )
        parser.add_argument("--workers", type=int, help="inner runs at a time; default: one per GPU, or per CPU core")
        parser.add_argument("--json", type=Path, help="also write the results to this file")
        parser.add_argument("--dry-run", action="store_true", help="print the commands and what they would cost")
        parser.add_argument("--yes", action="store_true", help="start the runs of a scale that takes GPUs for days")
        parser.add_argument("--prompted-model", default="gpt-4o", help="model of the prompted proposer")
        parser.add_argument("--base-url", help="its OpenAI-compatible endpoint; default: OpenAI's")
        for option, choices in parts.items():
            every = " ".join(choices)
            parser.add_argument(f"--{option}", nargs="+", default=choices, choices=choices, help=f"default: {every}")
        self.arguments = given = parser.parse_args()
        if given.seeds is not None and given.seeds < 1:
            parser.error(f"--seeds must be at least 1, not {given.seeds}")
        self.runs = Runs(
            given.scale,
            given.out,
            self._policy(),
            given.seeds or (seeds if given.scale == "paper" else 1),
            given.workers or len(visible_devices()) or cores(),
        )
        self.stand_in: StandIn | None = None
        self.runs = dataclasses.replace(self.runs, prompted=self._endpoint())
        self.missing: dict[Cell, str] = {}
        self.cells: dict[Cell, set[Step]] = {}
        self.console = Console(highlight=False)
        if not self.console.is_terminal:
            self.console = Console(highlight=False, width=130)

    @property
    def scale(self) -> Scale:
        """The preset's name."""
        return self.runs.scale

    @property
    def seeds(self) -> str:
        """What ours are a mean of, for captions."""
        n = self.runs.seeds
        return "one final policy" if n == 1 else f"mean over {n} seeds" + (", ± the 95 % t interval" if n > 2 else "")

    def _policy(self) -> str:
        given, scale = self.arguments.policy, self.arguments.scale
        small = Path(os.environ.get("DERL_GYM_DATA", "nowhere")) / "stories260k"
        policy = given or (str(small) if scale == "smoke" and small.is_dir() else "")
        return str(Path(policy).resolve()) if Path(policy).is_dir() and policy else policy

    # -- running ----------------------------------------------------------------------------------------

    def run(self, finals: Iterable[Cell] = (), analysed: Iterable[Cell] = (), searched: Iterable[Cell] = ()) -> None:
        """Fill the cells: what is missing in them is searched, trained and tested. Ends the script with --dry-run.

        Args:
            finals: Cells whose final policies are wanted.
            analysed: Searches whose kept inner policies are to be tested.
            searched: Searches that are wanted for themselves.
        """
        asked: tuple[tuple[Step, Iterable[Cell]], ...] = (
            ("search", searched),
            ("train", finals),
            ("analyse", analysed),
        )
        for step, cells in asked:
            for cell in cells:
                wanted = self.cells.setdefault(cell, set())
                wanted.add(step)
                if not cell.program:
                    self.cells.setdefault(cell.source, set()).add("search")
        if self.arguments.dry_run:
            for command in dict.fromkeys(said(command) for cell in self.cells for command in self.commands(cell)):
                print(command)
            self._announce()
            raise SystemExit(0)
        if self._announce() and self.scale != "smoke" and not self.arguments.yes:
            raise SystemExit(f"the scale {self.scale!r} starts only with --yes")
        with warm_servers():
            for cell in sorted(self.cells, key=lambda cell: not cell.searches):  # others may train with what is found
                self._fill(cell)

    def _fill(self, cell: Cell) -> None:
        wanted, runs = self.cells[cell], self.runs
        if reason := text_worlds.why_not(cell.task) or self.missing.get(cell.source, ""):
            self.missing[cell] = reason
            return
        if not runs.warm(cell):
            self._prepare(cell)
            self._do(runs.warm_command(cell))
        if not runs.searched(cell):
            prompted = cell.agent == "prompted"
            if prompted and (reason := self._why_no_proposer()):
                self.missing[cell] = reason
                return
            with self.stand_in.running() if prompted and self.stand_in else contextlib.nullcontext():
                self._do(runs.search_command(cell))
        if reason := runs.why_nothing(cell):
            self.missing[cell] = reason
            return
        if "train" in wanted and (seeds := runs.seeds_left(cell)):
            apart = len(seeds) < runs.seeds  # some are known: the others need not be consecutive
            for some in [[seed] for seed in seeds] if apart else [seeds]:
                self._do(runs.train_command(cell, some))
        if "analyse" in wanted and not runs.analysed(cell):
            self._do(runs.analyse_command(cell))

    def _prepare(self, cell: Cell) -> None:
        """What a warm start needs here: no half of an earlier one; at smoke scale, games and a policy that fits."""
        runs = self.runs
        shutil.rmtree(runs.warm_folder(cell), ignore_errors=True)
        if self.scale == "smoke" and text_worlds.world_of(cell.task) == "ALFWorld":
            text_worlds.make_smoke_games(runs.smoke_games)
        if self.scale == "smoke" and text_worlds.too_short(start := runs.start_of(cell)):
            text_worlds.make_long_copy(Path(start), runs.long_policy(cell))

    def _do(self, command: Command) -> None:
        self.console.print(f"$ {said(command)}", markup=False, soft_wrap=True)
        if code := derl_gym(command):
            print(f"{self.name}: stopped; the same command goes on from here")
            raise SystemExit(code)

    def _endpoint(self) -> tuple[str, ...]:
        """Options of the prompted proposer; at smoke scale without an endpoint the script serves one itself."""
        given = self.arguments
        if given.scale == "smoke" and not given.base_url and not os.environ.get("OPENAI_API_KEY"):
            loop = self.runs.loop(Cell("GSM8K"))
            self.stand_in = StandIn(loop.inner.policy or loop.task.base_policy, given.out / given.scale / "served")
            return self.stand_in.options
        return (f"model={given.prompted_model}", *([f"base_url={given.base_url}"] if given.base_url else []))

    def _why_no_proposer(self) -> str:
        if self.stand_in:
            return self.stand_in.why_not()
        if not importlib.util.find_spec("openai"):
            return "the prompted proposer needs openai: pip install 'derl-gym[prompted]'"
        if not self.arguments.base_url and not os.environ.get("OPENAI_API_KEY"):
            return "the prompted proposer needs OPENAI_API_KEY, or --base-url and --prompted-model"
        return ""

    # -- what is said -----------------------------------------------------------------------------------

    def commands(self, cell: Cell) -> list[Command]:
        """All commands of a cell, from scratch."""
        wanted, runs = self.cells[cell], self.runs
        commands = [runs.warm_command(cell)] if text_worlds.world_of(cell.task) else []
        commands += [runs.search_command(cell)] if cell.searches else []
        commands += [runs.train_command(cell, range(runs.seeds))] if "train" in wanted else []
        return [*commands, runs.analyse_command(cell)] if "analyse" in wanted else commands

    def _announce(self) -> bool:
        """Say what is left to run. Returns whether anything is."""
        lefts = {cell: left(self.runs, cell, wanted) for cell, wanted in self.cells.items()}
        runs, stages, tests = (round(sum(one[key] for one in lefts.values())) for key in ("runs", "stages", "tests"))
        cold = {self.runs.warm_folder(cell) for cell in self.cells if not self.runs.warm(cell)}
        print(
            f"{self.name}, {self.scale} scale: {len(lefts)} run directories in {self.runs.out / self.scale}; at most "
            f"{runs} inner runs, {stages} final trainings or rounds and {tests} test analyses left"
            + (f"; warm starts before them: {len(cold)}" if cold else "")
        )
        for line in in_words(self.scale, lefts):
            print(line)
        if self.scale == "smoke":
            print(NO_RESULT)
        return bool(runs + stages + tests)

    def row(self, name: str, cell: Cell, published: object) -> dict[str, Any]:
        """One row of the results: published, ours, cost, commands."""
        results = self.runs.results(cell)
        ours = {benchmark: in_percent(values) for benchmark, values in results.pop("scores").items()}
        row = {"row": name, "published": published, "ours": ours, "missing": self.missing.get(cell, "")}
        return (
            row | results | {"run_dir": str(self.runs.folder(cell)), "commands": list(map(said, self.commands(cell)))}
        )

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], caption: str) -> None:
        """Print a table."""
        notes = [caption, *([NO_RESULT] if self.scale == "smoke" else [])]
        table = Table(
            title=title, title_justify="left", box=box.SIMPLE_HEAD, caption="\n".join(notes), caption_justify="left"
        )
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*("-" if value is None else str(value) for value in row))
        self.console.print(table, markup=False)

    def end(self, content: dict[str, Any]) -> None:
        """Print what all cells cost together, and write the results."""
        costs = {str(self.runs.folder(cell)): self.runs.results(cell) for cell in self.cells}
        keys = ("inner_runs", "search_seconds", "search_flops", "final_seconds", "final_flops")
        total = {key: sum(cost[key] for cost in costs.values()) for key in keys}
        found = {name: version(name) for name in PACKAGES}
        report = {
            "name": self.name,
            "scale": self.scale,
            "is_a_result": self.scale != "smoke",
            "seeds": self.runs.seeds,
            "versions": {"python": platform.python_version(), **{name: v for name, v in found.items() if v}},
            "total": total,
            **content,
        }
        print(
            f"cost of the whole: {total['inner_runs']} inner runs, {duration(total['search_seconds'])}, "
            f"{quantity(total['search_flops'])} FLOPs; final trainings {duration(total['final_seconds'])}, "
            f"{quantity(total['final_flops'])} FLOPs (summed over runs)"
        )
        for cell, reason in self.missing.items():
            print(f"missing, {self.runs.folder(cell).name}: {reason}")
        for path in (self.runs.out / self.scale / f"{self.name}.json", self.arguments.json):
            if path is not None:
                write_json(path, report)
                print(f"results: {path}")


def said(command: Command) -> str:
    """A command as one types it."""
    return f"derl-gym {shlex.join(command)}"


def in_percent(values: Sequence[float]) -> dict[str, Any]:
    """A mean in percent with its 95 % t interval, and the single values."""
    found = estimate(values)
    assert found is not None
    half = None if found.half_width is None else 100 * found.half_width
    return {"mean": 100 * found.mean, "half_width_95": half, "values": [100 * value for value in values]}


def text(ours: dict[str, Any] | None) -> str:
    """The same for people."""
    if ours is None:
        return "-"
    return f"{ours['mean']:.2f}" + ("" if ours["half_width_95"] is None else f" ± {ours['half_width_95']:.2f}")


def version(package: str) -> str:
    """Of an installed package; empty where it isn't."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
