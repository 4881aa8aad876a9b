"""The Ray pool: the local pool's jobs, limits and attempts, with every attempt a Ray task on some node of a cluster.

The driver keeps the queue, the retries and all that is written down; Ray places a task and leases its GPUs; on the
node a :class:`~derl_gym.trials.pool.LocalPool` of one worker, warm from task to task, runs the job. Results come
back through Ray; what else a job keeps needs a file system that the nodes share.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import derl_gym
from derl_gym.trials.devices import visible_devices
from derl_gym.trials.jobs import Job, Outcome, Started, explain, prepare_folder, seal
from derl_gym.trials.pool import LocalPool, PoolError, kept_warm
from derl_gym.trials.pools import Pool

try:
    import ray
    from ray.exceptions import OutOfMemoryError, RayError, RayTaskError
except ImportError as error:
    raise ImportError("pool='ray' needs Ray: pip install \"derl-gym[ray]\"") from error

__all__ = ["RayPool"]

_GRACE = 60.0  # seconds past a job's limit after which a silent node counts as dead; its own pool has killed the job
_LOOK = 5.0  # seconds between two looks at what the cluster still has
_LARGEST = 4 << 20  # bytes that come back of each file in the folder of a job that shares no file system
_TOKEN = ".driver"  # file by which a node knows the driver's folder
# An exiting Ray worker first kills its children. This one in between dies, and the server behind it kills what it runs.
_LAUNCHER = ("sh", "-c", '"$@"; exit $?', "sh")
_OBJECT_STORE = 100 << 20  # bytes; only small texts pass through it


class _Attempt:
    """One try of a job, from the queue to its end."""

    def __init__(self, job: Job, number: int) -> None:
        self.job = job
        self.number = number
        self.pid: int | None = None
        self.host: str | None = None
        self.overdue = float("inf")

    def started(self, pid: int, host: str) -> None:
        self.pid, self.host = pid, host
        if self.job.timeout is not None:
            self.overdue = time.monotonic() + self.job.timeout + _GRACE


class RayPool(Pool):
    """Runs jobs on a Ray cluster, at most ``workers`` at a time.

    It connects at its first job: to the cluster that ``RAY_ADDRESS`` names, else to one that ``ray start`` has made of
    this machine, else it starts a Ray of its own here, which ends with :meth:`close`. A Ray that the process was
    connected to already is used and left alone.

    Args:
        workers: Jobs that are handed to Ray at once; those that find no room wait there.
        gpus: GPUs of one node that a job needs for itself. Where no node has any, jobs do without.
        preload: Modules that are imported before a job is forked.
        attempts: Attempts per job in all; a killed worker or a lost node is a failed attempt.

    A job asks for one CPU per GPU (one without GPUs), or as many as ``OMP_NUM_THREADS`` says here, which is also what
    its processes get.
    """

    def __init__(
        self,
        workers: int = 1,
        gpus: int = 0,
        preload: Sequence[str] = ("derl_gym.inner.train",),
        attempts: int = 2,
    ) -> None:
        if workers < 1 or attempts < 1 or gpus < 0:
            raise ValueError(
                f"workers and attempts must be at least 1 and gpus at least 0, not {workers}, {attempts} and {gpus}"
            )
        self.workers = workers
        self.gpus = gpus
        self.preload = tuple(preload)
        self.attempts = attempts
        self.threads = max(1, int(os.environ.get("OMP_NUM_THREADS") or 1))
        self.cpus = self.threads * max(1, gpus)
        self._connected = False

    def close(self) -> None:
        """Cancel what runs, and end the Ray that the pool has started, or its connection."""
        if self._active is not None:
            self._active.close()
        if self._connected:
            self._connected = False
            if not kept_warm(ray.shutdown):
                ray.shutdown()

    def _events(self, jobs: list[Job], first_attempt: int) -> Generator[Started | Outcome, None, None]:
        last_attempt = first_attempt + self.attempts - 1
        waiting = deque(_Attempt(job, first_attempt) for job in jobs)
        running: dict[Any, _Attempt] = {}  # by the stream of the task's messages
        ended: list[Outcome] = []

        def end(
            attempt: _Attempt, failure: str | None, result: dict[str, Any] | None = None, seconds: float = 0.0
        ) -> None:
            if failure is not None and attempt.number < last_attempt:
                waiting.appendleft(_Attempt(attempt.job, attempt.number + 1))
            else:
                ended.append(Outcome(attempt.job.id, result, failure, attempt.number, seconds, attempt.pid))

        try:
            while waiting or running or ended:
                while waiting and len(running) < self.workers:
                    needs = self._needs()
                    attempt = waiting.popleft()
                    try:
                        order = _order(attempt, self.preload, self.threads, int(needs["num_gpus"]))
                    except OSError as error:
                        end(attempt, explain(f"{attempt.job.folder} cannot be used: {error}"))
                        continue
                    running[_task().options(**needs, name=f"derl_gym {attempt.job.id}").remote(order)] = attempt
                while ended:  # the workers have their next jobs by now
                    yield ended.pop(0)
                for stream in ray.wait(list(running), num_returns=1, timeout=_LOOK)[0] if running else ():
                    attempt = running[stream]
                    message = _message(stream, attempt)
                    if message["event"] == "started":
                        attempt.started(message["pid"], message["host"])
                        yield Started(attempt.job, message["pid"], attempt.number, message["host"])
                        continue
                    del running[stream]
                    with contextlib.suppress(OSError):
                        (Path(attempt.job.folder) / _TOKEN).unlink()
                    if message["event"] == "refused":
                        raise PoolError(message["reason"])
                    _keep(message.get("files", {}), Path(attempt.job.folder))
                    end(attempt, message["failure"], message.get("result"), message.get("seconds", 0.0))
                if any(attempt.pid is None for attempt in running.values()):
                    self._needs()
                for stream, attempt in list(running.items()):
                    if time.monotonic() >= attempt.overdue:
                        del running[stream]
                        ray.cancel(stream, force=True)
                        end(attempt, explain(f"node {attempt.host} stopped answering"))
        finally:
            _cancel(running)

    def _needs(self) -> dict[str, float]:
        """What a task asks for, after a look whether some node has it.

        Raises:
            PoolError: none has, so the task would wait for good.
        """
        self._connect()
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = self.gpus if any(node.get("GPU", 0) for node in nodes) else 0
        if not any(node.get("CPU", 0) >= self.cpus and node.get("GPU", 0) >= gpus for node in nodes):
            there = "; ".join(f"{node.get('CPU', 0):g} and {node.get('GPU', 0):g}" for node in nodes)
            raise PoolError(
                f"an inner run needs a node with {self.cpus} CPUs and {gpus} GPUs; those of the Ray cluster have "
                f"{there or 'none, there are no nodes'}"
            )
        return {"num_cpus": self.cpus, "num_gpus": gpus}

    def _connect(self) -> None:
        if ray.is_initialized():
            return
        quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
        address = _address()
        try:
            if address is not None:
                ray.init(address=address, **quiet)
            else:
                os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
                os.environ.setdefault("RAY_worker_niceness", "0")  # as the local pool's; Ray's own is 15
                ray.init(
                    address="local",
                    num_cpus=self.workers * self.cpus,
                    num_gpus=len(visible_devices()),
                    include_dashboard=False,
                    object_store_memory=_OBJECT_STORE,
                    **quiet,
                )
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            token = address is not None and os.environ.get("RAY_AUTH_MODE") != "token"
            hint = "; a cluster that asks for a token needs RAY_AUTH_MODE=token here as well" if token else ""
            raise PoolError(f"Ray cannot be used: {error}{hint}") from error
        self._connected = True


def _address() -> str | None:
    """The cluster that ``RAY_ADDRESS`` names, or that ``ray start`` has left word of here; ``None``: there is none.

    Ray itself would try an address at which nobody answers for minutes.

    Raises:
        PoolError: nobody answers at the named one.
    """
    named = os.environ.get("RAY_ADDRESS", "auto")
    if named == "local":
        return None
    address = named
    if named == "auto":
        try:
            address = (Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster").read_text().strip()
        except OSError:
            return None
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5.0).close()
    except (OSError, ValueError) as error:
        if named == "auto":
            return None
        hint = " (start the command on a node of the cluster)" if "://" in named else ""
        raise PoolError(f"RAY_ADDRESS is {named}, expected the HOST:PORT of a Ray cluster{hint}: {error}") from error
    return address


def _order(attempt: _Attempt, preload: Sequence[str], threads: int, gpus: int) -> str:
    """What a node is told, as JSON: the job, and what it needs to know of the driver."""
    folder = prepare_folder(attempt.job)
    token = secrets.token_hex(8)
    (folder / _TOKEN).write_text(token)
    return json.dumps(
        {
            "job": dataclasses.asdict(attempt.job) | {"folder": str(folder)},
            "attempt": attempt.number,
            "preload": list(preload),
            "threads": threads,
            "gpus": gpus,
            "token": token,
            "version": derl_gym.__version__,
            "path": [os.path.abspath(entry) for entry in sys.path],
            "cwd": os.getcwd(),
            "data": os.environ.get("DERL_GYM_DATA"),
            "driver": socket.gethostname(),
        }
    )


def _message(stream: Any, attempt: _Attempt) -> dict[str, Any]:
    """The next message of a task, or what became of it."""
    where = f" (node {attempt.host})" if attempt.host else ""
    try:
        text: Any = ray.get(next(stream))
        return json.loads(text)
    except RayTaskError as error:  # before or beside the job, which fails in words of its own
        cause = str(error.cause or error).strip()
        reason = f"a Ray task fails on {error.ip or 'its node'}: {type(error.cause).__name__}: {cause}"
    except OutOfMemoryError:
        return {"event": "ended", "failure": explain(f"Ray ended its worker: the node was out of memory{where}")}
    except (RayError, StopIteration) as error:
        lost = {"WorkerCrashedError": "the Ray worker was killed", "NodeDiedError": "its node went away"}
        name = type(error).__name__
        return {"event": "ended", "failure": explain(f"{lost.get(name, f'the Ray task was lost, {name}')}{where}")}
    return {"event": "refused", "reason": reason}


def _keep(files: dict[str, str], folder: Path) -> None:
    """Lay down what came back from a node that does not share the folder; the log goes on behind earlier attempts."""
    with contextlib.suppress(OSError):  # a full disk costs the log, not the result
        for name, text in files.items():
            with (folder / Path(name).name).open("a" if name == "log.txt" else "w") as file:
                file.write(text)
    seal(folder)


def _cancel(streams: dict[Any, _Attempt]) -> None:
    """Kill the workers of tasks, and with them what they run; waits some seconds until they are gone."""
    if not ray.is_initialized():
        return
    for stream in streams:
        with contextlib.suppress(RayError, ValueError, TypeError):
            ray.cancel(stream, force=True)
    deadline = time.monotonic() + 5.0
    left: list[Any] = list(streams)
    while left and time.monotonic() < deadline:
        ready: list[Any] = ray.wait(left, num_returns=1, timeout=0.5)[0]
        for stream in ready:
            try:
                ray.get(next(stream))
            except (RayError, StopIteration):
                left.remove(stream)


# -- on a node ------------------------------------------------------------------------------------------

_local: LocalPool | None = None  # of this Ray worker; its server stays warm as long as the worker lives


def _task() -> Any:
    # Ray would end a worker after every task with GPUs, and try again what it had lost: neither is wanted.
    return ray.remote(max_calls=0, max_retries=0)(_run_here)


def _run_here(text: str) -> Iterator[str]:
    """The Ray task: run one attempt at a job on this node; yields messages to the driver, JSON objects.

    ``"started"`` (pid, host), then ``"ended"`` (failure, result, seconds, files), or ``"refused"`` (reason) where
    the cluster and not the job is to blame.
    """
    order = json.loads(text)
    host = socket.gethostname()
    job = Job(**order["job"] | {"folder": Path(order["job"]["folder"])})
    if derl_gym.__version__ != order["version"]:
        reason = f"node {host} has derl_gym {derl_gym.__version__}, the driver has {order['version']}"
        yield json.dumps({"event": "refused", "reason": reason})
        return
    shared = _is_shared(job.folder, order["token"])
    if job.keeps_files and not shared:
        reason = (
            f"node {host} does not share the folder {job.folder} with {order['driver']}: kept policies (keep_policies, "
            "variant 'full', final training) need a run directory on a file system that all nodes share"
        )
        yield json.dumps({"event": "refused", "reason": reason})
        return
    devices = sorted((str(device) for device in ray.get_gpu_ids()), key=lambda name: (len(name), name))
    if order["gpus"]:
        job = dataclasses.replace(job, env=job.env | {"CUDA_VISIBLE_DEVICES": ",".join(devices)})
    folder = job.folder if shared else Path(tempfile.mkdtemp(prefix="derl-gym-"))
    try:
        pool = _local_pool(order)
        job = dataclasses.replace(job, folder=folder)
        with contextlib.closing(pool.events([job], first_attempt=order["attempt"])) as events:
            for event in events:
                if isinstance(event, Started):
                    yield json.dumps({"event": "started", "pid": event.pid, "host": host})
                    continue
                failure = event.failure and event.failure.replace(str(folder), order["job"]["folder"])
                ended = {"event": "ended", "result": event.result, "seconds": event.seconds}
                ended["failure"] = failure and f"{failure} (node {host})"
                ended["files"] = {} if shared else _small_files(folder)
                yield json.dumps(ended)
    except PoolError as error:
        yield json.dumps({"event": "refused", "reason": f"on node {host}: {error}"})
    finally:
        if not shared:
            shutil.rmtree(folder, ignore_errors=True)


def _is_shared(folder: Path, token: str) -> bool:
    try:
        return (folder / _TOKEN).read_text() == token
    except OSError:
        return False


def _local_pool(order: dict[str, Any]) -> LocalPool:
    """This worker's pool, in surroundings like the driver's."""
    global _local
    if _local is None:
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    sys.path += [entry for entry in order["path"] if entry not in sys.path]
    with contextlib.suppress(OSError):
        os.chdir(order["cwd"])
    os.environ["OMP_NUM_THREADS"] = str(order["threads"])  # of Ray, it is the CPUs that the task has asked for
    if order["data"]:
        os.environ.setdefault("DERL_GYM_DATA", order["data"])
    if _local is None or list(_local.preload) != order["preload"]:
        if _local is not None:
            _local.close()
        _local = LocalPool(workers=1, preload=order["preload"], attempts=1, launcher=_LAUNCHER)
    return _local


def _end_with(raylet: int) -> None:
    """End this worker with the process that its node consists of.

    Ray's own look at it takes a zombie for alive, and in a container nobody may ever reap one: what a lost node runs
    would stay there, with the memory and the GPUs that it holds.
    """
    while os.getppid() == raylet:
        time.sleep(1.0)
    os._exit(1)


def _small_files(folder: Path) -> dict[str, str]:
    """The texts in a job's folder, the end of each."""
    found = {}
    for path in folder.iterdir():
        if path.is_file() and path.name != _TOKEN:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - _LARGEST))
                found[path.name] = file.read().decode(errors="replace")
    return found
