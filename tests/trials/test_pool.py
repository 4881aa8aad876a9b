"""The pool at work: results, failures in words, retries, limits, devices."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from processes import alive, wait_until

from derl_gym.trials.pool import Job, LocalPool, Outcome, PoolError, warm_servers


@pytest.fixture(scope="module")
def shared(request: pytest.FixtureRequest) -> Iterator[LocalPool]:
    """One warm pool for the tests that only look at single jobs."""
    with LocalPool(workers=2, preload=("json",), attempts=1) as pool:
        yield pool


@pytest.fixture
def one(shared: LocalPool, tmp_path: Path) -> Callable[..., Outcome]:
    def run(target: str, payload: dict | None = None, **fields) -> Outcome:
        (outcome,) = shared.run([Job("one", target, payload or {}, tmp_path / "one", **fields)])
        return outcome

    return run


def make(tmp_path: Path, target: str, *payloads: dict, **fields) -> list[Job]:
    return [
        Job(str(i), f"targets:{target}", payload, tmp_path / str(i), **fields) for i, payload in enumerate(payloads)
    ]


def test_result_comes_back(one: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = one("targets:quick", {"x": [1, "two", None]})
    assert outcome.failure is None
    assert outcome.result == {
        "payload": {"x": [1, "two", None]},
        "pid": outcome.pid,
        "folder": str(tmp_path / "one"),
    }
    assert outcome.attempts == 1
    assert 0 < outcome.seconds < 5
    assert not list((tmp_path / "one").glob(".*")), "nothing half written is left"


def test_surroundings_of_a_child(one: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "late")])
    result = one("targets:surroundings", env={"MINE": "yes"}).result
    assert result is not None
    assert result["mine"] == "yes"
    assert result["cwd"] == str(tmp_path)
    assert str(tmp_path / "late") in result["path"], "the driver's path as it is when the job starts"
    assert result["group"] == result["pid"], "a group of its own"
    assert result["threads"] == os.environ.get("OMP_NUM_THREADS", "1")
    assert result["stdin"] == ""
    assert result["descriptors"] <= 5, "the socket to the driver is not inherited"


def test_relative_folder(one, shared, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (outcome,) = shared.run([Job("a", "targets:quick", {}, Path("relative/a"))])
    assert outcome.result is not None
    assert outcome.result["folder"] == str(tmp_path / "relative" / "a")


def test_log_holds_all_output(one: Callable[..., Outcome], tmp_path: Path) -> None:
    assert one("targets:prints").failure is None
    log = (tmp_path / "one" / "log.txt").read_text()
    assert [line for line in log.splitlines() if not line.startswith("==")] == [
        "from Python",
        "to stderr",
        "from the descriptor",
        "from a grandchild",
        "without a newline",
    ]


@pytest.mark.parametrize(
    ("target", "payload", "words"),
    [
        ("targets:raises", {}, "ValueError: the target does not like this"),
        ("targets:raises", {"message": ""}, "ValueError (log"),
        ("targets:nowhere", {}, "module 'targets' has no attribute 'nowhere'"),
        ("no_such_module:f", {}, "ModuleNotFoundError: No module named 'no_such_module'"),
        ("quick", {}, "a target is written 'module:function', not 'quick'"),
        ("targets:returns_a_list", {}, "must return a dict, not list"),
        ("targets:exits", {"status": 3}, "SystemExit: 3"),
        ("targets:leaves_at_once", {"status": 7}, "exited with status 7"),
        ("targets:leaves_at_once", {"status": 0}, "ended without a result"),
        ("targets:leaves_at_once", {"status": 28}, "(No space left on device); the disk is full"),
        ("targets:kills_itself", {"signal": 9}, "killed by signal 9 (out of memory?)"),
        ("targets:kills_itself", {"signal": 11}, "killed by signal 11 (Segmentation fault)"),
        ("targets:out_of_memory", {}, "MemoryError; a smaller micro_batch_size"),
        ("targets:out_of_device_memory", {}, "2.00 GiB; a smaller micro_batch_size"),
        ("targets:disk_full", {}, "the disk is full"),
    ],
)
def test_failures_say_what_happened(one, tmp_path: Path, target: str, payload: dict, words: str) -> None:
    outcome = one(target, payload)
    assert outcome.result is None
    assert words in outcome.failure
    assert outcome.failure.endswith(f"(log: {tmp_path / 'one' / 'log.txt'})")


def test_traceback_is_in_the_log(one, tmp_path: Path) -> None:
    one("targets:raises", {"message": "x" * 5000})
    assert "in raises" in (tmp_path / "one" / "log.txt").read_text()


def test_long_messages_are_shortened(one) -> None:
    assert len(one("targets:raises", {"message": "x" * 5000}).failure) < 1000


def test_folder_that_cannot_be_made(one, shared, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (outcome,) = shared.run([Job("a", "targets:quick", {}, tmp_path / "file" / "a")])
    assert outcome.result is None
    assert "cannot be used" in outcome.failure


def test_disk_full(one, shared, small_disk: Path) -> None:
    job = Job("a", "targets:fills_the_folder", {"bytes": 4 << 20}, small_disk / "a")
    (outcome,) = shared.run([job])
    assert outcome.result is None
    assert "the disk is full" in outcome.failure, "not even the error could be written"


def test_failed_job_is_tried_again(tmp_path: Path) -> None:
    with LocalPool(preload=(), attempts=3) as pool:
        (outcome,) = pool.run(make(tmp_path, "raises_at_first", {}))
        assert (outcome.result, outcome.failure, outcome.attempts) == ({"ok": True}, None, 2)
        (outcome,) = pool.run(make(tmp_path, "raises", {}))
        assert outcome.attempts == 3, "bounded"
        assert (tmp_path / "0" / "log.txt").read_text().count("== attempt 3") == 1


def test_results_of_an_earlier_run_do_not_count(shared: LocalPool, tmp_path: Path) -> None:
    (outcome,) = shared.run(make(tmp_path, "quick", {}))
    assert outcome.result is not None
    (outcome,) = shared.run(make(tmp_path, "leaves_at_once", {"status": 0}))
    assert outcome.result is None


def test_outcomes_come_in_the_order_of_their_ends(shared: LocalPool, tmp_path: Path) -> None:
    jobs = make(tmp_path, "sleeps", {"seconds": 0.8}, {"seconds": 0.0}, {"seconds": 0.0})
    assert [outcome.id for outcome in shared.run(jobs)] == ["1", "2", "0"]


def test_many_jobs_each_its_own_result(shared: LocalPool, tmp_path: Path) -> None:
    jobs = make(tmp_path, "quick", *({"i": i} for i in range(60)))
    outcomes = list(shared.run(jobs))
    assert sorted(outcome.result["payload"]["i"] for outcome in outcomes) == list(range(60))
    assert all(outcome.id == str(outcome.result["payload"]["i"]) for outcome in outcomes)
    assert len({outcome.pid for outcome in outcomes}) == 60


def test_large_payload(shared: LocalPool, tmp_path: Path) -> None:
    text = "x" * 3_000_000
    (outcome,) = shared.run(make(tmp_path, "quick", {"text": text}))
    assert outcome.result["payload"]["text"] == text


def test_limit_holds_in_c_code_and_for_the_whole_group(shared: LocalPool, tmp_path: Path) -> None:
    jobs = make(tmp_path, "hangs_in_c_ignoring_sigterm", {}, timeout=0.6)
    jobs += [
        Job("group", "targets:leaves_a_grandchild", {"hang": True}, tmp_path / "group", timeout=0.6),
        Job("short", "targets:sleeps", {"seconds": 0.1}, tmp_path / "short", timeout=0.6),
    ]
    outcomes = {outcome.id: outcome for outcome in shared.run(jobs)}
    for name in ("0", "group"):
        assert outcomes[name].failure.startswith("exceeded its limit of 0.6 s")
        assert 0.6 <= outcomes[name].seconds < 5
    assert outcomes["short"].result == {"slept": 0.1}, "a late neighbour harms nobody"
    assert not alive(int((tmp_path / "group" / "grandchild").read_text()))


def test_grandchild_left_behind_is_killed(one, tmp_path: Path) -> None:
    outcome = one("targets:leaves_a_grandchild")
    assert wait_until(lambda: not alive(outcome.result["grandchild"]), 2)


def test_slow_consumer_neither_idles_workers_nor_stretches_limits(tmp_path: Path) -> None:
    jobs = make(tmp_path, "begin_and_end", {"seconds": 0.0}, {"seconds": 0.1}, {"seconds": 60.0}, timeout=0.4)
    with LocalPool(workers=1, preload=(), attempts=1) as pool:
        outcomes = []
        for outcome in pool.run(jobs):
            outcomes.append(outcome)
            time.sleep(1.0)
    assert outcomes[1].result["begin"] - outcomes[0].result["end"] < 0.8
    assert outcomes[2].seconds < 0.9


def test_waiting_in_the_queue_is_not_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that waits for longer than a server may be silent must not count against the server once it is sent."""
    monkeypatch.setattr("derl_gym.trials.pool._GRACE", 3.0)
    with LocalPool(workers=1, preload=(), attempts=1) as pool:
        outcomes = list(pool.run(make(tmp_path, "sleeps", {"seconds": 4}, {"seconds": 4}, {"seconds": 0})))
    assert [outcome.failure for outcome in outcomes] == [None] * 3


