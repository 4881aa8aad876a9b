"""From trials to results: what the ledger or the shared cache knows is looked up, the rest is trained by the pool.

Every start and every end is in the ledger before anything else learns of it. What a program is, and which trials a
search needs, is outer_loop.py's business.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from derl_gym.envs.settings import Settings
from derl_gym.inner.config import InnerConfig
from derl_gym.inner.provenance import configuration_hash
from derl_gym.inner.result import InnerResult
from derl_gym.trials.cache import SharedCache
from derl_gym.trials.devices import leases
from derl_gym.trials.ledger import Ledger
from derl_gym.trials.pool import Job, LocalPool, Outcome


class InfrastructureFailure(RuntimeError):
    """An inner run failed for good (killed, out of memory, timed out): our fault, not the program's."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """A program with a seed and a starting policy: what one inner run answers.

    Attributes:
        identity: Equal for equal trials; see :func:`derl_gym.envs.identity.fingerprint`.
        program: Text of the program that is trained with.
        key: Its equivalence class.
        seed: Seed of the inner run.
        replicate: Which repetition of the class within the episode it is, from 0.
        policy: Fingerprint of the policy that it starts from.
    """

    identity: str
    program: str
    key: str
    seed: int
    replicate: int
    policy: str


class InnerRuns:
    """Looks trials up, trains them, records them. Ledger rows come out.

    Args:
        settings: The search's; ``workers`` and ``cache_dir`` are read.
        config: Of an inner run; ``timeout`` and ``gpus`` are read.
    """

    def __init__(self, settings: Settings, config: InnerConfig) -> None:
        self.workers, self.timeout, self.gpus = settings.workers, config.timeout, config.gpus
        self.cache_dir = settings.cache_dir
        self._pool: LocalPool | None = None
        self._cache: SharedCache | None = None

    def known(self, ledger: Ledger, trial: Trial) -> dict[str, Any] | None:
        """The row of an ended trial, fetched from the shared cache if it is only there; ``None``: to be trained."""
        row = ledger.trial(trial.identity)
        if row is None and self.cache is not None and (result := self.cache.get(trial.identity)):
            _start(ledger, trial)
            _finish(ledger, trial, result, seconds=0.0)
            row = ledger.trial(trial.identity)
        return row if row is not None and row["status"] in ("scored", "invalid") else None

    def train(
        self, ledger: Ledger, trials: dict[str, Trial], payloads: dict[str, dict[str, Any]]
    ) -> Generator[dict[str, Any], None, None]:
        """Train trials in processes of their own; yields each one's row as it ends, whichever way.

        Args:
            ledger: Where starts and ends are written.
            trials: By identity.
            payloads: What :func:`derl_gym.inner.train.run` is given, by identity.
        """
        if not trials:
            return
        jobs = [
            Job(
                id=identity,
                target="derl_gym.inner.train:run",
                payload=payloads[identity],
                folder=trial_folder(ledger.run_dir, identity),
                timeout=self.timeout,
            )
            for identity in trials
        ]

        def started(job: Job, pid: int, attempt: int) -> None:
            _start(ledger, trials[job.id], pid, attempt, config=configuration_hash(job.payload))

        with contextlib.closing(self.pool.run(jobs, on_start=started)) as ended:
            for outcome in ended:
                yield self._record(ledger, trials[outcome.id], outcome)

    def close(self) -> None:
        """Kill what runs."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    @property
    def pool(self) -> LocalPool:
        """Where inner runs go; made when first needed."""
        if self._pool is None:
            self._pool = LocalPool(workers=self.workers, devices=leases(self.workers, self.gpus))
        return self._pool

    @property
    def cache(self) -> SharedCache | None:
        """Scores of other runs, where the user asked for them."""
        if self._cache is None and self.cache_dir is not None:
            self._cache = SharedCache(Path(self.cache_dir).expanduser() / "trials.sqlite")
        return self._cache

    def _record(self, ledger: Ledger, trial: Trial, outcome: Outcome) -> dict[str, Any]:
        result = outcome.result
        if result is None:
            result = InnerResult("failed", None, outcome.failure or "unknown failure").to_dict()
            if ledger.trial(trial.identity) is None:  # it never came as far as a process
                _start(ledger, trial)
        _finish(ledger, trial, result, outcome.seconds, outcome.attempts)
        if self.cache is not None and result["status"] != "failed":
            self.cache.put(trial.identity, result)
        row = ledger.trial(trial.identity)
        assert row is not None
        return row


_MISTAKES = ("ValueError", "TypeError", "ImportError", "ModuleNotFoundError")
"""Errors that come of the settings, the task's code or the installation, and come again with them."""


def what_next(reasons: Sequence[str], run_dir: Path, outcome: str) -> str:
    """What to do about runs that failed for good.

    Args:
        reasons: Theirs, ``"ValueError: ..."`` where the run raised an error.
        run_dir: The search's.
        outcome: What another try does: ``"trains only the rest"``.
    """
    if all(reason.startswith(tuple(f"{name}:" for name in _MISTAKES)) for reason in reasons):
        return (
            "an error of this kind comes of the settings, the task's code or the installation: another try ends the "
            "same way until that is put right, and other settings need another run directory."
        )
    by_search = (run_dir / "search.json").exists()  # of the command; score and train leave none
    again = f"`derl-gym resume {run_dir}`" if by_search else f"the same command with --out {run_dir}"
    return f"the same step again, or {again}, {outcome}."


def trial_folder(run_dir: Path, identity: str) -> Path:
    """Where a trial's log, result and kept policy lie."""
    return run_dir / "trials" / identity


def _start(
    ledger: Ledger, trial: Trial, pid: int | None = None, attempt: int = 1, *, config: str | None = None
) -> None:
    ledger.start_trial(
        trial.identity,
        program=trial.program,
        key=trial.key,
        seed=trial.seed,
        replicate=trial.replicate,
        policy=trial.policy,
        attempts=attempt,
        pid=pid,
        config=config,
    )


def _finish(ledger: Ledger, trial: Trial, result: dict[str, Any], seconds: float, attempts: int | None = None) -> None:
    ledger.finish_trial(
        trial.identity,
        status=result["status"],
        score=result["score"],
        reason=result["reason"],
        result=result,
        attempts=attempts,
        seconds=seconds,
        tokens=result["tokens"],
        flops=result["flops"],
    )
