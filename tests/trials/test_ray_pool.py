"""The Ray pool on a cluster of two nodes: outcomes as from the local pool, leases, and nothing left after any death."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import numpy as np
import psutil
import pytest
from processes import alive, wait_until

import derl_gym  # noqa: F401
from derl_gym.trials.jobs import Job, Outcome, Started
from derl_gym.trials.ledger import Ledger
from derl_gym.trials.pool import LocalPool, PoolError

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")

pytestmark = pytest.mark.slow
CHANGED = {"RAY_TMPDIR": "", "RAY_worker_niceness": "0"}  # Ray's own, 15, starves workers on a busy machine
SMALL = {"object_store_memory": 80 << 20, "include_dashboard": False}


@pytest.fixture(scope="module")
def cluster() -> Iterator:
    """A head with 2 CPUs and 1 (pretended) GPU, and a node with 2 CPUs and 2 GPUs; this process is connected."""
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # short: sockets lie in it
    before = {name: os.environ.get(name) for name in (*CHANGED, "RAY_ADDRESS", "CUDA_VISIBLE_DEVICES")}
    os.environ |= CHANGED | {"RAY_TMPDIR": folder}
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    made = cluster_utils.Cluster(initialize_head=True, head_node_args=SMALL | {"num_cpus": 2, "num_gpus": 1})
    made.add_node(num_cpus=2, num_gpus=2, **SMALL)
    os.environ["RAY_ADDRESS"] = made.address
    ray.init(address=made.address, logging_level="ERROR", log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()
    for name, value in before.items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    shutil.rmtree(folder, ignore_errors=True)


def ray_pool(**settings):
    from derl_gym.trials.ray_pool import RayPool

    return RayPool(**{"preload": ("targets",)} | settings)


def make(folder: Path, target: str, *payloads: dict, **fields) -> list[Job]:
    return [Job(str(i), f"targets:{target}", payload, folder / str(i), **fields) for i, payload in enumerate(payloads)]


def raylet_of(pid: int) -> int:
    """The node that a process runs on, by the process of Ray that all others of the node descend from."""
    return next(parent.pid for parent in psutil.Process(pid).parents() if parent.name() == "raylet")


def test_outcomes_are_those_of_the_local_pool(cluster, tmp_path: Path) -> None:
    jobs = [
        ("quick", {"text": "\u00e9\n", "x": [1.5, None]}, None),
        ("raises", {}, None),
        ("exits", {"status": 3}, None),
        ("kills_itself", {"signal": signal.SIGKILL}, None),
        ("out_of_memory", {}, None),
        ("sleeps", {"seconds": 60}, 0.5),
        ("hangs_in_c_ignoring_sigterm", {}, 0.5),
        ("returns_a_list", {}, None),
        ("leaves_a_grandchild", {}, None),
        ("prints", {}, None),
    ]
    found = {}
    for kind, pool in (("local", LocalPool(workers=2, preload=("targets",))), ("ray", ray_pool(workers=2))):
        folder = tmp_path / kind
        with pool:
            made = [Job(name, f"targets:{name}", given, folder / name, limit) for name, given, limit in jobs]
            outcomes = {outcome.id: outcome for outcome in pool.run(made)}
        found[kind] = {}
        for name, _, _ in jobs:
            outcome = outcomes[name]
            failure = outcome.failure and outcome.failure.replace(str(folder), "").split(" (node ")[0]
            result = outcome.result and {k: v for k, v in outcome.result.items() if k not in ("pid", "grandchild")}
            result = result and {k: str(v).replace(str(folder), "") for k, v in result.items()}
            log = [line for line in (folder / name / "log.txt").read_text().splitlines() if line[:1] != " "]
            log = [line.split(", pid")[0] for line in log]
            found[kind][name] = (outcome.attempts, failure, result, sorted(log))
            assert outcome.pid is not None and not alive(outcome.pid)
        assert not alive(outcomes["leaves_a_grandchild"].result["grandchild"])
    assert found["ray"] == found["local"]


def test_a_killed_ray_worker_is_a_failed_attempt(cluster, tmp_path: Path) -> None:
    started: list[Started] = []
    with ray_pool() as pool:
        events = pool.events(make(tmp_path, "begin_and_end", {"seconds": 1}))
        for event in events:
            if isinstance(event, Outcome):
                break
            started.append(event)
            if event.attempt == 1:
                server, launcher, worker, *_ = [parent.pid for parent in psutil.Process(event.pid).parents()]
                os.kill(worker, signal.SIGKILL)
                left = (event.pid, server, launcher)
                assert wait_until(lambda left=left: not any(map(alive, left)), 5)
    assert [(start.attempt, start.host) for start in started] == [(1, os.uname().nodename), (2, os.uname().nodename)]
    assert event.result is not None and event.attempts == 2
    assert (tmp_path / "0" / "log.txt").read_text().count("== attempt 2, pid") == 1


def test_gpus_of_the_nodes_are_leased_and_never_shared(cluster, tmp_path: Path) -> None:
    """Jobs of one GPU on the three of two nodes, with crashes among them; then jobs of two GPUs, each on one node."""
    here = {"place": str(tmp_path / "here"), "count": 3}  # three at once, or the test takes a minute and fails
    jobs = [Job(name, "targets:kills_itself", {"signal": 9}, tmp_path / name) for name in ("crash1", "crash2")]
    jobs += make(tmp_path / "one", "meets", *[here] * 4)
    with ray_pool(workers=5, gpus=1) as pool:
        outcomes = {outcome.id: outcome for outcome in pool.run(jobs)}
    assert outcomes.pop("crash1").attempts == outcomes.pop("crash2").attempts == 2
    runs = [outcome.result for outcome in outcomes.values()]
    leases = [(*run["nodes"], run["device"], run["begin"], run["end"]) for run in runs]
    used = {lease[:2] for lease in leases}
    assert sorted(device for _, device in used) == ["0", "0", "1"] and len({node for node, _ in used}) == 2
    for lease in used:
        ours = sorted(times for node, device, *times in leases if (node, device) == lease)
        assert all(before[1] <= after[0] for before, after in zip(ours, ours[1:], strict=False))
    with ray_pool(workers=2, gpus=2) as pool:
        runs = [outcome.result for outcome in pool.run(make(tmp_path / "two", "begin_and_end", *[{"seconds": 0}] * 2))]
        assert [run["device"] for run in runs] == ["0,1", "0,1"]
        first, second = sorted(runs, key=lambda run: run["begin"])
        assert first["end"] <= second["begin"]
    with ray_pool(gpus=3) as pool, pytest.raises(PoolError, match="needs a node with 3 CPUs and 3 GPUs.* have"):
        list(pool.run(make(tmp_path / "three", "quick", {})))


def test_a_node_that_goes_away_is_a_failed_attempt(cluster, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=2, num_gpus=4, **SMALL)
    raylet = node.all_processes["raylet"][0].process.pid
    started: list[Started] = []
    with ray_pool(workers=2, gpus=2) as pool:
        outcomes = []
        for event in pool.events(make(tmp_path, "begin_and_end", *[{"seconds": 2}] * 3)):
            if isinstance(event, Outcome):
                outcomes.append(event)
                continue
            started.append(event)
            if psutil.Process(raylet).status() != psutil.STATUS_ZOMBIE and raylet_of(event.pid) == raylet:
                server, launcher, worker, *_ = [parent.pid for parent in psutil.Process(event.pid).parents()]
                os.kill(raylet, signal.SIGKILL)  # a zombie from now on, as where nobody reaps it
                left = (event.pid, server, launcher, worker)
                assert wait_until(lambda left=left: not any(map(alive, left)), 10), "what a lost node runs ends there"
    assert psutil.Process(raylet).status() == psutil.STATUS_ZOMBIE
    cluster.remove_node(node, allow_graceful=False)
    assert sorted(outcome.attempts for outcome in outcomes) == [1, 1, 2] and all(o.result for o in outcomes)
    with ray_pool(gpus=4) as pool, pytest.raises(PoolError, match="4 GPUs"):
        list(pool.run(make(tmp_path, "quick", {})))


def test_a_worker_that_hangs_is_given_up(cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from derl_gym.trials import ray_pool as module

    monkeypatch.setattr(module, "_GRACE", 1.0)
    monkeypatch.setattr(module, "_LOOK", 0.5)
    frozen: list[int] = []
    with ray_pool() as pool:
        for event in pool.events(make(tmp_path, "begin_and_end", {"seconds": 0.5}, timeout=5.0)):
            if isinstance(event, Outcome):
                break
            if event.attempt == 1:
                frozen.append(psutil.Process(event.pid).parents()[2].pid)
                os.kill(frozen[0], signal.SIGSTOP)
    os.kill(frozen[0], signal.SIGKILL)
    assert event.result is not None and event.attempts == 2


def test_closing_kills_what_runs_and_leaves_nothing(cluster, tmp_path: Path) -> None:
    with ray_pool(workers=2) as pool:
        events = pool.events(make(tmp_path, "leaves_a_grandchild", *[{"hang": True}] * 3))
        pids = [next(events).pid for _ in range(2)]
        files = [tmp_path / str(i) / "grandchild" for i in range(2)]
        assert wait_until(lambda: all(file.exists() and file.read_text() for file in files), 5)
        pids += [int(file.read_text()) for file in files]
        events.close()
        assert wait_until(lambda: not any(map(alive, pids)), 2)
        assert not (tmp_path / "2").exists()
        (outcome,) = pool.run(make(tmp_path, "quick", {}))
        assert outcome.result is not None
    assert ray.is_initialized(), "what others have connected stays connected"


HANGING = """
    from derl_gym.trials.ray_pool import RayPool
    from derl_gym.trials.pool import Job
    pool = RayPool(workers=2, preload=("targets",))
    jobs = [Job(str(i), "targets:leaves_a_grandchild", {{"hang": True}}, {folder!r} + f"/{{i}}") for i in range(2)]
    for outcome in pool.run(jobs, lambda job, pid, attempt: print(pid, flush=True)):
        print(outcome)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_a_driver(cluster, script, tmp_path: Path, number: int) -> None:
    started = script(HANGING.format(folder=str(tmp_path)))
    pids = [int(started.line()), int(started.line())]
    assert wait_until(lambda: all((tmp_path / f"{i}" / "grandchild").exists() for i in range(2)), 5)
    pids += [psutil.Process(pids[0]).ppid()]
    pids += [child.pid for pid in pids[:2] for child in psutil.Process(pid).children()]
    assert len(pids) == 5
    os.kill(started.process.pid, number)
    _, error = started.process.communicate(timeout=15)
    assert wait_until(lambda: not any(map(alive, pids)), 10), "within ten seconds"
    assert number == signal.SIGKILL or "KeyboardInterrupt" in error


