from __future__ import annotations

import os
from pathlib import Path

import pytest

from derl_gym.tasks.worlds import Turn, World, WorldFailed, WorldPool
from derl_gym.tasks.worlds.base import load_world

CORRIDOR = "corridor_world:Corridor"
FAULTY = "faulty_world:Faulty"


def play(pool: WorldPool, games: list[str]) -> list[Turn | WorldFailed]:
    """Every game by its walkthrough, in waves of as many as the pool has slots; the last turns."""
    ends = []
    for first in range(0, len(games), pool.slots):
        wave = dict(enumerate(games[first : first + pool.slots]))
        plans = {slot: iter(pool.walkthrough(game)) for slot, game in wave.items()}
        turns = pool.reset_all(wave)
        while live := {
            slot: next(plans[slot]) for slot, turn in turns.items() if isinstance(turn, Turn) and not turn.over
        }:
            turns |= pool.step_all(live)
        ends += [turns[slot] for slot in wave]
    return ends


def test_a_world_of_ones_own_in_this_process() -> None:
    world = load_world(CORRIDOR, {"longest": 3})
    assert world.games("test") == ["test/1", "test/2", "test/3"]
    first = world.reset("train/1")
    assert first == Turn("You stand in a corridor.", ["walk on"], task="Open the chest.")
    assert world.step("fly") == Turn("Nothing happens.", ["walk on"])
    assert world.step("walk on") == Turn("Door 1.", ["open chest", "walk back"], score=1.0)
    assert world.step("open chest").won


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_many_episodes_in_few_workers(workers: int) -> None:
    with WorldPool(CORRIDOR, {"longest": 10}, workers=workers) as pool:
        assert pool.slots == 4 * workers
        assert len(set(pool.pids)) == workers
        games = pool.games("train")
        assert len(games) == 10
        ends = play(pool, games + games[::-1])
    assert all(isinstance(turn, Turn) and turn.won and turn.over for turn in ends)
    assert len(ends) == 20


def test_slots_are_apart() -> None:
    with WorldPool(CORRIDOR, workers=2) as pool:
        first = pool.reset_all({0: "train/1", 2: "train/2", 7: "train/1"})
        assert list(first) == [0, 2, 7]
        turns = pool.step_all({7: "walk on", 0: "walk on"})
        assert [turns[slot].score for slot in (7, 0)] == [1, 1]
        assert pool.step_all({2: "walk on"})[2].score == 0.5
        assert pool.step_all({0: "open chest"})[0].won
        assert not pool.step_all({7: "walk back"})[7].won


def test_episodes_of_a_game_share_a_worker() -> None:
    with WorldPool(CORRIDOR, workers=3) as pool:
        pool.reset_all({slot: f"train/{1 + slot % 3}" for slot in range(9)})
        workers = [pool.seats[slot][0] for slot in range(9)]
        assert workers == [0, 1, 2] * 3
        pool.reset_all({slot: "train/1" for slot in range(9, 12)})
        assert sorted(pool.seats[slot][0] for slot in range(9, 12)) == [0, 1, 2], "one game is shared out as well"
        assert len(set(pool.seats.values())) == 12
        pool.reset_all({slot: "train/5" for slot in (0, 1, 3)})
        assert len(set(pool.seats.values())) == 12, "no place is given twice"
        assert pool.step_all({2: "walk on", 0: "walk on"})[2].score == 1 / 3


def test_an_episode_ends_once() -> None:
    with WorldPool(CORRIDOR) as pool:
        with pytest.raises(ValueError, match="no live episode in slot 0"):
            pool.step_all({0: "walk on"})
        pool.reset_all({0: "train/1", 1: "train/1"})
        pool.step_all({0: "walk on"})
        assert pool.step_all({0: "open chest"})[0].over
        with pytest.raises(ValueError, match="no live episode in slot 0"):
            pool.step_all({0: "walk back", 1: "walk on"})
        assert pool.step_all({1: "walk back"})[1].score == 0, "the refused call has changed nothing"


def test_refusals() -> None:
    with WorldPool(CORRIDOR) as pool:
        with pytest.raises(ValueError, match="slots are numbered from 0 to 3, not 4"):
            pool.reset_all({4: "train/1"})
        with pytest.raises(ValueError, match="parts train, test, not 'validation'"):
            pool.games("validation")
        failed = pool.reset_all({0: "train/1", 1: "train/99"})
        assert isinstance(failed[0], Turn)
        assert isinstance(failed[1], WorldFailed)
        assert str(failed[1]) == "reset 'train/99': ValueError: there is no corridor 'train/99'"
    with pytest.raises(ValueError, match="the pool is closed"):
        pool.reset_all({0: "train/1"})
    with pytest.raises(ValueError, match="workers must be at least 1"):
        WorldPool(CORRIDOR, workers=0)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("corridor_world:Nothing", "no world at 'corridor_world:Nothing'"),
        ("no_such_module:World", "No module named 'no_such_module'"),
        ("corridor_world", "no world at 'corridor_world'"),
        ("derl_gym.tasks.base:Task", "not a subclass of derl_gym.tasks.worlds.base.World"),
    ],
)
def test_a_reference_to_nothing(reference: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_world(reference)
    with pytest.raises(ValueError, match=message):
        WorldPool(reference)


def test_no_walkthrough() -> None:
    with WorldPool(FAULTY) as pool, pytest.raises(NotImplementedError, match="Faulty knows no walkthroughs"):
        pool.walkthrough("game")


def test_what_a_world_prints_and_reads_is_no_message() -> None:
    with WorldPool(FAULTY) as pool:
        pool.reset_all({0: "game"})
        assert pool.step_all({0: "shout"})[0].observation == "step 1: heard ''"


def test_texts_longer_than_a_pipe() -> None:
    with WorldPool(FAULTY, workers=2) as pool:
        pool.reset_all({slot: "game" for slot in range(4)})
        turns = pool.step_all({slot: "long 3000000" for slot in range(4)})
        assert all(len(turn.observation) == 3000008 for turn in turns.values())
        turns = pool.step_all({slot: "length " + "ü" * 10**6 for slot in range(4)})
        assert {turn.observation for turn in turns.values()} == {"step 2: 1000"}, "no command is that long"


def test_workers_work_at_once(tmp_path: Path) -> None:
    """Each waits until all have begun: one after the other they would wait for ever."""
    with WorldPool(FAULTY, {"folder": str(tmp_path)}, workers=4) as pool:
        pool.reset_all({slot: "game" for slot in range(4)})
        turns = pool.step_all({slot: "meet 4" for slot in range(4)})
        assert {turn.observation for turn in turns.values()} == {"step 1: meet"}


def test_workers_environment() -> None:
    with WorldPool(FAULTY) as pool:
        pool.reset_all({0: "game"})
        expected = f"step 1: {('0', os.getpgid(0))}"
        assert pool.step_all({0: "environment"})[0].observation == expected, "killing the caller's group takes it along"


def test_a_world_class_has_to_be_complete() -> None:
    class Half(World):
        def games(self, part: str) -> list[str]:
            return []

    with pytest.raises(TypeError, match="abstract"):
        Half()  # type: ignore[abstract]
