"""``derl-gym warmstart``: teach an inner policy to act in the tag format, on expert episodes, before any reward."""

from __future__ import annotations

import dataclasses
import json
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.markup import escape

from derl_gym.cli.command import Command, EnvironmentId, Failed, check_packages, find_spec, pairs
from derl_gym.cli.programs import task_of
from derl_gym.envs.identity import policy_folder
from derl_gym.envs.settings import make_settings
from derl_gym.inner.config import InnerConfig
from derl_gym.tasks.agent import AgentTask
from derl_gym.trials.private import private_folder, write_private
from derl_gym.trials.run_directory import locked

REASONS = 10
"""Reasons that are told of why games were left out: each damaged game has its own."""


@dataclasses.dataclass
class Warmstart(Command):
    """Train an inner policy on expert episodes of an agent task, and keep it for inner.policy.

    The episodes are walkthroughs of the inner-training games, with thoughts written by rule; --data takes others.
    """

    env: EnvironmentId
    """Id of the environment."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """Folder for the episodes (episodes.jsonl), the trained policy (policy) and what was done (warm_start.json). One
    that an interrupted warm start left will do."""
    data: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Episodes of your own, as JSONL (docs/warm_start.md), instead of walkthroughs."""
    episodes: Annotated[int, tyro.conf.arg(metavar="N")] = 200
    """Walkthroughs to learn from, the kinds of games in turn."""
    slips: Annotated[float, tyro.conf.arg(metavar="P")] = 0.1
    """How probable it is that the expert tries what is not possible first, and then reflects on it."""
    epochs: int = 5
    """Passes over the episodes."""
    batch_size: int = 16
    """Episodes per optimiser step."""
    micro_batch_size: int = 1
    """Episodes per forward pass."""
    learning_rate: float = 1e-5
    seed: int = 0
    """Of the order of the episodes and of the slips."""
    preset: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Settings for a machine of some size: the policy, its precision and the tokens of an episode are the preset's."""
    inner: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE ...")] = ()
    """Settings of the inner runs as KEY=VALUE, such as policy=FOLDER or max_episode_tokens=4096. Walkthroughs may have
    max_turns turns, or the task's own where it is not given here, whatever the preset's."""
    task_options: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE ...")] = ()
    """Options of the task as KEY=VALUE, such as check_data=False."""
    data_dir: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Local data, for tasks that read some."""

    def run(self) -> int:
        """Make or read the episodes, train, and say where the policy lies."""
        check_packages()
        if self.episodes < 1 or not 0 <= self.slips <= 1:
            raise ValueError("--episodes must be at least 1, and --slips a probability")
        inner = pairs(self.inner, "--inner")
        given = {"preset": self.preset, "inner": inner}
        settings = make_settings(find_spec(self.env).kwargs | {key: value for key, value in given.items() if value})
        task = task_of(self.env, self.data_dir, pairs(self.task_options, "--task-options"))
        if not isinstance(task, AgentTask):
            raise ValueError(f"{self.env} plays no episodes: a warm start is for agent tasks")
        config = task.inner.override(**settings.inner)
        longest = config.max_turns if "max_turns" in inner else task.inner.max_turns
        start = config.policy or task.base_policy
        if (folder := policy_folder(start)) is not None:
            start = str(folder)
        if self.out.exists() and not self.out.is_dir():
            raise ValueError(f"--out must be a folder: {self.out} is a file")
        private_folder(self.out)
        with locked(self.out / "lock"):
            return self._run(task, start, config, longest)

    def _run(self, task: AgentTask, start: str, config: InnerConfig, longest: int) -> int:
        policy = self.out / "policy"
        if policy.exists():
            raise ValueError(f"{policy} is there already: choose another --out")
        from derl_gym.inner.warmstart import WarmStart, reader_of, train  # torch
        from derl_gym.tasks.expert import read_rows

        how = WarmStart(
            epochs=self.epochs,
            batch_size=self.batch_size,
            micro_batch_size=self.micro_batch_size,
            learning_rate=self.learning_rate,
            seed=self.seed,
        )
        console = Console(stderr=True, highlight=False)
        reader_of(start, config)  # a policy that will not do is found out now
        rows = read_rows(self.data) if self.data is not None else self._walkthroughs(task, longest, console)
        console.print(f"training {escape(start)} on {len(rows)} episodes")

        def ended(epoch: int, loss: float) -> None:
            console.print(f"epoch {epoch}/{how.epochs}: loss {loss:.4f} per token")

        found = train(start, rows, policy, how, config, ended)
        made = {"data": str(self.data)} if self.data is not None else {"slips": self.slips, "max_turns": longest}
        asked = {"env": self.env, "task_options": list(self.task_options), "policy": start, **made}
        found = {**asked, "settings": dataclasses.asdict(how), **found}
        write_private(self.out / "warm_start.json", json.dumps(found, indent=1))
        if found["too_long"]:
            console.print(f"{found['too_long']} episodes were too long for the policy and left out")
        print(f"policy: {policy} (use it with --inner policy={policy})")
        return 0

    def _walkthroughs(self, task: AgentTask, longest: int, console: Console) -> list[dict[str, Any]]:
        from derl_gym.tasks.expert import Experts

        examples = task.load("train")
        rows: list[dict[str, Any]] = []
        with task.open_pool(1) as pool, (self.out / "episodes.jsonl").open("w") as file:
            experts = Experts(task, pool, longest, self.slips, self.seed)
            for row in islice(experts.episodes(examples), self.episodes):
                rows.append(row)
                file.write(json.dumps(row) + "\n")
                if len(rows) % 20 == 0:
                    console.print(f"{len(rows)} of {self.episodes} episodes")
        for reason, count in experts.left_out.most_common(REASONS):
            console.print(f"{count} games left out: {escape(reason)}", soft_wrap=True)
        if more := sum(experts.left_out.values()) - sum(count for _, count in experts.left_out.most_common(REASONS)):
            console.print(f"{more} games left out for other reasons")
        if not rows:
            raise Failed(f"none of the {len(examples)} training games gave an expert episode")
        return rows
