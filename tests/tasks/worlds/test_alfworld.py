"""ALFWorld's engine on games made here."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from playing import saying, successes

from derl_gym.tasks.worlds import Turn, WorldFailed, WorldPool
from derl_gym.tasks.worlds.alfworld import ALFWorld
from derl_gym.tasks.worlds.alfworld_data import GAME_FILE, PARTS, TYPES, game_type
from derl_gym.tasks.worlds.alfworld_games import generate

ALFWORLD = "derl_gym.tasks.worlds.alfworld:ALFWorld"


@pytest.fixture
def world(made_games: Path) -> Iterator[ALFWorld]:
    world = ALFWorld(str(made_games), check_data=False)
    world.start()
    yield world
    world.close()


def wander(world: ALFWorld, game: str, seed: int, steps: int = 12) -> Iterator[Turn]:
    draw = random.Random(seed)
    yield (turn := world.reset(game))
    for _ in range(steps):
        if turn.over:
            return
        yield (turn := world.step(draw.choice(turn.admissible)))


def all_games(world: ALFWorld | WorldPool) -> list[str]:
    return [game for part in PARTS for game in world.games(part)]


def test_made_games_can_be_won(made_games: Path) -> None:
    with WorldPool(ALFWORLD, {"data_dir": str(made_games), "check_data": False}, workers=2) as pool:
        games = all_games(pool)
        assert len(games) == 24
        assert {game_type(game) for game in games} == set(TYPES.values())
        assert successes(pool, games, lambda game: iter(pool.walkthrough(game))) == 1
        assert successes(pool, games[:6], saying(*["look"] * 8)) == 0
        assert successes(pool, games[:6], saying(*["win the game", "", "done", "go to desk 1 now"])) == 0


def test_the_folder_may_be_called_anything(made_games: Path, tmp_path: Path) -> None:
    """Games with movable receptacles and sliced objects are left out by the names of their own folders."""
    shutil.copytree(made_games, tmp_path / "removable" / "Sliced")
    games = ALFWorld(str(made_games), check_data=False).games("train")
    assert ALFWorld(str(tmp_path / "removable" / "Sliced"), check_data=False).games("train") == games


@pytest.mark.parametrize("walkthrough", [None, [], [1, 2], "look", {"look": 1}])
def test_a_game_without_a_walkthrough_is_named(made_games: Path, tmp_path: Path, walkthrough: object) -> None:
    shutil.copytree(made_games / "train", tmp_path / "train")
    world = ALFWorld(str(tmp_path), check_data=False)
    game = world.games("train")[0]
    path = tmp_path / game / GAME_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"walkthrough": walkthrough}))
    with pytest.raises(ValueError, match=f"game {re.escape(game)} holds no walkthrough"):
        world.walkthrough(game)


def test_made_games_are_the_same_each_time(made_games: Path, tmp_path: Path) -> None:
    generate(tmp_path / "a", {"train": 2})
    generate(tmp_path / "b", {"train": 2}, seed=1)
    files = {path.relative_to(tmp_path / "a"): path.read_text() for path in (tmp_path / "a").rglob("game.tw-pddl")}
    assert len(files) == 12
    assert all((made_games / name).read_text() == text for name, text in files.items())
    others = [json.loads(path.read_text())["pddl_problem"] for path in (tmp_path / "b").rglob("game.tw-pddl")]
    assert not {json.loads(text)["pddl_problem"] for text in files.values()} & set(others)


def test_a_first_turn(world: ALFWorld) -> None:
    game = next(game for game in world.games("train") if game_type(game) == "look")
    turn = world.reset(game)
    assert turn.observation.startswith("You are in the middle of a room. Looking quickly around you, you see a ")
    assert turn.task.endswith("desklamp.") and "\n" not in turn.task
    assert turn.admissible == sorted(set(turn.admissible))
    assert {"go to desk 1", "go to fridge 1", "inventory", "look"} <= set(turn.admissible)
    assert (turn.won, turn.over, turn.score) == (False, False, 0)
    turn = world.step("  go to   fridge 1 ")
    assert turn.observation == "You arrive at fridge 1. The fridge 1 is closed."
    assert "open fridge 1" in turn.admissible and not turn.task
    assert world.step("go to the moon").observation == "Nothing happens."


def test_won_and_over(world: ALFWorld) -> None:
    game = world.games("train")[0]
    turn = world.reset(game)
    for command in world.walkthrough(game):
        assert (turn.won, turn.over) == (False, False)
        turn = world.step(command)
    assert (turn.won, turn.over, turn.score) == (True, True, 1)
    with pytest.raises(ValueError, match="no live episode"):
        world.step("look")
    assert not world.reset(game).won
    assert not world.step("look").won


def test_the_engine_takes_a_win_back_where_the_world_does_not(world: ALFWorld) -> None:
    """What is latched against: a goal that no longer holds after one more command."""
    game = next(game for game in world.games("train") if game_type(game) == "pick")
    world.reset(game)
    *_, last = world.walkthrough(game)
    for command in world.walkthrough(game):
        turn = world.step(command)
    assert turn.won
    item, place = last.removeprefix("move ").split(" to ")
    state, _, _ = world._env.step(f"take {item} from {place}")
    assert not state["won"]
    assert world._turn(state, "").won


def test_an_episode_leaves_no_trace(world: ALFWorld) -> None:
    games = world.games("train")[:3]
    alone = [list(wander(world, game, seed)) for seed, game in enumerate(games)]
    assert [list(wander(world, game, seed)) for seed, game in reversed(list(enumerate(games)))] == alone[::-1]
    assert list(wander(world, games[0], 0)) == list(wander(world, games[0], 0)) == alone[0]


def test_many_worlds_in_one_process_share_nothing(made_games: Path, world: ALFWorld) -> None:
    """What per_worker stands for: episodes that take turns are those that were played one after the other."""
    games = world.games("train")[:5] + world.games("train")[:1]
    alone = [list(wander(world, game, seed)) for seed, game in enumerate(games)]
    together: list[list[Turn]] = [[] for _ in games]
    live = {seed: wander(ALFWorld(str(made_games), check_data=False), game, seed) for seed, game in enumerate(games)}
    while live:
        for seed, episode in list(live.items()):
            turn = next(episode, None)
            if turn is None:
                del live[seed]
            else:
                together[seed].append(turn)
    assert together == alone


def test_every_process_says_the_same(made_games: Path) -> None:
    options = {"data_dir": str(made_games), "check_data": False}
    with WorldPool(ALFWORLD, options) as one, WorldPool(ALFWORLD, options) as two:
        game = one.games("valid_seen")[0]
        assert one.reset_all({0: game})[0] == two.reset_all({0: game})[0]
        commands = one.walkthrough(game)
        one.reset_all({0: game})
        for command in commands[:3]:
            assert one.step_all({0: command})[0] == two.step_all({0: command})[0]


def test_memo_changes_nothing(made_games: Path, world: ALFWorld) -> None:
    plain = ALFWorld(str(made_games), check_data=False, memo=False)
    for seed, game in enumerate(world.games("train")[::3]):
        expected = list(wander(plain, game, seed))
        assert list(wander(world, game, seed)) == expected
        assert list(wander(world, game, seed)) == expected


def test_the_process_is_as_it_was(world: ALFWorld, capsys: pytest.CaptureFixture) -> None:
    import fast_downward
    from textworld.envs.pddl import textgen
    from textworld.logic import Rule

    def state() -> tuple:
        return (
            list(sys.argv),
            sys.stdout,
            fast_downward.pddl2sas,
            vars(textgen)["copy_context"],
            vars(Rule)["parse_conjunctive_query"],
        )

    before = state()
    game = world.games("train")[0]
    world.reset(game)
    world.step("look")
    assert state() == before
    with pytest.raises(FileNotFoundError):
        world.reset("train/nothing/here")
    assert state() == before
    assert capsys.readouterr().out == ""


def test_no_folder_in_the_users_home(made_games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with WorldPool(ALFWORLD, {"data_dir": str(made_games), "check_data": False}) as pool:
        pool.reset_all({0: pool.games("train")[0]})
    assert list(tmp_path.iterdir()) == []


def test_old_games_are_refused_by_name(old_games: Path) -> None:
    with WorldPool(ALFWORLD, {"data_dir": str(old_games), "check_data": False}) as pool:
        failed = pool.reset_all({0: pool.games("train")[0]})[0]
        assert isinstance(failed, WorldFailed)
        assert "is of the older distribution, whose command is 'put X in/on Y': run alfworld-download" in str(failed)
        assert "old_grammar=True" in str(failed)


def test_old_games_can_be_played(old_games: Path) -> None:
    options = {"data_dir": str(old_games), "check_data": False, "old_grammar": True}
    with WorldPool(ALFWORLD, options) as pool:
        games = [game for game in pool.games("train") if game_type(game) == "pick"]
        assert successes(pool, games, lambda game: iter(pool.walkthrough(game))) == 1
        commands = pool.walkthrough(games[0])
        pool.reset_all({0: games[0]})
        for command in commands[:-1]:
            turn = pool.step_all({0: command})[0]
        verbs = {command.split()[0] for command in turn.admissible}
        assert "put" in verbs and "move" not in verbs


def test_games_that_are_gone_or_damaged(made_games: Path, tmp_path: Path) -> None:
    root = tmp_path / "games"
    shutil.copytree(made_games, root)
    with WorldPool(ALFWORLD, {"data_dir": str(root), "check_data": False}) as pool:
        gone, damaged, short, well = pool.games("train")[:4]
        shutil.rmtree(root / gone)
        (root / damaged / "game.tw-pddl").write_text("{")
        (root / short / "game.tw-pddl").write_text('{"grammar": ""}')
        turns = pool.reset_all(dict(enumerate([gone, damaged, short, well, "train/../../secret"])))
        assert str(turns[0]).endswith(f"FileNotFoundError: no game {gone} in {root}")
        assert "game.tw-pddl is damaged" in str(turns[1])
        assert "it lacks pddl_domain, pddl_problem" in str(turns[2])
        assert isinstance(turns[3], Turn)
        assert "it leads out of" in str(turns[4])
        shutil.rmtree(root)
        assert isinstance(pool.reset_all({0: well})[0], WorldFailed)
        with pytest.raises(FileNotFoundError, match=str(root)):
            pool.games("train")


def test_without_the_package(made_games: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("derl_gym.tasks.worlds.alfworld.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'derl-gym\[alfworld\]'"):
        ALFWorld(str(made_games), check_data=False).start()


@pytest.mark.slow
def test_memory_is_flat(made_games: Path) -> None:
    """200 episodes in one worker, after 40 that fill what is kept."""
    with WorldPool(ALFWORLD, {"data_dir": str(made_games), "check_data": False}) as pool:
        games = all_games(pool)
        sizes = []
        for episode in range(240):
            slot = episode % 4
            assert isinstance(pool.reset_all({slot: games[episode % len(games)]})[slot], Turn)
            for command in ("go to desk 1", "go to cabinet 1", "open cabinet 1"):
                pool.step_all({slot: command})
            if episode in (39, 239):
                sizes.append(psutil.Process(pool.pids[0]).memory_info().rss / 1e6)
    assert sizes[1] < sizes[0] + 20, sizes


def test_real_walkthroughs(alfworld: None, data_dir: Path) -> None:
    """A dozen of the published games, two of each type."""
    _real_games(data_dir, 2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_memo_changes_nothing_in_real_games(alfworld: None, data_dir: Path) -> None:
    """Two games of each type, twenty turns of each."""
    world, plain = ALFWorld(str(data_dir)), ALFWorld(str(data_dir), memo=False)
    world.start()
    games = random.Random(0).sample(world.games("train"), 400)
    for kind in TYPES.values():
        for seed, game in enumerate([game for game in games if game_type(game) == kind][:2]):
            assert list(wander(world, game, seed, 20)) == list(wander(plain, game, seed, 20)), game


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_real_walkthroughs(alfworld: None, data_dir: Path) -> None:
    """A policy that is fed the walkthrough wins all 274 validation games, one that says nothing useful none."""
    _real_games(data_dir, None)


def _real_games(data_dir: Path, each: int | None) -> None:
    with WorldPool(ALFWORLD, {"data_dir": str(data_dir)}, workers=min(2, os.cpu_count() or 1)) as pool:
        games = pool.games("valid_seen") + pool.games("valid_unseen")
        assert len(games) == 274
        if each is not None:
            games = [game for kind in TYPES.values() for game in [g for g in games if game_type(g) == kind][:each]]
        assert successes(pool, games, lambda game: iter(pool.walkthrough(game))) == 1
        assert successes(pool, games, saying("look", "inventory", "wait", "help")) == 0