def test_on_start_tells_every_attempt(tmp_path: Path) -> None:
    told = []
    with LocalPool(preload=()) as pool:
        list(pool.run(make(tmp_path, "raises_at_first", {}), lambda job, pid, n: told.append((job.id, pid, n))))
    assert [(name, number) for name, _, number in told] == [("0", 1), ("0", 2)]
    assert all(pid > 0 for _, pid, _ in told)


def test_each_device_serves_one_job_at_a_time(tmp_path: Path) -> None:
    jobs = make(tmp_path, "begin_and_end", *[{"seconds": 0.1}] * 6)
    with LocalPool(devices=["gpu-a", "gpu-b"], preload=()) as pool:
        assert pool.workers == 2
        results = sorted((o.result for o in pool.run(jobs)), key=lambda result: result["begin"])
    assert {result["device"] for result in results} == {"gpu-a", "gpu-b"}
    for device in ("gpu-a", "gpu-b"):
        turns = [result for result in results if result["device"] == device]
        assert all(first["end"] <= then["begin"] for first, then in zip(turns, turns[1:], strict=False))


def test_device_is_free_again_after_a_failure(tmp_path: Path) -> None:
    with LocalPool(devices=["gpu-a"], preload=(), attempts=1) as pool:
        outcomes = list(pool.run(make(tmp_path, "kills_itself", *[{"signal": signal.SIGKILL}] * 3)))
        assert len(outcomes) == 3
        (outcome,) = pool.run(make(tmp_path, "surroundings", {}))
    assert outcome.result["device"] == "gpu-a"


