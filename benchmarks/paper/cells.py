"""What the paper's tables are made of: run directories, the commands that fill them, and what came out.

A cell is one run directory, named by what it holds, so that scripts share searches and find them again. It is filled
by the package's own commands, `derl-gym search`, `train` and `analyse`, called in this process. The published numbers
are in published.py, the arguments and the printing in bench.py.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

from derl_gym.cli.command import find_spec
from derl_gym.cli.search import finished
from derl_gym.cli.train import paper_rule
from derl_gym.envs.outer_loop import OuterLoop
from derl_gym.envs.settings import Settings, make_settings
from derl_gym.inner.config import InnerConfig
from derl_gym.protocol import TEST_ANALYSIS, final_config, select
from derl_gym.trials.ledger import Ledger

Scale = Literal["paper", "single-gpu", "smoke"]
Step = Literal["search", "train", "analyse"]
Command = list[str]
PRIMITIVES = ("g1", "g2", "g3", "g4")
GSM8K_STEPS = {"paper": 7, "smoke": 2}
"""Outer steps of the studies on GSM8K: seven in the paper (appendix F.4), two where a proposer shall learn once."""

EPOCH_SECONDS = {("3B", False): 2784, ("1.5B", False): 1456, ("1.5B", True): 1293, ("0.5B", True): 510}
"""Size of the policy, whether adapters -> an epoch of GSM8K's search on an H100, estimated in docs/scaling.md."""
TIMES_GSM8K = {"GSM8K": 1, "MATH": 2, "MATH-GSM8K": 3}
"""Task -> how many times as long an epoch of it takes, from the same page."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """A search, or final trainings with a fixed reward.

    Attributes:
        task: ``"GSM8K"``, ``"MATH"`` or ``"MATH-GSM8K"``.
        program: A fixed reward by name; empty: the one that a search finds.
        agent: Who searches.
        variant: As in the environment.
        outer_steps: ``None``: the preset's.
        group_size: ``None``: the preset's.
        without: A primitive that programs may not use.
        flip: A primitive whose sign is turned round.
        policy: Inner policy at paper scale; empty: the task's.
        keep: Keep the inner policies, so that they can be tested after the search.
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

    @property
    def environment(self) -> str:
        """The id."""
        return f"DERL-{self.task}-v0"


def gsm8k_derl(scale: Scale, **changes: Any) -> Cell:
    """DERL-base on GSM8K, which Table 4 and Figures 3, 5 and 6 share; with changes, another search beside it."""
    base = Cell("GSM8K", outer_steps=GSM8K_STEPS.get(scale), keep=True)
    if not changes:
        return base
    return dataclasses.replace(base, keep=False, outer_steps=1 if scale == "smoke" else base.outer_steps, **changes)


