"""What a pool runs and what comes of it: jobs, outcomes, and failures in words.

Shared by every kind of pool. A job is a function's name and a JSON payload, so it can be run anywhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import signal
from pathlib import Path
from typing import Any

from derl_gym.secrets import redact_file, redacted
from derl_gym.trials.private import make_private, private_folder


@dataclasses.dataclass(frozen=True)
class Job:
    """One call in a process of its own.

    Attributes:
        id: Unique among the jobs that are run together.
        target: ``"module:function"``, called as ``function(payload, folder)``; returns a JSON-able dict.
        payload: JSON-able argument.
        folder: Made if need be, and this job's alone: ``log.txt`` (both output streams, all attempts), and
            ``result.json`` or ``error.json``.
        timeout: Wall-clock seconds of one attempt, after which its process group is killed; ``None``: no limit.
        env: Environment variables that the process gets on top of the pool's.
        keeps_files: Whether it leaves more in its folder than its log and its result, to be found there afterwards.
    """

    id: str
    target: str
    payload: dict[str, Any]
    folder: Path
    timeout: float | None = None
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    keeps_files: bool = False


@dataclasses.dataclass(frozen=True)
class Started:
    """An attempt at a job has become a process.

    Attributes:
        job: The job.
        pid: Its process id.
        attempt: Which attempt it is, from 1.
        host: Name of the machine that it runs on.
    """

    job: Job
    pid: int
    attempt: int
    host: str


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job ended, after its last attempt.

    Attributes:
        id: The job's.
        result: What the target returned; ``None`` when it failed.
        failure: One sentence on what went wrong in the last attempt; ``None`` with a result.
        attempts: Attempts made, 1 or more.
        seconds: Wall-clock seconds of the last attempt, from fork to exit.
        pid: Process id of the last attempt; ``None`` when it never started.
    """

    id: str
    result: dict[str, Any] | None
    failure: str | None
    attempts: int
    seconds: float
    pid: int | None


def check_distinct(jobs: list[Job]) -> None:
    """Refuse jobs that share an id or a folder: they would overwrite each other's results.

    Raises:
        ValueError: which two do.
    """
    for name in ("id", "folder"):
        seen: set[str] = set()
        for job in jobs:
            value = str(getattr(job, name))
            if value in seen:
                raise ValueError(f"two jobs have the {name} {value!r}; each needs its own")
            seen.add(value)


def prepare_folder(job: Job) -> Path:
    """Make the job's folder and clear it of what an earlier attempt left; returns its absolute path."""
    folder = Path(job.folder).absolute()
    private_folder(folder)
    for name in ("result.json", "error.json"):
        (folder / name).unlink(missing_ok=True)
    return folder


def read_result(job: Job, status: int, timed_out: bool) -> tuple[dict[str, Any] | None, str | None]:
    """What a process left in the job's folder.

    Args:
        job: The job.
        status: Exit status as ``subprocess`` counts it: negative for a signal.
        timed_out: Whether it was killed because its time was over.

    Returns:
        The result and ``None``, or ``None`` and the failure in words.
    """
    folder = Path(job.folder)
    seal(folder)
    if timed_out:
        failure = f"exceeded its limit of {job.timeout:g} s"
    elif status == 0:
        try:
            return json.loads((folder / "result.json").read_text()), None
        except FileNotFoundError:
            failure = "ended without a result"
        except (OSError, ValueError) as error:
            failure = f"left a result that cannot be read: {error}"
    else:
        failure = describe_exit(status)
        if status == 1:
            with contextlib.suppress(OSError, ValueError):
                error = json.loads((folder / "error.json").read_text())
                failure = f"{error['type']}: {error['message'].strip()}".removesuffix(": ")
    return None, explain(failure, folder / "log.txt")


def seal(folder: Path) -> None:
    """Redact the log of a job that has ended, and make its folder private; as far as the disk lets us."""
    with contextlib.suppress(OSError):
        redact_file(folder / "log.txt")
        make_private(folder)


def describe_exit(status: int) -> str:
    """An exit status in words: ``"killed by signal 9 (out of memory?)"``."""
    if status == -signal.SIGKILL:
        return "killed by signal 9 (out of memory?)"
    if status < 0:
        return f"killed by signal {-status} ({signal.strsignal(-status)})"
    reason = f" ({os.strerror(status)})" if status in _ERRNO_STATUSES else ""
    return f"exited with status {status}{reason}"


def explain(failure: str, log: Path | None = None) -> str:
    """A failure, redacted and shortened, with what helps against those that users meet most, and where to read on."""
    failure = redacted(failure)
    failure = failure if len(failure) <= 500 else f"{failure[:500]} ..."
    words = failure.lower()
    if any(sign in words for sign in ("out of memory", "memoryerror", "cannot allocate memory")):
        failure += "; a smaller micro_batch_size or batch_size, or fewer workers, needs less memory"
    elif words.startswith("exceeded its limit"):
        failure += "; a larger inner.timeout allows more"
    elif any(os.strerror(number).lower() in words for number in (errno.ENOSPC, errno.EDQUOT)):
        failure += "; the disk is full"
    return failure if log is None else f"{failure} (log: {log})"


# A child that cannot even write why it failed exits with the errno.
_ERRNO_STATUSES = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.ENOENT)