# What may differ: clock, processes, and the hash of the installed files, where somebody works on them meanwhile.
CLOCK = {"started_at", "ended_at", "seconds", "pid", "host", "proposed_at", "settled_at", "code"}
CLOCK_OF_RESULT = {"train_seconds", "eval_seconds", "peak_memory"}


def without_clock(row: dict) -> dict:
    row = {key: value for key, value in row.items() if key not in CLOCK}
    if isinstance(row.get("result"), dict):
        row["result"] = {key: value for key, value in row["result"].items() if key not in CLOCK_OF_RESULT}
    return row


def test_a_search_is_the_same_on_a_cluster(cluster, tmp_path: Path) -> None:
    """Two outer steps in processes of this machine, and on two nodes with one, two and four workers."""
    ledgers = {}
    for pool, workers in (("processes", 2), ("ray", 1), ("ray", 2), ("ray", 4)):
        folder = tmp_path / f"{pool}{workers}"
        envs = gym.make_vec(
            "DERL-Arithmetic-v0",
            num_envs=3,
            outer_steps=2,
            pool=pool,
            workers=workers,
            run_dir=str(folder),
            inner={"steps": 2, "eval_examples": 100},
        )
        try:
            envs.reset(seed=3)
            for texts in (("g1", "g2-g1", "2*g1+1"), ("g1+g2", "g1+", "g1/(g1-g1)")):
                envs.step(np.stack([envs.unwrapped.programs.encode(text) for text in texts]))
        finally:
            envs.close()
        with Ledger(folder, readonly=True) as ledger:
            trials = sorted(ledger.trials(), key=lambda row: row["identity"])
            ledgers[pool, workers] = [*map(without_clock, ledger.proposals()), *map(without_clock, trials)]
            assert {trial["host"] for trial in trials} == {socket.gethostname()} and all(t["pid"] for t in trials)
    first, *others = ledgers.values()
    assert [row["status"] for row in first] == ["scored"] * 4 + ["invalid"] * 2 + [row["status"] for row in first[6:]]
    assert len(first) == 6 + 4 and any(row["score"] for row in first)
    for other in others:
        for there, here in zip(other, first, strict=True):
            assert {key: (there[key], here[key]) for key in there | here if there[key] != here[key]} == {}


