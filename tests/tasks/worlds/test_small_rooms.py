"""Games made here of one type, in rooms with other receptacles."""

from __future__ import annotations

from pathlib import Path

import pytest
from playing import successes

from derl_gym.tasks.worlds import WorldPool
from derl_gym.tasks.worlds.alfworld_data import game_type
from derl_gym.tasks.worlds.alfworld_games import GOALS, generate

ALFWORLD = "derl_gym.tasks.worlds.alfworld:ALFWorld"


@pytest.mark.usefixtures("alfworld")
def test_one_of_each_receptacle(tmp_path: Path) -> None:
    generate(tmp_path, {"train": 3}, kinds=["pick"], receptacles=dict.fromkeys(GOALS, 1))
    with WorldPool(ALFWORLD, {"data_dir": str(tmp_path), "check_data": False}) as pool:
        games = pool.games("train")
        assert [game_type(game) for game in games] == ["pick"] * 3
        turn = pool.reset_all({0: games[0]})[0]
        places = {command for command in turn.admissible if command.startswith("go to ")}  # type: ignore[union-attr]
        assert places == {f"go to {name.lower()} 1" for name in GOALS}
        assert successes(pool, games, lambda game: iter(pool.walkthrough(game))) == 1