@dataclasses.dataclass(frozen=True)
class Runs:
    """Where cells lie and how they are filled.

    Attributes:
        scale: The preset's name.
        out: Folder of all scales.
        policy: Inner policy of every cell; empty: the cell's own.
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

    def policy_of(self, cell: Cell) -> str:
        """The inner policy that a cell is told to start from; empty: the preset's."""
        return self.policy or (cell.policy if self.scale == "paper" else "")

    def loop(self, cell: Cell) -> OuterLoop:
        """The cell's settings, resolved as its environment resolves them. Touches neither data nor disk."""
        given: dict[str, Any] = {"preset": self.scale, "variant": cell.variant}
        given |= {key: value for key in ("outer_steps", "group_size") if (value := getattr(cell, key)) is not None}
        if policy := self.policy_of(cell):
            given["inner"] = {"policy": policy}
        settings: Settings = make_settings(find_spec(cell.environment).kwargs | given)
        return OuterLoop(settings, lambda: cell.environment)

    def folder(self, cell: Cell) -> Path:
        """The run directory."""
        loop = self.loop(cell)
        parts = [cell.task, Path(loop.inner.policy or loop.task.base_policy).name, cell.program or cell.agent]
        if not cell.program:
            parts += [cell.variant, f"{loop.settings.outer_steps}x{loop.settings.group_size}"]
            parts += [f"without-{cell.without}"] * bool(cell.without) + [f"flip-{cell.flip}"] * bool(cell.flip)
            parts += ["kept"] * cell.keep
        return self.out / self.scale / "-".join(parts)

    # -- commands ---------------------------------------------------------------------------------------

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
        if not cell.program:
            return ["train", "--run", str(self.folder(cell)), *number, "--workers", str(self.workers)]
        program = ["train", cell.environment, "--program", cell.program]
        return [*program, *number, *self._settings(cell), "--out", str(self.folder(cell))]

    def analyse_command(self, cell: Cell) -> Command:
        """Test scores of the inner policies that the search has kept."""
        return ["analyse", str(self.folder(cell)), "--workers", str(self.workers)]

    def _settings(self, cell: Cell) -> Command:
        command = ["--preset", self.scale, "--workers", str(self.workers)]
        policy = self.policy_of(cell)
        return [*command, "--inner", f"policy={policy}"] if policy else command

    # -- what is done -----------------------------------------------------------------------------------

    def searched(self, cell: Cell) -> bool:
        """Whether there is no search left to do."""
        return bool(cell.program) or finished(self.folder(cell))

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

    def why_nothing(self, cell: Cell) -> str:
        """Why a finished search selects no program; empty when it selects one."""
        if cell.program:
            return ""
        with Ledger(self.folder(cell), readonly=True) as ledger:
            try:
                select(ledger, paper_rule(ledger.run_dir))
            except ValueError:
                return "none of the search's programs could be trained with, so that there is no final policy"
        return ""

    def results(self, cell: Cell) -> dict[str, Any]:
        """Test scores by benchmark and seed, the selected programs, and what the cell cost."""
        trials, finals = self.rows(cell)
        finals = sorted((row for row in finals if row["seed"] < self.seeds), key=lambda row: row["seed"])
        scores: dict[str, list[float]] = {}
        for row in finals:
            for benchmark, score in (row["result"].get("scores") or {self.loop(cell).task.name: row["test"]}).items():
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

    def left(self, cell: Cell, wanted: Collection[Step]) -> dict[str, float]:
        """What is still to be run: inner runs, final stages, test analyses; policies that are kept; GPU hours.

        The inner runs' hours are their caps, the final stages' an estimate, ``nan`` where docs/scaling.md has none.
        """
        if self.searched(cell) and self.why_nothing(cell):
            return {"runs": 0, "stages": 0, "tests": 0, "hours": 0, "final_hours": 0, "kept": 0}
        loop = self.loop(cell)
        settings, config = loop.settings, final_config(loop, cell.variant == "full")
        runs = 0
        if not self.searched(cell):
            every = settings.outer_steps * settings.group_size + (loop.inner.max_flops_ratio is not None)
            runs = max(0, every - len(self.rows(cell)[0]))
        stages = len(self.seeds_left(cell)) * (settings.outer_steps if cell.variant == "full" else 1)
        stages *= "train" in wanted
        hours = runs * (loop.inner.max_seconds or 0.0) / 3600
        final_hours = stages * self._final_hours(cell, config) if stages else 0.0
        tests = "analyse" in wanted and not self.analysed(cell)
        kept = runs if cell.keep else min(runs, settings.outer_steps) if cell.variant == "full" else 0
        numbers = {"runs": runs, "stages": stages, "tests": int(tests), "kept": kept + stages}
        return {**numbers, "hours": hours, "final_hours": final_hours}

    def _final_hours(self, cell: Cell, config: InnerConfig) -> float:
        """Of one final stage on an H100; the full training set is 5/4 of the search's."""
        size = re.search(r"[\d.]+B\b", config.policy or self.loop(cell).task.base_policy)
        rate = EPOCH_SECONDS.get((size[0] if size else "", config.lora_rank is not None), math.nan)
        seconds = 1.25 * (config.epochs or math.nan) * TIMES_GSM8K[cell.task] * rate
        return min(seconds, config.max_seconds or math.inf) / 3600


def _stages(policy: Path) -> list[dict[str, Any]]:
    """Results of a final training's stages, of which the ledger holds the last; none where the folder is gone."""
    return [json.loads(file.read_text()) for file in sorted(policy.parents[1].glob("stage-*/result.json"))]


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
