"""One inner run as several processes in data parallel, one per GPU (gloo on the CPU).

The ranks are forked inside the run's own process group, so what kills the run kills them all. The first that fails
ends the others: no rank waits for one that is gone. Rank 0's result is the run's.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed

from derl_gym.secrets import redacted

T = TypeVar("T")
Target = Callable[[dict[str, Any], Path], dict[str, Any]]


def world() -> tuple[int, int]:
    """This process' rank and how many there are; ``(0, 1)`` where it is alone."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def gathered(value: T) -> list[T]:
    """Every rank's value, in the order of the ranks. All of them have to call it."""
    count = world()[1]
    if count == 1:
        return [value]
    values: list[Any] = [None] * count
    torch.distributed.all_gather_object(values, value)
    return values


def share(items: Sequence[T]) -> list[T]:
    """This rank's consecutive part of the items. All parts are equally long: the first item fills up the last ones."""
    rank, count = world()
    size = -(-len(items) // count)
    part = list(items[rank * size : (rank + 1) * size])
    return part + list(items[:1]) * (size - len(part))


def keep_gpus(count: int) -> None:
    """See only the first GPUs of those that this process may use; ``trl`` refuses more than it has ranks.

    Raises:
        RuntimeError: there are GPUs, but not that many.
    """
    seen = torch.cuda.device_count()
    if 0 < seen < count:
        raise RuntimeError(f"inner.gpus is {count}, but this inner run may use {seen} (CUDA_VISIBLE_DEVICES)")
    if seen > count:
        names = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(seen)))
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names.split(",")[:count])


def device_name(device: torch.device) -> str:
    """``"cpu"``, or the GPU's name; ``"2 x NAME"`` where two ranks have one each."""
    if device.type != "cuda":
        return device.type
    name, count = torch.cuda.get_device_name(device), world()[1]
    return name if count == 1 else f"{count} x {name}"


def run_ranks(target: Target, payload: dict[str, Any], folder: Path, count: int) -> dict[str, Any]:
    """Call ``target(payload, folder)`` in processes that know of each other as ``torchrun``'s do.

    Nothing may have touched a GPU in this process before: CUDA does not survive a fork.

    Returns:
        What rank 0 returned.

    Raises:
        RuntimeError: a rank failed; the message is that of the first that did.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob("rank-*.json"):
        left.unlink()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_rank, args=(target, payload, folder, r, count, port)) for r in range(count)]
    try:
        for rank in ranks:
            rank.start()
        waiting = {rank.sentinel: rank for rank in ranks}
        while waiting:
            for sentinel in wait(list(waiting)):
                waiting.pop(sentinel).join()  # type: ignore[call-overload]
            if any(rank.exitcode for rank in ranks):
                raise RuntimeError(_first_failure(folder, [rank.exitcode for rank in ranks]))
    finally:
        for rank in ranks:
            if rank.pid is not None:
                rank.kill()
                rank.join()
    return json.loads((folder / "rank-0.json").read_text())["result"]


def _rank(target: Target, payload: dict[str, Any], folder: Path, rank: int, count: int, port: int) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(count),
        LOCAL_WORLD_SIZE=str(count),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    report: dict[str, Any]
    try:
        report = {"result": target(payload, folder)}
    except BaseException as error:
        print(f"rank {rank}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        report = {"error": f"{type(error).__name__}: {error}", "when": time.monotonic()}
    (folder / f"rank-{rank}.json").write_text(redacted(json.dumps(report)))
    sys.stdout.flush()
    os._exit(1 if "error" in report else 0)  # past the exit handlers that the parent has registered


def _first_failure(folder: Path, statuses: Sequence[int | None]) -> str:
    """In words. A rank that goes makes the others fail too, later: only the first to fail says why."""
    killed = [r for r, status in enumerate(statuses) if status is not None and status < 0]
    if killed:
        name = signal.Signals(-(statuses[killed[0]] or 0)).name
        return f"rank {killed[0]} of {len(statuses)} was killed by {name}"
    errors = []
    for r in range(len(statuses)):
        file = folder / f"rank-{r}.json"
        report = json.loads(file.read_text()) if file.exists() and statuses[r] else {}
        if "error" in report:
            errors.append((report["when"], f"rank {r} of {len(statuses)}: {report['error']}"))
    return min(errors)[1] if errors else f"a rank ended without a word, with status {max(s or 0 for s in statuses)}"
