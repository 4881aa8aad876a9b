"""What every pool can do, and which one a setting names.

``pool.py`` runs jobs on this machine, ``ray_pool.py`` on a Ray cluster; both leave the same files and outcomes.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Generator, Iterable
from typing import Literal, Self

from derl_gym.trials.devices import leases
from derl_gym.trials.jobs import Job, Outcome, Started, check_distinct

PoolKind = Literal["processes", "ray"]


def open_pool(kind: PoolKind, workers: int, gpus: int = 1) -> Pool:
    """The pool that the setting ``pool`` names. Nothing is started before its first job.

    Args:
        kind: ``"processes"``: on this machine. ``"ray"``: on a Ray cluster.
        workers: Jobs at a time.
        gpus: GPUs that a job needs, where there are GPUs.

    Raises:
        ImportError: when Ray is asked for and not installed.
    """
    if kind == "ray":
        from derl_gym.trials.ray_pool import RayPool

        return RayPool(workers=workers, gpus=gpus)
    from derl_gym.trials.pool import LocalPool

    return LocalPool(workers=workers, devices=leases(workers, gpus))


class Pool(abc.ABC):
    """Runs jobs in processes of their own, a number of them at a time. A context manager; belongs to one thread."""

    _active: Generator[Started | Outcome, None, None] | None = None

    def events(self, jobs: Iterable[Job], first_attempt: int = 1) -> Generator[Started | Outcome, None, None]:
        """Run jobs and yield every start of an attempt, and every job's outcome, in the order in which they happen.

        Closing the generator early, or an exception in it (Ctrl-C), kills what runs. Wrap it in
        ``contextlib.closing`` where the loop over it may be left by an exception. A new call closes the last.

        Args:
            jobs: Started in this order. Ids and folders must differ.
            first_attempt: Number of the first attempt, where others were made elsewhere.

        Returns:
            A generator with one outcome per job. Limits hold while it waits for its consumer, too.

        Raises:
            ValueError: two jobs share an id or a folder.
            PoolError: the pool cannot work; no job is to blame.
        """
        jobs = list(jobs)
        check_distinct(jobs)
        if self._active is not None:
            self._active.close()
        self._active = self._events(jobs, first_attempt)
        return self._active

    def run(
        self, jobs: Iterable[Job], on_start: Callable[[Job, int, int], None] | None = None
    ) -> Generator[Outcome, None, None]:
        """:meth:`events` without the starts: outcomes alone.

        Args:
            jobs: Started in this order. Ids and folders must differ.
            on_start: Called as ``on_start(job, pid, attempt)`` when an attempt has started, in the driver.
        """
        return _outcomes(self.events(jobs), on_start)

    @abc.abstractmethod
    def _events(self, jobs: list[Job], first_attempt: int) -> Generator[Started | Outcome, None, None]: ...

    @abc.abstractmethod
    def close(self) -> None:
        """Kill what runs and let go of what the pool holds. A closed pool that is used again starts anew."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _outcomes(
    events: Generator[Started | Outcome, None, None], on_start: Callable[[Job, int, int], None] | None
) -> Generator[Outcome, None, None]:
    with contextlib.closing(events):
        for event in events:
            if isinstance(event, Outcome):
                yield event
            elif on_start is not None:
                on_start(event.job, event.pid, event.attempt)
