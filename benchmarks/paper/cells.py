"""What the paper's tables are made of: run directories, the commands that fill them, and what came out.

A cell is one run directory, named by what it holds, so that scripts share searches and find them again. It is filled
by the package's own commands, `derl-gym warmstart`, `search`, `train` and `analyse`, called in this process. What is
left to run and what it costs is in costs.py, what the text worlds need besides in text_worlds.py, the published numbers
in published.py, the arguments and the printing in bench.py.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import text_worlds

from derl_gym.cli.command import find_spec
from derl_gym.cli.search import finished
from derl_gym.cli.train import paper_rule
from derl_gym.envs.outer_loop import OuterLoop
from derl_gym.envs.settings import Settings, make_settings
from derl_gym.protocol import TEST_ANALYSIS, select
from derl_gym.trials.ledger import Ledger

Scale = Literal["paper", "single-gpu", "smoke"]
Step = Literal["search", "train", "analyse"]
Command = list[str]
PRIMITIVES = ("g1", "g2", "g3", "g4")
GSM8K_STEPS = {"paper": 7, "smoke": 2}
"""Outer steps of the studies on GSM8K: seven in the paper (appendix F.4), two where a proposer shall learn once."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """A search, or final trainings with a fixed reward.

    Attributes:
        task: An id's middle: ``"GSM8K"``, ``"MATH-GSM8K"``, ``"ALFWorld-L2"``.
        program: A fixed reward by name; empty: the one that a search finds.
        agent: Who searches.
        variant: As in the environment.
        outer_steps: ``None``: the preset's.
        group_size: ``None``: the preset's.
        without: A primitive that programs may not use.
        flip: A primitive whose sign is turned round.
        policy: Inner policy at paper scale; empty: the task's.
        keep: Keep the inner policies, so that they can be tested after the search.
        inner: Further settings of a fixed reward's training, as KEY=VALUE.
        found_on: The task whose search gives the programs, where it has the same training data; empty: its own.
    """

    task: str
    program: str = ""
    agent: str = "derl"
    variant: Literal["base", "full"] = "base"
    outer_steps: int | None = None
    group_size: int | None = None
    without: str = ""
    flip: str = ""
    policy: str = ""
    keep: bool = False
    inner: tuple[str, ...] = ()
    found_on: str = ""

    @property
    def environment(self) -> str:
        """The id."""
        return f"DERL-{self.task}-v0"

    @property
    def source(self) -> Cell:
        """The cell whose search gives the programs."""
        return dataclasses.replace(self, task=self.found_on, found_on="") if self.found_on else self

    @property
    def searches(self) -> bool:
        """Whether there is a search in this cell."""
        return not self.program and not self.found_on


def gsm8k_derl(scale: Scale, **changes: Any) -> Cell:
    """DERL-base on GSM8K, which Table 4 and Figures 3, 5 and 6 share; with changes, another search beside it."""
    base = Cell("GSM8K", outer_steps=GSM8K_STEPS.get(scale), keep=True)
    if not changes:
        return base
    return dataclasses.replace(base, keep=False, outer_steps=1 if scale == "smoke" else base.outer_steps, **changes)


def alfworld_derl(scale: Scale) -> Cell:
    """DERL-base on ALFWorld L2, which Table 1 and Figures 4 and 6 share."""
    return Cell("ALFWorld-L2", outer_steps=2 if scale == "smoke" else None, keep=True)


@dataclasses.dataclass(frozen=True)
class Runs:
    """Where cells lie and how they are filled.

    Attributes:
        scale: The preset's name.
        out: Folder of all scales.
        policy: Inner policy of every cell, before a warm start; empty: the cell's own.
        seeds: Final policies per cell.
        workers: Inner runs at a time.
        prompted: Options of the agent ``prompted``, as KEY=VALUE.
    """

    scale: Scale
    out: Path
    policy: str
    seeds: int
    workers: int
    prompted: tuple[str, ...] = ()

    # -- what a cell is called, and what its settings come to -------------------------------------------

    def start_of(self, cell: Cell) -> str:
        """The inner policy that a cell is told to start from, or to warm-start; empty: the preset's."""
        return self.policy or (cell.policy if self.scale == "paper" else "")

    def policy_of(self, cell: Cell) -> str:
        """The inner policy that a cell is told to train."""
        if text_worlds.world_of(cell.task):
            return str(self.warm_folder(cell).absolute() / "policy")
        return self.start_of(cell)

    def loop(self, cell: Cell) -> OuterLoop:
        """The cell's settings, resolved as its environment resolves them, the policy as it is before a warm start.

        Touches neither data nor disk.
        """
        given: dict[str, Any] = {"preset": self.scale, "variant": cell.variant}
        given |= {key: value for key in ("outer_steps", "group_size") if (value := getattr(cell, key)) is not None}
        if start := self.start_of(cell):
            given["inner"] = {"policy": start}
        settings: Settings = make_settings(find_spec(cell.environment).kwargs | given)
        return OuterLoop(settings, lambda: cell.environment)

    def folder(self, cell: Cell) -> Path:
        """The run directory."""
        loop = self.loop(cell)
        parts = [cell.task, self._policy_name(cell), cell.program or cell.agent]
        parts += [setting.replace("=", "-") for setting in cell.inner]
        parts += [f"found-on-{cell.found_on}"] * bool(cell.found_on)
        if not cell.program:
            parts += [cell.variant, f"{loop.settings.outer_steps}x{loop.settings.group_size}"]
            parts += [f"without-{cell.without}"] * bool(cell.without) + [f"flip-{cell.flip}"] * bool(cell.flip)
            parts += ["kept"] * cell.keep
        return self.out / self.scale / "-".join(parts)

    def warm_folder(self, cell: Cell) -> Path:
        """Where the warm start of an agent cell's policy lies."""
        return self.out / self.scale / f"{text_worlds.trained_on(cell.task)}-{self._policy_name(cell)}-warm"

    def long_policy(self, cell: Cell) -> Path:
        """Where a copy of a small policy lies whose context holds an episode."""
        return self.out / self.scale / f"{self._policy_name(cell)}-long"

    @property
    def smoke_games(self) -> Path:
        """Where ALFWorld's games for smoke runs are generated."""
        return self.out / self.scale / "alfworld-games"

    def _policy_name(self, cell: Cell) -> str:
        loop = self.loop(cell)
        return Path(loop.inner.policy or loop.task.base_policy).name

    # -- commands ---------------------------------------------------------------------------------------

    def warm_command(self, cell: Cell) -> Command:
        """The warm start of an agent cell's policy, on games that all its levels train on."""
        task, start = text_worlds.trained_on(cell.task), self.start_of(cell)
        if self.scale == "smoke" and text_worlds.too_short(start):
            start = str(self.long_policy(cell))
        inner = [f"policy={start}"] if start else []
        command = ["warmstart", f"DERL-{task}-v0", "--preset", self.scale]
        if self.scale == "smoke":
            command += [*text_worlds.SMOKE_WARM_START, *inner, *text_worlds.smoke_games(task, self.smoke_games)]
        elif inner:
            command += ["--inner", *inner]
        return [*command, "--out", str(self.warm_folder(cell))]

    def search_command(self, cell: Cell) -> Command:
        """The search."""
        command = ["search", cell.environment, "--agent", cell.agent, *self._settings(cell)]
        command += ["--variant", cell.variant] if cell.variant != "base" else []
        command += ["--outer-steps", str(cell.outer_steps)] if cell.outer_steps else []
        command += ["--group-size", str(cell.group_size)] if cell.group_size else []
        command += ["--primitives", *(p for p in PRIMITIVES if p != cell.without)] if cell.without else []
        command += ["--flip", cell.flip] if cell.flip else []
        command += ["--keep-policies"] if cell.keep else []
        if cell.agent == "derl":
            command += ["--mask", "charset"]  # the paper's; parentheses need not balance
        options = {"random": ("prior=proposer",), "prompted": self.prompted}.get(cell.agent, ())
        if self.scale == "smoke" and cell.agent != "prompted":
            options = (*options, "cold_start_steps=60")
        command += ["--agent-options", *options] if options else []
        return [*command, "--out", str(self.folder(cell))]

    def train_command(self, cell: Cell, seeds: Sequence[int]) -> Command:
        """Final trainings with consecutive seeds, each tested once."""
        number = ["--seeds", str(len(seeds)), "--first-seed", str(seeds[0])]
        if cell.searches:
            return ["train", "--run", str(self.folder(cell)), *number, "--workers", str(self.workers)]
        programs = [cell.program]
        if cell.found_on:
            found = self.programs_of(cell.source) if self.searched(cell.source) else []
            programs = found or [f"(of {self.folder(cell.source).name})"]  # before there is one, for --dry-run
        command = ["train", cell.environment, "--program", *programs, *number, *self._settings(cell)]
        command += ["--variant", cell.variant] if cell.variant != "base" else []
        return [*command, "--out", str(self.folder(cell))]

    def analyse_command(self, cell: Cell) -> Command:
        """Test scores of the inner policies that the search has kept."""
        return ["analyse", str(self.folder(cell)), "--workers", str(self.workers)]

    def _settings(self, cell: Cell) -> Command:
        command = ["--preset", self.scale, "--workers", str(self.workers)]
        policy = self.policy_of(cell)
        inner = [f"policy={policy}"] * bool(policy) + list(cell.inner)
        command += ["--inner", *inner] if inner else []
        return command + (text_worlds.smoke_games(cell.task, self.smoke_games) if self.scale == "smoke" else [])

    # -- what is done -----------------------------------------------------------------------------------

    def warm(self, cell: Cell) -> bool:
        """Whether there is no warm start left to do."""
        return not text_worlds.world_of(cell.task) or (self.warm_folder(cell) / "warm_start.json").exists()

    def searched(self, cell: Cell) -> bool:
        """Whether there is no search left to do in this cell."""
        return not cell.searches or finished(self.folder(cell))

    def analysed(self, cell: Cell) -> bool:
        """Whether the kept policies have been tested."""
        return (self.folder(cell) / TEST_ANALYSIS).exists()

    def seeds_left(self, cell: Cell) -> list[int]:
        """Seeds of final policies that are not tested yet."""
        known = {row["seed"] for row in self.rows(cell)[1]}
        return [seed for seed in range(self.seeds) if seed not in known]

    def rows(self, cell: Cell) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Ended trials and first looks at the test split; both empty before the cell is begun."""
        if not (self.folder(cell) / "ledger.sqlite").exists():
            return [], []
        with Ledger(self.folder(cell), readonly=True) as ledger:
            trials = [row for row in ledger.trials() if row["status"] in ("scored", "invalid")]
            return trials, [row for row in ledger.finals() if not row["again"]]

    def programs_of(self, cell: Cell) -> list[str]:
        """What a finished search selects; empty where none of its programs could be trained with."""
        with Ledger(self.folder(cell), readonly=True) as ledger:
            try:
                return select(ledger, paper_rule(ledger.run_dir))
            except ValueError:
                return []

    def why_nothing(self, cell: Cell) -> str:
        """Why there is no program to train with after the search; empty when there is one."""
        if cell.program or self.programs_of(cell.source):
            return ""
        return "none of the search's programs could be trained with, so that there is no final policy"

    def results(self, cell: Cell) -> dict[str, Any]:
        """Test scores by benchmark and seed, the selected programs, and what the cell cost."""
        trials, finals = self.rows(cell)
        finals = sorted((row for row in finals if row["seed"] < self.seeds), key=lambda row: row["seed"])
        scores: dict[str, list[float]] = {}
        for row in finals:
            of_kinds = row["result"].get("scores") or {self.loop(cell).task.name: row["test"]}
            overall = {"success": row["test"]} if text_worlds.world_of(cell.task) else {}
            for benchmark, score in (of_kinds | overall).items():
                scores.setdefault(benchmark, []).append(score)
        spent = [stage for row in finals for stage in _stages(Path(row["policy"])) or [row["result"]]]
        return {
            "scores": scores,
            "programs": finals[0]["programs"] if finals else [],
            "n_test": finals[0]["result"]["n_evaluated"] if finals else 0,
            "inner_runs": len(trials),
            "search_seconds": sum(row["seconds"] or 0.0 for row in trials),
            "search_flops": sum(row["flops"] or 0.0 for row in trials),
            "final_seconds": sum(result["train_seconds"] + result["eval_seconds"] for result in spent),
            "final_flops": sum(result["flops"] for result in spent),
        }


def _stages(policy: Path) -> list[dict[str, Any]]:
    """Results of a final training's stages, of which the ledger holds the last; none where the folder is gone."""
    return [json.loads(file.read_text()) for file in sorted(policy.parents[1].glob("stage-*/result.json"))]


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
