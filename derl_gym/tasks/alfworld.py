"""ALFWorld: the paper's embodied agents (sections 4.1 to 4.4), at its three levels of generalization.

Settings are the paper's (section 4.1, appendix C), and RLVMR's where the paper refers to it. The world itself is in
``worlds/alfworld.py``, the lists of games in ``worlds/levels.py``, primitives and verdict in ``agent.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from derl_gym.tasks.agent import AgentTask
from derl_gym.tasks.agent_settings import INNER, POLICY, SINGLE_GPU, SMOKE
from derl_gym.tasks.base import Preset
from derl_gym.tasks.step_scores import Compat
from derl_gym.tasks.worlds import WorldPool
from derl_gym.tasks.worlds.alfworld import check_installed
from derl_gym.tasks.worlds.alfworld_data import find_root, game_type, list_games
from derl_gym.tasks.worlds.levels import ALFWORLD_TEST_PART, Level, alfworld_level, split_games


class ALFWorldL0(AgentTask):
    """Seen: trained on all six types of games, tested on the 140 of the seen split.

    Args:
        data_dir: Folder with the games; see :func:`derl_gym.tasks.worlds.alfworld_data.find_root`.
        compat: See :class:`AgentTask`.
        split_seed: Seed of the 8:2 split of the training games.
        check_data: Refuse data that do not hold the published numbers of games.
        only: Types of games to keep, such as ``["pick", "look"]`` or ``"pick"``; ``None``: all of the level.
    """

    name = "alfworld-l0"
    version = "1"
    level: ClassVar[Level] = "L0"
    base_policy = POLICY
    description = (
        "Solve a household task in a text world within 30 turns, such as putting a clean mug on a desk: find things, "
        "carry them, clean, heat or cool them. At every turn the policy writes one thought, tagged as planning, "
        "explore, reflection or monitor, and one action."
    )
    role = "You are in a house that is described to you in words, and you act in it to solve a household task."
    inner = INNER.override(steps=40)
    final_inner: ClassVar[dict[str, Any]] = {"steps": 100, "timeout": 72 * 3600.0}
    presets: ClassVar[dict[str, Preset]] = {
        "paper": Preset(
            "the paper's settings; every inner run on an 80 GB GPU of its own",
            full_inner={"steps": 10},
            outer_steps=16,
            full_outer_steps=10,
            proposer="Qwen/Qwen2.5-0.5B-Instruct",
            gpu_memory=80,
        ),
        "single-gpu": Preset(
            "a small search on one 80 GB GPU: adapters, half the games per update, 120 games of validation",
            inner={**SINGLE_GPU, "steps": 20},
            final_inner={"steps": 60, "max_seconds": None, "eval_examples": None},
            full_inner={"steps": 5},
            outer_steps=4,
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
        check_data: bool = True,
        only: str | Sequence[str] | None = None,
    ) -> None:
        super().__init__(data_dir, compat)
        self.split_seed, self.check_data, self.only = split_seed, check_data, only

    @property
    def world(self) -> tuple[str, dict[str, Any]]:
        """See :attr:`AgentTask.world`."""
        return (
            "derl_gym.tasks.worlds.alfworld:ALFWorld",
            {"data_dir": self.data_dir, "check_data": self.check_data},
        )

    @property
    def needed(self) -> tuple[str, str]:
        """The parts that this level is made of."""
        return "train", ALFWORLD_TEST_PART[self.level]

    def missing(self) -> list[str]:
        """See :meth:`AgentTask.missing`; package and games are looked for both, and the games are counted."""
        lacking = []
        try:
            check_installed()
        except ImportError as error:
            lacking.append(str(error))
        try:
            root = find_root(self.data_dir)
            if empty := [part for part in self.needed if not list_games(root, part, self.check_data)]:
                lacking.append(f"{root} holds no games of {', '.join(empty)}")
        except (OSError, ValueError) as error:
            lacking.append(str(error))
        return lacking or super().missing()

    def list_games(self, pool: WorldPool) -> dict[str, list[str]]:
        """See :meth:`AgentTask.list_games`."""
        games = {part: pool.games(part) for part in self.needed}
        level = alfworld_level(self.level, games, self.check_data)
        train, validation = split_games(level["train"], self.split_seed)
        return self.keep({"train": train, "validation": validation, "test": level["test"]}, self.only)

    def kind_of(self, game: str) -> str:
        """pick, look, clean, heat, cool or two."""
        return game_type(game)


class ALFWorldL1(ALFWorldL0):
    """Unseen: trained on all six types of games, tested on the 134 of the unseen split."""

    name = "alfworld-l1"
    level = "L1"


class ALFWorldL2(ALFWorldL0):
    """Out of distribution: trained on four types of games, tested on the 38 unseen games of the two others."""

    name = "alfworld-l2"
    level = "L2"
