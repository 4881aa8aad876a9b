"""Faults put into the pool: killed drivers, killed and frozen servers, Ctrl-C at any moment. Nothing may stay."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from processes import alive, wait_until

from derl_gym.trials import pool as pool_module
from derl_gym.trials.pool import Job, LocalPool

# No script here has an `if __name__ == "__main__"`: users' scripts have none either.
TWO_HANGING_FAMILIES = """
    from derl_gym.trials.pool import Job, LocalPool
    pool = LocalPool(workers=2, preload=("targets",))
    jobs = [Job(str(i), "targets:leaves_a_grandchild", {{"hang": True}}, {folder!r} + f"/{{i}}") for i in range(2)]
    for outcome in pool.run(jobs, lambda job, pid, attempt: print(pid, flush=True)):
        print(outcome)
"""


def hanging_script(script, tmp_path: Path):
    """A driver with a server, two children and two grandchildren."""
    started = script(TWO_HANGING_FAMILIES.format(folder=str(tmp_path)))
    started.line(), started.line()
    assert wait_until(lambda: len(started.family()) == 5, 5), started.family()
    return started


def test_script_without_main_guard_runs_once(script, tmp_path: Path) -> None:
    started = script(
        f"""
        from derl_gym.trials.pool import Job, LocalPool
        print("main")
        with LocalPool(workers=2, preload=("targets",)) as pool:
            for outcome in pool.run(Job(str(i), "targets:quick", {{}}, {str(tmp_path)!r} + f"/{{i}}")
                                    for i in range(4)):
                print(outcome.failure)
        """
    )
    assert started.end().split() == ["main"] + ["None"] * 4


def test_target_in_the_users_own_file(script, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def f(payload, folder):\n    return {'mine': payload['x'] + 1}\n")
    started = script(
        f"""
        from derl_gym.trials.pool import Job, LocalPool
        print(next(LocalPool(preload=()).run([Job("a", "mine:f", {{"x": 1}}, {str(tmp_path)!r} + "/a")])).result)
        """
    )
    assert started.end().strip() == "{'mine': 2}", "the script's own folder is on the path, as in the driver"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_a_killed_driver(script, tmp_path: Path, number: int) -> None:
    started = hanging_script(script, tmp_path)
    os.kill(started.process.pid, number)
    started.process.wait(5)
    assert wait_until(lambda: not started.family(), 2), "within two seconds"


@pytest.mark.skipif(sys.platform != "linux", reason="a process learns of its parent's death on Linux only")
def test_server_that_still_imports_dies_with_its_driver(script, tmp_path: Path) -> None:
    (tmp_path / "slow_preload.py").write_text(
        f"import time\nopen({str(tmp_path / 'imports')!r}, 'w')\ntime.sleep(60)\n"
    )
    started = script(
        f"""
        from derl_gym.trials.pool import Job, LocalPool
        list(LocalPool(preload=("slow_preload",)).run([Job("a", "targets:quick", {{}}, {str(tmp_path)!r})]))
        """
    )
    assert wait_until(lambda: (tmp_path / "imports").exists(), 60)
    started.process.kill()
    assert wait_until(lambda: not started.family(), 2), "within two seconds"


def test_driver_that_just_ends_leaves_nothing(script, tmp_path: Path) -> None:
    started = script(
        f"""
        from derl_gym.trials.pool import Job, LocalPool
        pool = LocalPool(workers=2, preload=())
        jobs = [Job(str(i), "targets:sleeps", {{"seconds": 60 * i}}, {str(tmp_path)!r} + f"/{{i}}") for i in range(2)]
        print(next(pool.run(jobs)).id)
        """
    )
    assert started.end().strip() == "0"
    assert not started.family()


def test_driver_killed_while_a_fork_of_it_lives_on(script, tmp_path: Path) -> None:
    """The copy holds the driver's end of the socket open, so the server must look at its parent."""
    started = script(
        f"""
        import os, time
        from derl_gym.trials.pool import Job, LocalPool
        pool = LocalPool(preload=())
        job = Job("a", "targets:sleeps", {{"seconds": 60}}, {str(tmp_path)!r} + "/a")
        def fork(job, pid, attempt):
            if os.fork() == 0:
                print(os.getpid(), flush=True)
                time.sleep(60)
        list(pool.run([job], fork))
        """
    )
    copy = int(started.line())
    assert len(started.family()) == 3
    started.process.kill()
    assert wait_until(lambda: started.family() == [copy], 3)


def test_end_of_a_forked_copy_leaves_the_server_alone(script, tmp_path: Path) -> None:
    started = script(
        f"""
        import os, sys
        import psutil
        from derl_gym.trials.pool import Job, LocalPool
        servers = set()
        def remember(job, pid, attempt):
            servers.add(psutil.Process(pid).ppid())
        pool = LocalPool(preload=())
        for name in "ab":
            job = Job(name, "targets:sleeps", {{"seconds": 0.2}}, {str(tmp_path)!r} + "/" + name)
            assert next(pool.run([job], remember)).failure is None
            if (copy := os.fork()) == 0:
                pool.close()
                sys.exit()
            os.waitpid(copy, 0)
        print(len(servers))
        """
    )
    assert started.end().strip() == "1"


