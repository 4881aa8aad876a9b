"""``derl-gym audit`` and ``derl-gym envs``: what can be said without running anything."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Annotated, Any

import tyro
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import derl_gym
from derl_gym.cli.agents import descriptions
from derl_gym.cli.command import Command, Failed, find_spec, pairs
from derl_gym.envs.settings import make_settings
from derl_gym.programs import InvalidProgram, RewardProgram, states_of
from derl_gym.tasks import InnerConfig, Primitive, Task, load_task


@dataclasses.dataclass
class Envs(Command):
    """List the environments; tell of one, its task, primitives and presets; check it, or show its settings.

    A check reads the training and validation examples; it exits with 1 when it finds a fault.
    """

    env: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")] = None
    """Id of an environment to tell of; without it, all are listed."""
    check: tyro.conf.FlagCreatePairsOff[bool] = False
    """Check the task of ENV: its splits, its primitives, and both on its gold solutions."""
    data_dir: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Local data for --check."""
    task_options: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE ...")] = ()
    """Options of the task as KEY=VALUE, for --check: --task-options check_data=False."""
    settings: tyro.conf.FlagCreatePairsOff[bool] = False
    """Show the settings of ENV's inner runs, which --inner changes, with their values."""
    preset: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """For --settings: with this preset instead of the environment's own."""

    def run(self) -> int:
        """Print the list, an environment's description or settings, or what the check finds."""
        console = Console(highlight=False)
        if not self.check and (self.data_dir is not None or self.task_options):
            raise ValueError("--data-dir and --task-options go with ENV --check")
        if not self.settings and self.preset is not None:
            raise ValueError("--preset goes with ENV --settings")
        if self.check and self.settings:
            raise ValueError("--check and --settings are two questions: ask one at a time")
        if self.env is None:
            if self.check or self.settings:
                raise ValueError("of which environment? --check and --settings go with ENV")
            return self._list(console)
        if self.check:
            return self._check(self.env)
        if self.settings:
            return self._show(self.env, console)
        return self._tell(self.env, console)

    def _list(self, console: Console) -> int:
        for environment in derl_gym.ENVIRONMENTS:
            task = task_of(environment)
            what = task.description.partition(". ")[0]
            console.print(f"[bold]{environment}[/]: {escape(what)}", no_wrap=True, overflow="ellipsis")
            names = ", ".join(primitive.name for primitive in task.primitives)
            console.print(f"    primitives {names}; presets {', '.join(task.presets) or 'none'}", soft_wrap=True)
        console.print("derl-gym envs ENV tells what the primitives and presets of one are.", soft_wrap=True)
        return 0

    def _tell(self, environment: str, console: Console) -> int:
        task = task_of(environment)
        console.print(f"[bold]{environment}[/]: {escape(task.description)}")
        table = Table(box=box.SIMPLE_HEAD, show_header=False)
        for primitive in task.primitives:
            table.add_row(primitive.name, escape(primitive.description))
        for name, preset in task.presets.items():
            table.add_row(f"preset {name}", escape(preset.description))
        console.print(table)
        return 0

    def _check(self, environment: str) -> int:
        from derl_gym.testing import check_task

        report = check_task(task_of(environment, self.data_dir, pairs(self.task_options, "--task-options")))
        for line in report.lines:
            print(line)
        for problem in report.problems:
            print(f"problem: {problem}")
        if report.problems:
            raise Failed(f"{environment}: {len(report.problems)} problem" + "s" * (len(report.problems) > 1))
        print(f"{environment}: no problem found")
        return 0

    def _show(self, environment: str, console: Console) -> int:
        given = find_spec(environment).kwargs
        chosen = make_settings(given if self.preset is None else given | {"preset": self.preset})
        task = task_of(environment)
        config = task.inner.override(**chosen.inner)
        values = dataclasses.asdict(config) | {"policy": config.policy or task.base_policy}
        described = descriptions(InnerConfig)
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("setting", no_wrap=True)
        table.add_column("value", overflow="fold")
        table.add_column("what it is")
        for name, value in values.items():
            table.add_row(name, escape(str(value)), escape(described.get(name, "").replace("``", "")))
        console.print(f"[bold]{environment}[/], inner runs" + (f", preset {chosen.preset}" if chosen.preset else ""))
        console.print(table)
        return 0


@dataclasses.dataclass
class Audit(Command):
    """Say what a reward program is like, without training with it.

    Exits with 1 when the text is no reward program.
    """

    program: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PROGRAM")]
    """The program, for example "g1+0.5*g2"."""
    k: Annotated[int, tyro.conf.arg(aliases=["-k"], metavar="K")] = 4
    """Number of primitives, taken to be 0 or 1."""
    env: Annotated[str | None, tyro.conf.arg(metavar="ENV")] = None
    """Take the primitives of this environment instead."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print JSON."""

    def run(self) -> int:
        """Print what the analysis finds."""
        if not 1 <= self.k <= 99:
            raise ValueError(f"-k must be a whole number from 1 to 99, not {self.k}")
        if self.env is None:
            primitives = tuple(Primitive(f"g{i + 1}", "binary", lambda completion, example: 0.0) for i in range(self.k))
            states = states_of(primitives)
        else:
            task = task_of(self.env)
            primitives, states = task.primitives, task.states()
        try:
            program = RewardProgram.parse(self.program, k=len(primitives))
        except InvalidProgram as error:
            shown = self.program if len(self.program) <= 80 else f"{self.program[:80]}..."
            raise Failed(f"{shown!r} is no reward program: {error}") from error
        analysis = program.analyse(primitives, states=states)
        facts = {
            "program": program.text,
            "latex": program.latex(),
            **analysis.to_dict(),
            "key": program.equivalence_key(states),
        }
        if self.json:
            print(json.dumps(facts, allow_nan=False))
        else:
            _print(facts, analysis.bounds, len(states))
        return 0


def task_of(environment: str, data_dir: str | None = None, task_options: dict[str, Any] | None = None) -> Task:
    """The task of a registered id, with the data that a search would use.

    Args:
        environment: The id; see :func:`derl_gym.cli.command.find_spec`.
        data_dir: Local data, instead of the registration's.
        task_options: Options of the task, on top of the registration's.
    """
    settings = find_spec(environment).kwargs
    options = {**(settings.get("task_options") or {}), **(task_options or {})}
    folder = settings.get("data_dir") if data_dir is None else data_dir
    if folder is not None:
        options["data_dir"] = os.fspath(folder)
    return load_task(settings["task"], options, settings.get("flip", ()))


def _print(facts: dict[str, Any], bounds: tuple[float, float], n_states: int) -> None:
    undefined = facts["undefined"] if isinstance(facts["undefined"], int) else len(facts["undefined"])
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    colour = {"stable": "green", "unstable": "yellow", "invalid": "red"}[facts["structure"]]
    table.add_row("program", facts["program"])
    table.add_row("structure", f"[{colour}]{facts['structure']}[/]")
    for reason in facts["reasons"]:
        table.add_row("", reason)
    table.add_row("rewards", f"from {bounds[0]:.6g} to {bounds[1]:.6g}")
    table.add_row("monotone", "more of g1 is never worse" if facts["monotone_in_g1"] else "more of g1 can be worse")
    table.add_row("undefined", f"in {undefined} of {n_states} states")
    for state in [] if isinstance(facts["undefined"], int) else facts["undefined"][:4]:
        table.add_row("", ", ".join(f"g{i + 1}={value:g}" for i, value in enumerate(state)))
    table.add_row("latex", facts["latex"])
    table.add_row("class", facts["key"])
    Console(highlight=False, markup=True).print(table)
