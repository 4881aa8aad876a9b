"""The paper's three levels of generalization, as lists of games (section 4.1; RLVMR, Zhang et al., 2025b).

L0: the games of the test are of seen types and from the seen split. L1: seen types, unseen split. L2: types that the
training leaves out. Pure functions of the lists of all games; nothing is loaded.
"""

from __future__ import annotations

from typing import Literal, get_args

from derl_gym.tasks.data import split_rows
from derl_gym.tasks.worlds.alfworld_data import game_type

Level = Literal["L0", "L1", "L2"]
Games = dict[str, list[str]]
"""Part of a world -> ids of its games."""

ALFWORLD_TEST_PART = {"L0": "valid_seen", "L1": "valid_unseen", "L2": "valid_unseen"}
ALFWORLD_HELD_OUT = ("cool", "two")
"""Types that L2 tests and does not train."""
ALFWORLD_COUNTS = {"L0": (3553, 140), "L1": (3553, 134), "L2": (2207, 38)}
"""Level -> games to train on, and to test on."""

SCIENCEWORLD_TEST_PART = {"L0": "dev", "L1": "test", "L2": "test"}
SCIENCEWORLD_LEFT_OUT = ("use-thermometer",)
"""Tasks that no level has."""
SCIENCEWORLD_HELD_OUT = (
    "change-the-state-of-matter-of",
    "chemistry-mix-paint-tertiary-color",
    "find-plant",
    "grow-plant",
    "identify-life-stages-2",
    "inclined-plane-friction-unnamed-surfaces",
    "lifespan-longest-lived-then-shortest-lived",
    "measure-melting-point-unknown-substance",
    "mendelian-genetics-unknown-plant",
    "test-conductivity-of-unknown-substances",
)
"""Tasks that L2 tests and does not train; it trains the 19 others."""
SCIENCEWORLD_COUNTS = {"L0": (3322, 1661), "L1": (3322, 1684), "L2": (2242, 549)}


def alfworld_level(level: Level, games: Games, check: bool = True) -> Games:
    """ALFWorld's games of a level, ``{"train": ids, "test": ids}``.

    Args:
        level: The level.
        games: All games of train, and of the part that the level is tested on.
        check: Refuse lists that do not give the published numbers.

    Raises:
        ValueError: there is no such level, or the numbers are others.
    """
    _check_level(level)
    train, test = games["train"], games[ALFWORLD_TEST_PART[level]]
    if level == "L2":
        train = [game for game in train if game_type(game) not in ALFWORLD_HELD_OUT]
        test = [game for game in test if game_type(game) in ALFWORLD_HELD_OUT]
    return _checked("ALFWorld", level, train, test, ALFWORLD_COUNTS if check else None)


def scienceworld_level(level: Level, games: Games, check: bool = True) -> Games:
    """ScienceWorld's games of a level, ``{"train": ids, "test": ids}``.

    Args:
        level: The level.
        games: All games of train, dev and test.
        check: Refuse lists that do not give the published numbers.

    Raises:
        ValueError: there is no such level, or the numbers are others.
    """
    _check_level(level)
    train, test = (
        [game for game in games[part] if _task(game) not in SCIENCEWORLD_LEFT_OUT]
        for part in ("train", SCIENCEWORLD_TEST_PART[level])
    )
    if level == "L2":
        train = [game for game in train if _task(game) not in SCIENCEWORLD_HELD_OUT]
        test = [game for game in test if _task(game) in SCIENCEWORLD_HELD_OUT]
    return _checked("ScienceWorld", level, train, test, SCIENCEWORLD_COUNTS if check else None)


def split_games(games: list[str], seed: int = 0) -> tuple[list[str], list[str]]:
    """The paper's 8:2 split of the training games into inner-train and validation (section 4.2).

    A game's place depends on the seed and its id alone. Every game is in one of the two.
    """
    train, validation = split_rows([{"id": game} for game in games], "id", seed)
    return [row["id"] for row in train], [row["id"] for row in validation]


def _task(game: str) -> str:
    return game.partition("/")[0]


def _check_level(level: str) -> None:
    if level not in get_args(Level):
        raise ValueError(f"level must be one of {', '.join(get_args(Level))}, not {level!r}")


def _checked(
    world: str, level: str, train: list[str], test: list[str], counts: dict[str, tuple[int, int]] | None
) -> Games:
    if counts is not None and (len(train), len(test)) != counts[level]:
        raise ValueError(
            f"{world} {level} should have {counts[level][0]} games to train on and {counts[level][1]} to test on, not "
            f"{len(train)} and {len(test)}"
        )
    return {"train": train, "test": test}
