"""``derl-gym score``: train with given programs and read their validation scores."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from derl_gym.cli.command import Command, EnvironmentId, Failed, Folder, RunSettings, make_envs, new_folder
from derl_gym.cli.programs import task_of
from derl_gym.cli.progress import SearchProgress
from derl_gym.envs.outer_loop import InfrastructureFailure
from derl_gym.programs import InvalidProgram
from derl_gym.protocol import named_program
from derl_gym.report.estimates import estimate


@dataclasses.dataclass
class Score(Command):
    """Train inner policies with one or several programs, on as many seeds, and print their validation scores."""

    env: EnvironmentId
    """Id of the environment."""
    programs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PROGRAM ...")]
    """Reward programs, or the baselines outcome, outcome+format and average."""
    seeds: int = 1
    """Inner runs per program, each with another seed."""
    seed: int = 0
    """What the seeds are derived from."""
    out: Folder = None
    """Run directory. Without it: a new one under runs/. One that was broken off is gone on with."""
    settings: tyro.conf.OmitArgPrefixes[RunSettings] = dataclasses.field(default_factory=RunSettings)

    def run(self) -> int:
        """Train and print the scores."""
        if not self.programs or self.seeds < 1:
            raise ValueError("which program, and how often? derl-gym score ENV PROGRAM [--seeds N], N at least 1")
        folder = self.out or new_folder(self.env, "score")
        given = self.settings.to_dict()
        task = task_of(self.env, task_options=given.get("task_options"))
        names = [primitive.name for primitive in task.primitives]
        texts = [named_program(program, names) for program in self.programs for _ in range(self.seeds)]
        fixed = {"outer_steps": 1, "group_size": len(texts), "cache": "off"}
        envs = make_envs(self.env, given, folder, **fixed)
        try:
            world: Any = envs.unwrapped
            actions = np.stack([world.programs.encode(text) for text in texts])
            envs.reset(seed=self.seed)
            with SearchProgress(f"{len(texts)} inner runs on {self.env}", 1, len(texts)) as progress:
                world.loop.on_scored, world.loop.on_news = progress.scored, progress.news
                _, scores, *_, info = envs.step(actions)
        except (InvalidProgram, InfrastructureFailure) as error:
            raise Failed(str(error)) from error
        finally:
            envs.close()
        self._print([float(score) for score in scores], info["final_info"], folder)
        return 0

    def _print(self, all_scores: list[float], info: dict[str, Any], folder: Path) -> None:
        table = Table(box=box.SIMPLE_HEAD)
        for column in ("program", "validation score, %", "single runs, %", "structure"):
            table.add_column(column, overflow="fold")
        for i, program in enumerate(self.programs):
            mine = range(i * self.seeds, (i + 1) * self.seeds)
            scores = [all_scores[j] for j in mine]
            reasons = dict.fromkeys(str(info["reason"][j]) for j in mine if info["status"][j] != "scored")
            singles = " ".join(f"{100 * score:.1f}" for score in scores)
            table.add_row(
                program, str(estimate(scores)), "; ".join([singles, *reasons]), str(info["structure"][mine[0]])
            )
        Console().print(table)
        print(f"results: {folder}")
