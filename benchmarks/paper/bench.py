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
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

os.environ.setdefault("OMP_NUM_THREADS", "1")

from cells import Cell, Command, Runs, Scale, cores
from published import FLOPS_PER_OUTER_STEP
from rich import box
from rich.console import Console
from rich.table import Table
from served import free_port, servable, served, why_not

from derl_gym.cli import main as derl_gym
from derl_gym.cli.search import Plan, write_json
from derl_gym.report.estimates import duration, estimate, quantity
from derl_gym.report.runs import SEARCH_FILE
from derl_gym.trials.devices import visible_devices
from derl_gym.trials.pool import warm_servers

NO_RESULT = "smoke scale: it shows that every command runs; its numbers are no result"
PACKAGES = ("derl-gym", "torch", "transformers", "trl", "vllm", "peft", "math-verify")
PORT = "PORT"
Step = Literal["search", "train", "analyse"]


class Bench:
    """One script's run.

    Args:
        name: Of the table or figure.
        about: The script's docstring.

    Attributes:
        runs: Where cells lie, and how they are filled.
        missing: Why a cell has no result.
    """

    def __init__(self, name: str, about: str | None) -> None:
        self.name = name
        parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--scale", default="paper", choices=get_args(Scale), help="preset of every run")
        parser.add_argument("--policy", default="", help="inner policy, hub name or folder; default: the scale's")
        parser.add_argument("--out", type=Path, default=Path("runs/paper"), help="folder of the run directories")
        parser.add_argument("--seeds", type=int, help="final policies per row; default: 3 at paper scale, else 1")
        parser.add_argument("--workers", type=int, help="inner runs at a time; default: one per GPU, or per CPU core")
        parser.add_argument("--json", type=Path, help="also write the results to this file")
        parser.add_argument("--dry-run", action="store_true", help="print the commands and what they would cost")
        parser.add_argument("--yes", action="store_true", help="start the runs of a scale that takes GPUs for days")
        parser.add_argument("--prompted-model", default="gpt-4o", help="model of the prompted proposer")
        parser.add_argument("--base-url", help="its OpenAI-compatible endpoint; default: OpenAI's")
        self.arguments = given = parser.parse_args()
        if given.seeds is not None and given.seeds < 1:
            parser.error(f"--seeds must be at least 1, not {given.seeds}")
        self.runs = Runs(
            given.scale,
            given.out,
            self._policy(),
            given.seeds or (3 if given.scale == "paper" else 1),
            given.workers or len(visible_devices()) or cores(),
        )
        self.missing: dict[Cell, str] = {}
        self.cells: dict[Cell, set[Step]] = {}
        self.console = Console(highlight=False)
        if not self.console.is_terminal:
            self.console = Console(highlight=False, width=130)

    @property
    def scale(self) -> Scale:
        """The preset's name."""
        return self.runs.scale

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
                    wanted.add("search")
        if self.arguments.dry_run:
            for cell in self.cells:
                for command in self.commands(cell):
                    print(said(command))
            self._announce()
            raise SystemExit(0)
        if self._announce() and self.scale != "smoke" and not self.arguments.yes:
            raise SystemExit(f"the scale {self.scale!r} starts only with --yes")
        with warm_servers():
            for cell in self.cells:
                self._fill(cell)

    def _fill(self, cell: Cell) -> None:
        wanted, runs = self.cells[cell], self.runs
        if not runs.searched(cell):
            with self._proposer(cell) as runs:
                if cell not in self.missing:
                    self._do(runs.search_command(cell))
        if cell in self.missing:
            return
        if reason := runs.why_nothing(cell):
            self.missing[cell] = reason
        if "train" in wanted and not reason and (seeds := runs.seeds_left(cell)):
            apart = len(seeds) < runs.seeds  # some are known: the others need not be consecutive
            for some in [[seed] for seed in seeds] if apart else [seeds]:
                self._do(runs.train_command(cell, some))
        if "analyse" in wanted and not reason and not runs.analysed(cell):
            self._do(runs.analyse_command(cell))

    def _do(self, command: Command) -> None:
        self.console.print(f"$ {said(command)}", markup=False, soft_wrap=True)
        if code := derl_gym(command):
            print(f"{self.name}: stopped; the same command goes on from here")
            raise SystemExit(code)

    @contextlib.contextmanager
    def _proposer(self, cell: Cell) -> Iterator[Runs]:
        """The runs with the prompted proposer's endpoint, which the smoke scale starts itself."""
        given = self.arguments
        if cell.agent != "prompted" or not self._stand_in():
            if cell.agent == "prompted" and not importlib.util.find_spec("openai"):
                self.missing[cell] = "the prompted proposer needs openai: pip install 'derl-gym[prompted]'"
            elif cell.agent == "prompted" and not (given.base_url or os.environ.get("OPENAI_API_KEY")):
                self.missing[cell] = "the prompted proposer needs OPENAI_API_KEY, or --base-url and --prompted-model"
            yield self._with_proposer(cell)
            return
        if reason := why_not():
            self.missing[cell] = reason
            yield self.runs
            return
        folder, port = self.runs.out / self.scale / "served", self._port(cell)
        loop = self.runs.loop(cell)
        model = servable(loop.inner.policy or loop.task.base_policy, folder)
        with served(model, port, folder / "log.txt"):
            yield self._with_proposer(cell, model, f"http://127.0.0.1:{port}/v1")

    def _stand_in(self) -> bool:
        return self.scale == "smoke" and not self.arguments.base_url and not os.environ.get("OPENAI_API_KEY")

    def _with_proposer(self, cell: Cell, model: str = "", base_url: str = "") -> Runs:
        if cell.agent != "prompted":
            return self.runs
        options = [f"model={model or self.arguments.prompted_model}"]
        if url := base_url or self.arguments.base_url:
            options.append(f"base_url={url}")
        options += ["max_tokens=40"] if base_url else []
        return dataclasses.replace(self.runs, prompted=tuple(options))

    def _port(self, cell: Cell) -> int:
        """The port that a search was begun with, which it must go on with; else a free one."""
        folder = self.runs.folder(cell)
        if (folder / SEARCH_FILE).exists():
            return int(re.findall(r":(\d+)/", Plan.read(folder).agent_options["base_url"])[0])
        return free_port()

    # -- what is said -----------------------------------------------------------------------------------

    def commands(self, cell: Cell) -> list[Command]:
        """All commands of a cell, from scratch."""
        wanted = self.cells[cell]
        runs = self._with_proposer(cell)
        if cell.agent == "prompted" and self._stand_in():
            loop = runs.loop(cell)
            model = str(runs.out / self.scale / "served" / Path(loop.inner.policy or loop.task.base_policy).name)
            runs = self._with_proposer(cell, model, f"http://127.0.0.1:{PORT}/v1")
        commands = [runs.search_command(cell)] if "search" in wanted else []
        commands += [runs.train_command(cell, range(runs.seeds))] if "train" in wanted else []
        return [*commands, runs.analyse_command(cell)] if "analyse" in wanted else commands

    def _announce(self) -> bool:
        """Say what is left to run. Returns whether anything is."""
        left = {cell: self.runs.left(cell, "train" in wanted) for cell, wanted in self.cells.items()}
        runs, stages, hours = (sum(one[key] for one in left.values()) for key in ("runs", "stages", "hours"))
        tests = sum("analyse" in wanted and not self.runs.analysed(cell) for cell, wanted in self.cells.items())
        print(
            f"{self.name}, {self.scale} scale: {len(left)} run directories in {self.runs.out / self.scale}; at most "
            f"{runs} inner runs, {stages} final trainings or rounds and {tests} test analyses left"
        )
        if self.scale != "smoke" and runs + stages:
            print(
                f"at most {hours:,.0f} GPU hours where every inner run takes its cap of time, as docs/scaling.md has it"
            )
            print(f"policies kept for the test analyses: about {self._gigabytes(left):,.0f} GB on disk")
        if self.scale == "paper" and runs:
            low, high = (runs / 8 * flops for flops in FLOPS_PER_OUTER_STEP)
            print(f"{low:.1e} to {high:.1e} FLOPs of search, at what the paper says of its 3B policy (appendix H)")
        if self.scale == "smoke":
            print(NO_RESULT)
        return bool(runs + stages + tests)

    def _gigabytes(self, left: dict[Cell, dict[str, float]]) -> float:
        """Size of the kept policies, from the billions of parameters in their names."""
        total = 0.0
        for cell, one in left.items():
            inner = self.runs.loop(cell).inner
            policy = inner.policy or self.runs.loop(cell).task.base_policy
            billions = float((re.findall(r"([\d.]+)B\b", policy) or ["0"])[0])
            total += one["kept"] * billions * (4 if inner.dtype == "float32" else 2)
        return total

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