@pytest.fixture
def elsewhere(cluster, script, tmp_path: Path):
    """Runs a script on a machine of its own, as far as the folder ``private`` goes: nodes see another one there."""
    (tmp_path / "private").mkdir()
    mount = f"mount -t tmpfs tmpfs {tmp_path}/private"
    if (
        sys.platform != "linux"
        or subprocess.run(["unshare", "--mount", "sh", "-c", mount], capture_output=True).returncode
    ):
        pytest.skip("a private file system needs Linux and root")
    code = """
        import os, subprocess, sys
        if len(sys.argv) == 1:
            command = {mount!r} + ' && exec "$@"'
            os.execvp("unshare", ["unshare", "--mount", "sh", "-c", command, "sh", sys.executable, __file__, "again"])
        from pathlib import Path
        from derl_gym.trials.pool import Job, PoolError
        from derl_gym.trials.ray_pool import RayPool
        private = Path({private!r})
    """
    return lambda body: script(code.format(mount=mount, private=str(tmp_path / "private")) + body).end()


def test_without_a_shared_folder_small_files_come_back(elsewhere, tmp_path: Path) -> None:
    printed = elsewhere("""
        def job(name, target, **fields):
            return Job(name, f"targets:{target}", {}, private / name, **fields)
        with RayPool(preload=("targets",), attempts=2) as pool:
            for outcome in pool.run([job("quick", "quick"), job("prints", "prints"), job("again", "raises")]):
                print(outcome.id, outcome.attempts, outcome.result is not None, outcome.failure)
            print(sorted(path.name for path in (private / "again").iterdir()))
            for name in ("again", "prints"):
                print((private / name / "log.txt").read_text())
            try:
                list(pool.run([job("kept", "quick", keeps_files=True)]))
            except PoolError as error:
                print("refused:", error)
    """)
    lines = printed.splitlines()
    assert lines[0] == "quick 1 True None" and lines[1] == "prints 1 True None"
    host = socket.gethostname()
    assert lines[2] == (
        f"again 2 False ValueError: the target does not like this (log: {tmp_path}/private/again/log.txt) (node {host})"
    )
    assert lines[3] == "['error.json', 'log.txt']"
    assert printed.count("== attempt 1, pid") == 2 and printed.count("== attempt 2, pid") == 1
    assert "from a grandchild" in printed
    assert f"refused: node {host} does not share the folder {tmp_path}/private/kept" in printed
    assert not list((tmp_path / "private").iterdir()), "nothing was written on the node's side"
    assert not [
        path for path in Path(tempfile.gettempdir()).glob("derl-gym-*") if path.stat().st_mtime > time.time() - 60
    ]


