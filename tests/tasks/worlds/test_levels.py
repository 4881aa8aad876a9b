from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from derl_gym.tasks.worlds import WorldPool
from derl_gym.tasks.worlds.alfworld import ALFWorld
from derl_gym.tasks.worlds.alfworld_data import TYPES
from derl_gym.tasks.worlds.levels import (
    ALFWORLD_COUNTS,
    SCIENCEWORLD_COUNTS,
    SCIENCEWORLD_HELD_OUT,
    alfworld_level,
    scienceworld_level,
    split_games,
)

HOUSE = {
    part: [f"{part}/{name}-Mug-None-Desk-1/t" for name in TYPES] for part in ("train", "valid_seen", "valid_unseen")
}
SCIENCE = {
    part: [f"{task}/{i}" for task in ("boil", "find-plant", "use-thermometer") for i in numbers]
    for part, numbers in {"train": (0, 1), "dev": (2,), "test": (3,)}.items()
}


def test_alfworld() -> None:
    l0, l1, l2 = (alfworld_level(level, HOUSE, check=False) for level in ("L0", "L1", "L2"))
    assert l0 == {"train": HOUSE["train"], "test": HOUSE["valid_seen"]}
    assert l1 == {"train": HOUSE["train"], "test": HOUSE["valid_unseen"]}
    assert [game.split("-")[0] for game in l2["train"]] == [
        "train/pick_and_place_simple",
        "train/look_at_obj_in_light",
        "train/pick_clean_then_place_in_recep",
        "train/pick_heat_then_place_in_recep",
    ]
    assert [game.split("-")[0] for game in l2["test"]] == [
        "valid_unseen/pick_cool_then_place_in_recep",
        "valid_unseen/pick_two_obj_and_place",
    ]


def test_scienceworld() -> None:
    train = ["boil/0", "boil/1", "find-plant/0", "find-plant/1"]
    assert scienceworld_level("L0", SCIENCE, check=False) == {"train": train, "test": ["boil/2", "find-plant/2"]}
    assert scienceworld_level("L1", SCIENCE, check=False) == {"train": train, "test": ["boil/3", "find-plant/3"]}
    assert scienceworld_level("L2", SCIENCE, check=False) == {"train": train[:2], "test": ["find-plant/3"]}


def test_refusals() -> None:
    with pytest.raises(
        ValueError, match="ALFWorld L2 should have 2207 games to train on and 38 to test on, not 4 and 2"
    ):
        alfworld_level("L2", HOUSE)
    with pytest.raises(ValueError, match="ScienceWorld L1 should have 3322 games to train on and 1684 .* not 4 and 2"):
        scienceworld_level("L1", SCIENCE)
    with pytest.raises(ValueError, match="level must be one of L0, L1, L2, not 'L3'"):
        alfworld_level("L3", HOUSE)  # type: ignore[arg-type]


@given(st.sets(st.text(max_size=5)), st.integers(0, 3))
def test_the_split_is_a_partition_that_knows_no_order(games: set[str], seed: int) -> None:
    train, validation = split_games(sorted(games), seed)
    assert sorted(train + validation) == sorted(games)
    assert len(validation) == round(0.2 * len(games))
    assert split_games(sorted(games, reverse=True), seed) == (train, validation)


def test_the_split_depends_on_the_seed() -> None:
    games = [f"boil/{i}" for i in range(50)]
    assert split_games(games, 0)[1] != split_games(games, 1)[1]


def test_the_published_alfworld(data_dir: Path) -> None:
    world = ALFWorld(str(data_dir))
    games = {part: world.games(part) for part in world.parts}
    for level, counts in ALFWORLD_COUNTS.items():
        found = alfworld_level(level, games)  # type: ignore[arg-type]
        assert (len(found["train"]), len(found["test"])) == counts
        assert not set(found["train"]) & set(found["test"])
        train, validation = split_games(found["train"])
        assert (len(train), len(validation)) == {3553: (2842, 711), 2207: (1766, 441)}[counts[0]]


def test_the_published_scienceworld(scienceworld: None) -> None:
    with WorldPool("derl_gym.tasks.worlds.scienceworld:ScienceWorld") as pool:
        games = {part: pool.games(part) for part in ("train", "dev", "test")}
    assert [len(games[part]) for part in ("train", "dev", "test")] == [3592, 1796, 1819]
    assert len(set(sum(games.values(), []))) == 7207, "no variation is in two parts"
    for level, counts in SCIENCEWORLD_COUNTS.items():
        found = scienceworld_level(level, games)  # type: ignore[arg-type]
        assert (len(found["train"]), len(found["test"])) == counts
    tasks = {game.split("/")[0] for game in found["train"]}
    assert len(tasks) == 19 and not tasks & set(SCIENCEWORLD_HELD_OUT)
    assert {game.split("/")[0] for game in found["test"]} == set(SCIENCEWORLD_HELD_OUT)
