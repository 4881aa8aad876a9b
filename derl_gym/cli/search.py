"""``derl-gym search`` and ``derl-gym resume``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tyro
from rich.console import Console

from derl_gym.cli.command import Command, EnvironmentId, Failed, Folder, Settings, make_envs, new_folder, pairs
from derl_gym.cli.progress import SearchProgress
from derl_gym.envs.outer_loop import InfrastructureFailure
from derl_gym.fields import check_fields
from derl_gym.report import summary_table
from derl_gym.report.runs import SEARCH_FILE, load_runs
from derl_gym.trials.database import explained
from derl_gym.trials.private import private_folder, write_private

COMPARE_FILE = "compare.json"
MACHINE = ("workers", "pool", "cache_dir", "on_infrastructure_failure")
"""Settings that may change when a search is taken up again."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a search was started with; ``search.json`` in its run directory.

    Attributes:
        environment: The id.
        settings: Keyword arguments of the environment.
        agent: The agent's name.
        agent_options: Its options.
        seed: Seed of the episode and of the agent.
    """

    environment: str
    settings: dict[str, Any]
    agent: str
    agent_options: dict[str, Any]
    seed: int

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The plan of a run directory.

        Raises:
            ValueError: when there is none, or none that this version reads.
        """
        path = folder / SEARCH_FILE
        try:
            return cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            raise ValueError(
                f"{folder} was not made by derl-gym search or compare: it has no {SEARCH_FILE}. What another command "
                "or a script of yours wrote goes on when that runs again with the same folder"
            ) from None
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} is no description of a search: {error}") from error

    def write(self, folder: Path) -> None:
        """Leave the plan in its run directory, or make sure that it is the one there.

        Raises:
            ValueError: when another search lives there.
        """
        path = folder / SEARCH_FILE
        if path.exists():
            there, here = self._fixed(Plan.read(folder)), self._fixed(self)
            keys = [key for key in there | here if there.get(key) != here.get(key)]
            if differing := [f"{key} {there.get(key)!r}, not {here.get(key)!r}" for key in keys]:
                raise ValueError(
                    f"{folder} holds another search ({'; '.join(differing)}): choose another --out, or "
                    f"`derl-gym resume {folder}`"
                )
            return
        write_json(path, dataclasses.asdict(self))

    @staticmethod
    def _fixed(plan: Plan) -> dict[str, Any]:
        fields = json.loads(json.dumps(dataclasses.asdict(plan)))
        for group in ("settings", "agent_options"):
            fields |= {f"{group}.{key}": value for key, value in fields.pop(group).items() if key not in MACHINE}
        return fields

    def run(self, folder: Path, title: str) -> None:
        """Search, or go on searching, in a run directory. Shows progress.

        Raises:
            ValueError: for an agent, option or setting that does not exist.
            Failed: when an inner run failed for good.
        """
        from derl_agents import AGENTS, search

        if self.agent not in AGENTS:
            raise ValueError(f"there is no agent {self.agent!r}; there are {', '.join(AGENTS)}")
        envs = make_envs(self.environment, self.settings, folder)
        try:
            world: Any = envs.unwrapped
            if (folder / COMPARE_FILE).exists():
                raise ValueError(f"{folder} holds a comparison: choose another --out, or `derl-gym resume {folder}`")
            if taken := sorted({"envs", "options", "seed"} & set(self.agent_options)):
                raise ValueError(f"{taken[0]} is no option of an agent (--seed sets the seed)")
            agent = AGENTS[self.agent](envs, seed=self.seed, **self.agent_options)
            self.write(folder)
            with SearchProgress(title, world.outer_steps, world.group_size) as progress:
                world.loop.on_scored, world.loop.on_news = progress.scored, progress.news
                search(envs, agent, seed=self.seed, on_step=progress.step)
        except InfrastructureFailure as error:
            raise Failed(str(error)) from error
        finally:
            envs.close()


def finished(folder: Path) -> bool:
    """Whether a run directory holds a whole search."""
    if not (folder / "ledger.sqlite").exists():
        return False
    run = load_runs([folder])[0]  # the folder's own; what lies below it comes after
    return len(run.steps()) >= run.config["outer_steps"]


def refuse_comparison(folder: Path) -> None:
    """A command about one search, given a comparison's folder, says where its searches are.

    Raises:
        ValueError: when the folder holds a comparison.
    """
    if (folder / COMPARE_FILE).exists():
        found = sorted(str(path.parent) for path in folder.glob("*/ledger.sqlite"))
        there = f"name one of its run directories, {', '.join(found)}" if found else "no search in it has begun yet"
        raise ValueError(f"{folder} holds a comparison: {there}")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file that is there whole or not at all."""
    with explained(path.parent):
        private_folder(path.parent)
        write_private(path, json.dumps(value, indent=1) + "\n")


def show_results(folder: Path) -> None:
    """The last lines of a search."""
    Console().print(summary_table([folder]))
    print(f"results: {folder}")
    print(f"next: derl-gym report {folder}")


@dataclasses.dataclass
class Search(Command):
    """Search for a reward program with one agent."""

    env: EnvironmentId
    """Id of the environment; "my_package:DERL-MyTask-v0" imports my_package first."""
    agent: str = "derl"
    """Who proposes: one of `derl-gym agents`, or my_package.my_module:MyAgent, a class of yours."""
    agent_options: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE ...")] = ()
    """The agent's options as KEY=VALUE: --agent-options lr=2e-3 epochs=4."""
    seed: int = 0
    """Seed of the inner runs and of the agent."""
    out: Folder = None
    """Run directory. Without it: a new one under runs/. One that holds this very search is gone on with."""
    settings: tyro.conf.OmitArgPrefixes[Settings] = dataclasses.field(default_factory=Settings)

    def run(self) -> int:
        """Search and print the results."""
        options = pairs(self.agent_options, "--agent-options")
        plan = Plan(self.env, self.settings.to_dict(), self.agent, options, self.seed)
        folder = self.out or new_folder(self.env, f"{self.agent.replace(':', '.')}-seed{self.seed}")
        Command.resumable = folder
        plan.run(folder, f"{self.agent} on {self.env}, seed {self.seed}")
        show_results(folder)
        return 0


@dataclasses.dataclass
class Resume(Command):
    """Go on with a search or a comparison that was broken off. No program is asked for or trained twice."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Its folder."""
    workers: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Inner runs at a time; without it, as before."""
    pool: Literal["processes", "ray"] | None = None
    """Where they go; without it, as before."""

    def run(self) -> int:
        """Take up what the folder holds."""
        from derl_gym.cli.compare import Comparison

        if not self.folder.is_dir():
            raise ValueError(f"there is no folder {self.folder}")
        Command.resumable = self.folder
        given = {"workers": self.workers, "pool": self.pool}
        machine = {name: value for name, value in given.items() if value is not None}
        if (self.folder / COMPARE_FILE).exists():
            Comparison.read(self.folder).run(self.folder, machine)
            return 0
        plan = Plan.read(self.folder)
        plan = dataclasses.replace(plan, settings=plan.settings | machine)
        plan.run(self.folder, f"{plan.agent} on {plan.environment}, seed {plan.seed}, resumed")
        show_results(self.folder)
        return 0