def test_without_a_cluster_it_starts_a_ray_of_its_own(script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where an earlier Ray has left the address of nobody; Ray would wait for it for minutes."""
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{bound.getsockname()[1]}"
    (Path(folder) / "ray").mkdir()
    (Path(folder) / "ray" / "ray_current_cluster").write_text(nobody)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", folder)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    started = script(f"""
        import os
        from derl_gym.trials.pool import Job, PoolError
        from derl_gym.trials.pools import open_pool
        folder = {str(tmp_path)!r}
        with open_pool("ray", 2, 2) as pool:
            pool.preload = ()
            (outcome,) = pool.run([Job("a", "targets:surroundings", {{}}, folder + "/a", env={{"MINE": "x"}})])
            print([outcome.result[name] for name in ("device", "mine", "threads")], flush=True)
        os.environ["RAY_ADDRESS"] = {nobody!r}
        try:
            list(pool.run([Job("b", "targets:quick", {{}}, folder + "/b")]))
        except PoolError as error:
            print(error, flush=True)
        input()
    """)
    assert started.line() == f"['4,5', 'x', '{os.environ.get('OMP_NUM_THREADS', '1')}']"
    assert started.line().startswith(f"RAY_ADDRESS is {nobody}, expected the HOST:PORT of a Ray cluster: ")
    assert wait_until(lambda: not started.family(), 10), "the Ray it had started has ended with the pool"
    shutil.rmtree(folder, ignore_errors=True)


def test_ray_that_is_not_installed_is_said_in_a_line(script) -> None:
    printed = script("""
        import sys
        import derl_gym
        assert "ray" not in sys.modules
        sys.modules["ray"] = None
        from derl_gym.trials.pools import open_pool
        try:
            open_pool("ray", 1)
        except ImportError as error:
            print(error)
    """).end()
    assert printed == "pool='ray' needs Ray: pip install \"derl-gym[ray]\"\n"