@pytest.mark.parametrize(
    "arguments",
    [{"workers": 0}, {"attempts": 0}, {"workers": 3, "devices": ["0", "1"]}, {"devices": ["0", "0"]}],
)
def test_wrong_arguments(arguments: dict) -> None:
    with pytest.raises(ValueError, match="must be|need as many"):
        LocalPool(**arguments)


def test_jobs_that_share_a_folder_or_an_id(shared: LocalPool, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two jobs have the folder"):
        shared.run([Job("a", "targets:quick", {}, tmp_path), Job("b", "targets:quick", {}, tmp_path)])
    with pytest.raises(ValueError, match="two jobs have the id 'a'"):
        shared.run([Job("a", "targets:quick", {}, tmp_path / "1"), Job("a", "targets:quick", {}, tmp_path / "2")])


def test_preload_that_fails(tmp_path: Path) -> None:
    with LocalPool(preload=("json", "broken_preload")) as pool, pytest.raises(PoolError) as caught:
        list(pool.run(make(tmp_path, "quick", {})))
    assert "could not import broken_preload: RuntimeError: this preload is broken" in str(caught.value)
    assert "about to fail" in str(caught.value), "what it printed is told as well"


def test_preload_that_crashes(tmp_path: Path) -> None:
    with LocalPool(preload=("crashing_preload",)) as pool, pytest.raises(PoolError) as caught:
        list(pool.run(make(tmp_path, "quick", {})))
    assert "the pool's server ended: exited with status 77\na crash in C" in str(caught.value)


def test_preload_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_preload.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    pool = LocalPool(preload=("slow_preload",), start_timeout=0.5)
    with pool, pytest.raises(PoolError, match=r"was not ready within 0\.5 s"):
        list(pool.run(make(tmp_path, "quick", {})))


def test_preload_is_imported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the server: its children are forked with the module in place, and the driver never sees it."""
    notes = tmp_path / "notes"
    code = f"import os\nopen({str(notes)!r}, 'a').write(f'{{os.getpid()}}\\n')\ndef f(p, folder): return {{}}\n"
    (tmp_path / "noted_preload.py").write_text(code)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    servers = []
    with LocalPool(preload=("noted_preload",)) as pool:
        jobs = [Job(name, "noted_preload:f", {}, tmp_path / name) for name in "abc"]
        outcomes = list(pool.run(jobs, lambda job, pid, n: servers.append(psutil.Process(pid).ppid())))
    assert [outcome.failure for outcome in outcomes] == [None] * 3
    assert notes.read_text().split() == [str(servers[0])]
    assert "noted_preload" not in sys.modules


def test_leaving_the_loop_kills_what_runs(tmp_path: Path) -> None:
    pids = []
    with LocalPool(workers=2, preload=()) as pool:
        jobs = make(tmp_path, "sleeps", {"seconds": 60}, {"seconds": 0})
        outcomes = pool.run(jobs, lambda job, pid, n: pids.append(pid))
        assert next(outcomes).id == "1"
        assert alive(pids[0])
        outcomes.close()
        assert not any(alive(pid) for pid in pids)
        (outcome,) = pool.run(make(tmp_path, "quick", {}))
        assert outcome.result is not None, "the pool can be used again"


def test_new_run_takes_the_place_of_an_abandoned_one(tmp_path: Path) -> None:
    with LocalPool(workers=2, preload=()) as pool:
        abandoned = pool.run(make(tmp_path, "sleeps", {"seconds": 60}, {"seconds": 0}))
        assert next(abandoned).id == "1"
        (outcome,) = pool.run(make(tmp_path, "quick", {}))
        assert outcome.result is not None
        assert list(abandoned) == []


def test_exception_in_on_start_ends_the_run(tmp_path: Path) -> None:
    pids = []

    def refuse(job: Job, pid: int, attempt: int) -> None:
        pids.append(pid)
        raise RuntimeError("the ledger is full")

    with LocalPool(preload=()) as pool:
        with pytest.raises(RuntimeError, match="the ledger is full"):
            list(pool.run(make(tmp_path, "sleeps", {"seconds": 60}), refuse))
        assert not alive(pids[0])


def test_warm_servers_are_handed_on_and_end_with_the_block(tmp_path: Path) -> None:
    def server_of(name: str) -> int:
        with LocalPool(preload=()) as pool:
            (outcome,) = pool.run([Job(name, "targets:surroundings", {}, tmp_path / name)])
            assert outcome.result is not None
            return outcome.result["parent"]

    with warm_servers():
        first = server_of("a")
        assert server_of("b") == first and alive(first)
        with warm_servers():  # nested: the outer block counts
            assert server_of("c") == first
        os.kill(first, signal.SIGKILL)  # a dead one is not handed on
        assert wait_until(lambda: not alive(first), 2)
        second = server_of("d")
        assert second != first
    assert wait_until(lambda: not alive(second), 2)
    third = server_of("e")
    assert wait_until(lambda: not alive(third), 2)