@pytest.mark.parametrize("seed", range(8))
def test_ctrl_c_at_any_moment(script, tmp_path: Path, seed: int) -> None:
    started = script(
        f"""
        from derl_gym.trials.pool import Job, LocalPool
        print("go", flush=True)
        pool = LocalPool(workers=2, preload=("targets",))
        for i in range(1000):
            jobs = [Job(str(j), "targets:sleeps", {{"seconds": 0.01}}, {str(tmp_path)!r} + f"/{{j}}") for j in range(3)]
            for outcome in pool.run(jobs):
                assert outcome.failure is None, outcome
        """
    )
    started.line()
    time.sleep(random.Random(seed).uniform(0, 0.4))
    started.process.send_signal(signal.SIGINT)
    _, error = started.process.communicate(timeout=10)
    assert "KeyboardInterrupt" in error
    assert error.count("Traceback") == 1, error
    assert wait_until(lambda: not started.family(), 2)


def test_ctrl_c_can_be_caught_and_the_pool_used_again(script, tmp_path: Path) -> None:
    started = script(
        f"""
        from derl_gym.trials.pool import Job, LocalPool
        pool = LocalPool(preload=())
        def job(seconds):
            return Job("a", "targets:sleeps", {{"seconds": seconds}}, {str(tmp_path)!r} + "/a")
        try:
            list(pool.run([job(60)], lambda job, pid, attempt: print(pid, flush=True)))
        except KeyboardInterrupt:
            print(next(pool.run([job(0)])).result, flush=True)
        """
    )
    child = int(started.line())
    started.process.send_signal(signal.SIGINT)
    assert started.end().strip() == "{'slept': 0}"
    assert not alive(child)


def test_killed_server_is_replaced_and_its_jobs_are_tried_again(tmp_path: Path) -> None:
    killed: list[int] = []

    def kill_server_once(job: Job, pid: int, attempt: int) -> None:
        if attempt == 1 and job.id == "b":
            assert wait_until(lambda: (tmp_path / "b" / "grandchild").exists(), 5)
            killed.append(psutil.Process(pid).ppid())
            os.kill(killed[0], signal.SIGKILL)

    jobs = [
        Job("a", "targets:sleeps", {"seconds": 0.5}, tmp_path / "a"),
        Job("b", "targets:leaves_a_grandchild", {"hang": True}, tmp_path / "b", timeout=1.0),
        Job("c", "targets:quick", {}, tmp_path / "c"),
    ]
    with LocalPool(workers=2, preload=()) as pool:
        outcomes = {}
        for outcome in pool.run(jobs, kill_server_once):
            if not outcomes:
                grandchild = int((tmp_path / "b" / "grandchild").read_text())
            outcomes[outcome.id] = outcome
    assert len(killed) == 1
    assert (outcomes["a"].result, outcomes["a"].attempts) == ({"slept": 0.5}, 2)
    assert outcomes["b"].attempts == 2
    assert outcomes["b"].failure.startswith("exceeded its limit")
    assert (outcomes["c"].failure, outcomes["c"].attempts) == (None, 1), "it was not in flight"
    assert not alive(grandchild)


def test_server_killed_again_and_again(tmp_path: Path) -> None:
    pids = []

    def kill_server(job: Job, pid: int, attempt: int) -> None:
        pids.append(pid)
        os.kill(psutil.Process(pid).ppid(), signal.SIGKILL)

    with LocalPool(preload=(), attempts=2) as pool:
        (outcome,) = pool.run([Job("a", "targets:sleeps", {"seconds": 60}, tmp_path)], kill_server)
    assert outcome.attempts == 2
    assert outcome.failure.startswith("the pool's server ended: killed by signal 9 (out of memory?)")
    assert not any(alive(pid) for pid in pids)


def test_server_killed_between_two_runs(tmp_path: Path) -> None:
    servers = []
    with LocalPool(preload=(), attempts=2) as pool:
        for name in "ab":
            job = Job(name, "targets:sleeps", {"seconds": 0.1}, tmp_path / name)
            (outcome,) = pool.run([job], lambda job, pid, n: servers.append(psutil.Process(pid).ppid()))
            assert outcome.failure is None
            os.kill(servers[-1], signal.SIGKILL)
    assert servers[0] != servers[1]


def test_frozen_server_counts_as_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_GRACE", 1.0)

    def freeze(job: Job, pid: int, attempt: int) -> None:
        if attempt == 1:
            os.kill(psutil.Process(pid).ppid(), signal.SIGSTOP)

    with LocalPool(preload=(), attempts=2) as pool:
        begin = time.monotonic()
        (outcome,) = pool.run([Job("a", "targets:sleeps", {"seconds": 0.05}, tmp_path, timeout=1.0)], freeze)
    assert (outcome.result, outcome.attempts) == ({"slept": 0.05}, 2)
    assert time.monotonic() - begin < 20
