"""``derl-gym compare``: several agents on the same environment, the same seeds and the same budget."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any, Self

import tyro

from derl_gym.cli.command import Command, EnvironmentId, Folder, Settings, new_folder, pairs
from derl_gym.cli.report import print_tables
from derl_gym.cli.search import COMPARE_FILE, MACHINE, Plan, finished, write_json
from derl_gym.fields import check_fields
from derl_gym.report import load_runs, write_report
from derl_gym.report.runs import SEARCH_FILE
from derl_gym.trials.pool import warm_servers


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What a comparison was started with; ``compare.json`` in its folder.

    Attributes:
        environment: The id.
        settings: Keyword arguments of the environment, for every agent.
        agents: Names.
        agent_options: Options by agent.
        seeds: Every agent searches once with each.
    """

    environment: str
    settings: dict[str, Any]
    agents: list[str]
    agent_options: dict[str, dict[str, Any]]
    seeds: list[int]

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The comparison of a folder.

        Raises:
            ValueError: when its file is none that this version reads.
        """
        path = folder / COMPARE_FILE
        try:
            return cls(**json.loads(path.read_text()))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} is no description of a comparison: {error}") from error

    def write(self, folder: Path) -> None:
        """Leave the description in the folder, or make sure that it is the one there.

        Raises:
            ValueError: when something else lives there.
        """
        if (folder / COMPARE_FILE).exists():
            there, here = Comparison.read(folder)._fixed(), self._fixed()
            if differing := [f"{key} {there[key]!r}, not {here[key]!r}" for key in here if there[key] != here[key]]:
                raise ValueError(
                    f"{folder} holds another comparison ({'; '.join(differing)}): choose another --out, or "
                    f"`derl-gym resume {folder}`"
                )
            return
        if (folder / "ledger.sqlite").exists() or (folder / SEARCH_FILE).exists():
            raise ValueError(f"{folder} is the run directory of a search: choose another --out for the comparison")
        write_json(folder / COMPARE_FILE, dataclasses.asdict(self))

    def _fixed(self) -> dict[str, Any]:
        settings = {key: value for key, value in self.settings.items() if key not in MACHINE}
        return json.loads(json.dumps(dataclasses.asdict(self) | {"settings": settings}))

    def run(self, folder: Path, machine: dict[str, Any] | None = None) -> None:
        """Run every search that is not finished, then write the report.

        Args:
            folder: A run directory per agent and seed is made in it.
            machine: Settings that may differ this time, such as ``workers``.
        """
        plans = [
            Plan(self.environment, self.settings | (machine or {}), agent, self.agent_options.get(agent, {}), seed)
            for seed in self.seeds
            for agent in self.agents
        ]
        run_dirs = [folder / f"{plan.agent.replace(':', '.')}-seed{plan.seed}" for plan in plans]
        with warm_servers():
            for i, (plan, run_dir) in enumerate(zip(plans, run_dirs, strict=True), start=1):
                if finished(run_dir):
                    plan.write(run_dir)
                else:
                    title = f"{i} of {len(plans)}: {plan.agent} on {plan.environment}, seed {plan.seed}"
                    plan.run(run_dir, title)
        runs = load_runs(run_dirs)
        print_tables(runs)
        try:
            print(f"report: {write_report(runs, folder / 'report.html')}")
        except ImportError as error:
            print(f"no HTML report: {error}")
        print(f"results: {folder}")


@dataclasses.dataclass
class Compare(Command):
    """Search with several agents, each with the same seeds, and report on them together."""

    env: EnvironmentId
    """Id of the environment."""
    agents: Annotated[tuple[str, ...], tyro.conf.arg(metavar="AGENT ...")] = ("random", "derl")
    """Names of the agents, as in `derl-gym agents`; my_package.my_module:MyAgent is one of yours."""
    agent_options: Annotated[tuple[str, ...], tyro.conf.arg(metavar="AGENT.KEY=VALUE ...")] = ()
    """Options as AGENT.KEY=VALUE: --agent-options derl.lr=2e-3 random.prior=charset."""
    seeds: int = 1
    """Number of seeds."""
    first_seed: int = 0
    """The first of them; the others follow."""
    out: Folder = None
    """Folder. Without it: a new one under runs/. One that holds this comparison is gone on with."""
    settings: tyro.conf.OmitArgPrefixes[Settings] = dataclasses.field(default_factory=Settings)

    def run(self) -> int:
        """Run every search, then the report."""
        from derl_agents import AGENTS

        if unknown := [agent for agent in self.agents if agent not in AGENTS]:
            raise ValueError(f"there is no agent {unknown[0]!r}; there are {', '.join(AGENTS)}")
        for agent in self.agents:
            AGENTS[agent]  # what it needs and is not here is said now, not after the searches of others
        if len(set(self.agents)) < len(self.agents) or not self.agents:
            raise ValueError(f"--agents expects names, each once, not {' '.join(self.agents) or 'nothing'}")
        if self.seeds < 1:
            raise ValueError(f"--seeds must be at least 1, not {self.seeds}")
        options: dict[str, dict[str, Any]] = {}
        for name, value in pairs(self.agent_options, "--agent-options").items():
            agent = max((agent for agent in self.agents if name.startswith(f"{agent}.")), key=len, default="")
            key = name[len(agent) + 1 :]
            if not agent or not key:
                raise ValueError(f"--agent-options expects AGENT.KEY=VALUE with a compared agent, not {name!r}")
            options.setdefault(agent, {})[key] = value
        seeds = list(range(self.first_seed, self.first_seed + self.seeds))
        comparison = Comparison(self.env, self.settings.to_dict(), list(self.agents), options, seeds)
        folder = self.out or new_folder(self.env, "compare")
        comparison.write(folder)
        Command.resumable = folder
        comparison.run(folder)
        return 0
