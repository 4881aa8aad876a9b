"""Workers that die, hang, or cannot start: the episode has failed, the pool goes on, nothing stays behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from processes import alive, wait_until

from derl_gym.tasks.worlds import Turn, WorldFailed, WorldPool

FAULTY = "faulty_world:Faulty"


def begun(pool: WorldPool, slots: int = 1) -> WorldPool:
    assert all(isinstance(turn, Turn) for turn in pool.reset_all({slot: "game" for slot in range(slots)}).values())
    return pool


def reason(outcome: Turn | WorldFailed) -> str:
    assert isinstance(outcome, WorldFailed), outcome
    return str(outcome)


def test_a_worker_that_dies_in_mid_episode() -> None:
    with WorldPool(FAULTY, workers=2) as pool:
        begun(pool, 4)
        pids = pool.pids
        turns = pool.step_all({0: "look", 1: "die", 2: "look", 3: "look"})
        assert isinstance(turns[0], Turn), "it had been answered before"
        assert "its process was killed by signal 9" in reason(turns[1])
        assert turns[2].observation == turns[3].observation == "step 1: look", "the other worker knows nothing of it"
        assert "lost in another episode's call" in reason(pool.step_all({0: "look"})[0])
        with pytest.raises(ValueError, match="no live episode in slot 0, 1"):
            pool.step_all({0: "look", 1: "look"})
        assert pool.step_all({2: "look"})[2].observation == "step 2: look"
        begun(pool, 4)
        assert len(set(pool.pids) - set(pids)) == 1, "one is new"
        assert pool.step_all({1: "look"})[1].observation == "step 1: look"


def test_a_worker_that_is_killed_between_two_calls() -> None:
    with WorldPool(FAULTY) as pool:
        begun(pool)
        os.kill(pool.pids[0], signal.SIGKILL)
        assert "killed by signal 9" in reason(pool.step_all({0: "look"})[0])
        os.kill(begun(pool).pids[0], signal.SIGKILL)
        assert "killed by signal 9" in reason(pool.reset_all({0: "game"})[0])
        begun(pool)


@pytest.mark.parametrize("command", ["sleep 60", "hang"])
def test_a_call_that_takes_too_long(command: str) -> None:
    with WorldPool(FAULTY, workers=2, call_seconds=0.5) as pool:
        begun(pool, 4)
        pids, begin = pool.pids, time.monotonic()
        turns = pool.step_all({0: command, 1: "look", 2: "look", 3: "look"})
        assert time.monotonic() - begin < 5
        assert reason(turns[0]) == f"step '{command}': it took more than 0.5 s"
        assert "lost in another episode's call: it took more than 0.5 s" in reason(turns[1])
        assert turns[2].observation == turns[3].observation == "step 1: look"
        assert not alive(pids[0]) and alive(pids[1])
        begun(pool, 4)


def test_a_reset_that_hangs_leaves_the_others_in_peace() -> None:
    with WorldPool(FAULTY, call_seconds=0.5) as pool:
        turns = pool.reset_all({0: "sleep 60", 1: "game"})
        assert "more than 0.5 s" in reason(turns[0])
        assert turns[1].observation == "begun gamegame", "it was begun on a new worker"
        turns = pool.reset_all({1: "game", 0: "sleep 60"})
        assert "lost in another episode's call" in reason(turns[1])
        assert "more than 0.5 s" in reason(turns[0])


def test_a_won_episode_stays_won_when_its_worker_dies_afterwards() -> None:
    with WorldPool(FAULTY) as pool:
        begun(pool, 2)
        turns = pool.step_all({0: "win", 1: "die"})
        assert turns[0].won
        assert "signal 9" in reason(turns[1])
        with pytest.raises(ValueError, match="no live episode in slot 0"):
            pool.step_all({0: "look"})


def test_two_failures_in_one_call() -> None:
    with WorldPool(FAULTY) as pool:
        turns = begun(pool, 2).step_all({0: "raise fire", 1: "die"})
        assert reason(turns[0]) == "step 'raise fire': KeyError: 'fire'"
        assert "signal 9" in reason(turns[1])
        begun(pool, 2)


def test_an_error_in_a_world_fails_its_episode_alone() -> None:
    with WorldPool(FAULTY) as pool:
        begun(pool, 2)
        pids = pool.pids
        turns = pool.step_all({0: "raise fire", 1: "look"})
        assert reason(turns[0]) == "step 'raise fire': KeyError: 'fire'"
        assert turns[1].observation == "step 1: look"
        assert pool.step_all({1: "look"})[1].observation == "step 2: look"
        begun(pool, 1)
        assert pool.pids == pids


def test_failures_have_no_score() -> None:
    assert not hasattr(WorldFailed("why"), "score")


def test_a_worker_that_dies_again_and_again() -> None:
    with WorldPool(FAULTY) as pool:
        for _ in range(2):
            assert "ended with status 3" in reason(pool.reset_all({0: "exit 3"})[0])
        begun(pool)
        for _ in range(3):
            assert "ended with status 3" in reason(pool.reset_all({0: "exit 3"})[0])
        with pytest.raises(RuntimeError, match="ended 3 times in a row without an answer"):
            pool.reset_all({0: "game"})
        assert pool.pids == []


@pytest.mark.parametrize(
    ("start", "error", "message"),
    [
        ("missing", ImportError, "the engine is not installed"),
        ("raise no-engine", RuntimeError, "KeyError: 'no-engine'"),
        ("exit 3", RuntimeError, "cannot be started: its process ended with status 3"),
        ("sleep 60", RuntimeError, "was not ready within 0.8 s"),
    ],
)
def test_workers_that_cannot_start(start: str, error: type, message: str) -> None:
    before = psutil.Process().children(recursive=True)
    with pytest.raises(error, match=message):
        WorldPool(FAULTY, {"start": start}, workers=2, start_seconds=0.8 if start.startswith("sleep") else 60)
    assert psutil.Process().children(recursive=True) == before


def test_what_a_hung_worker_started_is_killed_with_it(tmp_path: Path) -> None:
    with WorldPool(FAULTY, {"folder": str(tmp_path)}, call_seconds=1.0) as pool:
        begun(pool)
        assert "more than 1 s" in reason(pool.step_all({0: "child and hang"})[0])
        child = int((tmp_path / "child").read_text())
        assert wait_until(lambda: not alive(child), 5)


def test_nothing_is_left_after_close(tmp_path: Path) -> None:
    before = psutil.Process().children(recursive=True)
    for _ in range(2):
        with WorldPool(FAULTY, {"folder": str(tmp_path)}, workers=2) as pool:
            begun(pool)
            assert pool.step_all({0: "child"})[0].observation == "step 1: child"
        pool.close()
        child = int((tmp_path / "child").read_text())
        assert wait_until(lambda child=child: not alive(child), 5)
    assert psutil.Process().children(recursive=True) == before


def test_pool_that_is_forgotten() -> None:
    before = psutil.Process().children(recursive=True)
    begun(WorldPool(FAULTY))
    assert psutil.Process().children(recursive=True) == before


@pytest.mark.skipif(sys.platform != "linux", reason="a process learns of its parent's death on Linux only")
@pytest.mark.parametrize("doing", ["look", "hang"])
def test_nothing_outlives_a_killed_parent(script, doing: str) -> None:
    started = script(
        f"""
        from derl_gym.tasks.worlds import WorldPool
        pool = WorldPool("{FAULTY}", workers=2)
        pool.reset_all({{0: "game", 1: "game"}})
        print("ready", flush=True)
        pool.step_all({{0: {doing!r}, 1: "look"}})
        print("done", flush=True)
        sys.stdin.read()
        """
    )
    assert started.line() == "ready"
    assert len(started.family()) == 2
    if doing == "look":
        assert started.line() == "done"
    else:
        time.sleep(0.3)
    started.process.kill()
    assert wait_until(lambda: not started.family(), 5)


def test_ctrl_c_in_a_call_and_on(script) -> None:
    """Both get it, as in a terminal; the worker ignores it, the pool has a usable state."""
    started = script(
        f"""
        import os
        from derl_gym.tasks.worlds import WorldPool
        pool = WorldPool("{FAULTY}", workers=2)
        pool.reset_all({{0: "game", 1: "game"}})
        print("ready", flush=True)
        try:
            pool.step_all({{0: "sleep 60", 1: "look"}})
        except KeyboardInterrupt:
            pass
        lost = pool.step_all({{0: "look", 1: "look"}})
        print(lost[0], lost[1].observation, sep="; ")
        print(pool.reset_all({{0: "game"}})[0].observation)
        """
    )
    assert started.line() == "ready"
    time.sleep(0.5)
    os.killpg(started.process.pid, signal.SIGINT)
    out = started.end().splitlines()
    assert out == [
        "its worker was lost in another episode's call: the call was interrupted; step 2: look",
        "begun gamegame",
    ]
    assert not started.family()


def test_parent_that_just_ends(script) -> None:
    started = script(
        f"""
        from derl_gym.tasks.worlds import WorldPool
        pool = WorldPool("{FAULTY}")
        print(pool.reset_all({{0: "game"}})[0].observation)
        """
    )
    assert started.end().strip() == "begun gamegame"
    assert not started.family()


def test_a_forked_copy_leaves_the_workers_alone(script) -> None:
    started = script(
        f"""
        import os
        from derl_gym.tasks.worlds import WorldPool
        pool = WorldPool("{FAULTY}")
        pool.reset_all({{0: "game"}})
        if (copy := os.fork()) == 0:
            try:
                pool.step_all({{0: "look"}})
            except ValueError as error:
                print(error)
            pool.close()
            sys.exit()
        os.waitpid(copy, 0)
        print(pool.step_all({{0: "look"}})[0].observation)
        """
    )
    assert started.end().splitlines() == ["the pool is closed", "step 1: look"]


def test_killing_the_group_takes_the_workers_along(script) -> None:
    started = script(
        f"""
        from derl_gym.tasks.worlds import WorldPool
        pool = WorldPool("{FAULTY}", workers=2)
        print("ready", flush=True)
        pool.reset_all({{0: "hang"}})
        """
    )
    assert started.line() == "ready"
    assert len(started.family()) == 2
    os.killpg(started.process.pid, signal.SIGKILL)
    assert wait_until(lambda: not started.family(), 5)
