"""ScienceWorld: the paper's scientific simulation (sections 4.1 to 4.4), at its three levels of generalization.

Settings are the paper's (section 4.1, appendix C), and RLVMR's where the paper refers to it. The world itself is in
``worlds/scienceworld.py``, the lists of games in ``worlds/levels.py``, primitives and verdict in ``agent.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from derl_gym.tasks.agent import AgentTask
from derl_gym.tasks.agent_settings import INNER, POLICY, SINGLE_GPU, SMOKE
from derl_gym.tasks.base import Preset
from derl_gym.tasks.step_scores import Compat
from derl_gym.tasks.worlds import WorldPool
from derl_gym.tasks.worlds.levels import Level, scienceworld_level, split_games

FORMS = """Actions, where OBJ is an object in reach or a place next door:
open OBJ; close OBJ; activate OBJ; deactivate OBJ; use OBJ on OBJ; pick up OBJ; put down OBJ; move OBJ to OBJ;
pour OBJ in OBJ; dunk OBJ in OBJ; mix OBJ; eat OBJ; flush OBJ; read OBJ; look around; look at OBJ; look in OBJ;
go to OBJ; teleport to OBJ; focus on OBJ; connect OBJ to OBJ; disconnect OBJ; inventory; task; wait; wait1"""
_LOOK = "look at "


class ScienceWorldL0(AgentTask):
    """Seen: trained on 29 tasks, tested on their 1,661 variations of the development set.

    The simulator admits hundreds of commands at a time. The policy is told their forms once, and the objects in reach
    at every turn; whether its action is available is decided on the full list.

    Args:
        data_dir: Not used: the simulator brings its tasks along.
        compat: See :class:`AgentTask`.
        split_seed: Seed of the 8:2 split of the training variations.
        only: Tasks to keep, such as ``["boil", "melt"]`` or ``"boil"``; ``None``: all of the level.
    """

    name = "scienceworld-l0"
    version = "1"
    level: ClassVar[Level] = "L0"
    base_policy = POLICY
    description = (
        "Solve an elementary-school science task in a text world within 30 turns, such as melting a substance or "
        "growing a plant. At every turn the policy writes one thought, tagged as planning, explore, reflection or "
        "monitor, and one action."
    )
    role = "You are in a science laboratory that is described to you in words, and you act in it to solve a task."
    forms = FORMS
    inner = INNER.override(steps=80, world_workers=16)
    final_inner: ClassVar[dict[str, Any]] = {"steps": 100, "timeout": 72 * 3600.0}
    presets: ClassVar[dict[str, Preset]] = {
        "paper": Preset(
            "the paper's settings; every inner run on an 80 GB GPU of its own, with 16 CPU cores and 16 GB for Java",
            full_inner={"steps": 33},
            outer_steps=5,
            full_outer_steps=3,
            proposer="Qwen/Qwen2.5-0.5B-Instruct",
            gpu_memory=80,
        ),
        "single-gpu": Preset(
            "a small search on one 80 GB GPU: adapters, half the games per update, 145 games of validation",
            inner={**SINGLE_GPU, "steps": 30, "eval_examples": 5},
            final_inner={"steps": 60, "max_seconds": None, "eval_examples": None},
            full_inner={"steps": 10},
            outer_steps=3,
            group_size=4,
            proposer="Qwen/Qwen2.5-0.5B-Instruct",
            gpu_memory=80,
        ),
        "smoke": SMOKE,
    }

    def __init__(
        self,
        data_dir: str | None = None,
        compat: Compat | None = None,
        split_seed: int = 0,
        only: str | Sequence[str] | None = None,
    ) -> None:
        super().__init__(data_dir, compat)
        self.split_seed, self.only = split_seed, only

    @property
    def world(self) -> tuple[str, dict[str, Any]]:
        """See :attr:`AgentTask.world`."""
        return "derl_gym.tasks.worlds.scienceworld:ScienceWorld", {}

    def list_games(self, pool: WorldPool) -> dict[str, list[str]]:
        """See :meth:`AgentTask.list_games`."""
        games = {part: pool.games(part) for part in ("train", "dev", "test")}
        level = scienceworld_level(self.level, games)
        train, validation = split_games(level["train"], self.split_seed)
        return self.keep({"train": train, "validation": validation, "test": level["test"]}, self.only)

    def kind_of(self, game: str) -> str:
        """The task, without the variation."""
        return game.partition("/")[0]

    def choices(self, admissible: Sequence[str]) -> str:
        """The objects in reach: those that can be looked at."""
        objects = [command.removeprefix(_LOOK) for command in admissible if command.startswith(_LOOK)]
        numbers = [command for command in admissible if command.isdecimal()]
        return f"Objects in reach: {', '.join(objects)}" + (f"\nOr choose {', '.join(numbers)}." if numbers else "")


class ScienceWorldL1(ScienceWorldL0):
    """Unseen: trained on 29 tasks, tested on their 1,684 variations of the test set."""

    name = "scienceworld-l1"
    level = "L1"


class ScienceWorldL2(ScienceWorldL0):
    """Out of distribution: trained on 19 tasks, tested on the 549 variations of the ten others in the test set."""

    name = "scienceworld-l2"
    level = "L2"
