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
from derl_gym.inner.marks import remove_checkpoints
from derl_gym.inner.provenance import configuration_hash
from derl_gym.inner.result import InnerResult
from derl_gym.trials.bundled import Bundled
from derl_gym.trials.cache import SharedCache
from derl_gym.trials.jobs import Job, Outcome, Started
from derl_gym.trials.ledger import Ledger
from derl_gym.trials.pools import Pool, PoolKind, open_pool


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
        settings: The search's; ``pool``, ``workers`` and ``cache_dir`` are read.
        config: Of an inner run; ``timeout`` and ``gpus`` are read.
        table: Trials that were measured beforehand.
    """

    def __init__(self, settings: Settings, config: InnerConfig, table: Bundled | None = None) -> None:
        self.kind: PoolKind = settings.pool
        self.workers = settings.workers
        self.timeout, self.gpus = config.timeout, config.gpus
        self.cache_dir = settings.cache_dir
        self.table = table
        self._pool: Pool | None = None
        self._cache: SharedCache | None = None

    def known(self, ledger: Ledger, trial: Trial) -> dict[str, Any] | None:
        """The row of an ended trial, also one that only the table or the shared cache has; ``None``: to be trained."""
        row = ledger.trial(trial.identity)
        if row is None and self.table is not None and (result := self.table.get(trial.key, trial.seed)):
            _start(ledger, trial)
            _finish(ledger, trial, result, seconds=0.0)
            row = ledger.trial(trial.identity)
        if row is None and self.cache is not None and (result := self.cache.get(trial.identity)):
            self.adopt(ledger, trial, result)
            row = ledger.trial(trial.identity)
        return row if row is not None and row["status"] in ("scored", "invalid") else None

    def adopt(self, ledger: Ledger, trial: Trial, result: dict[str, Any]) -> None:
        """Record a result that another run has paid for."""
        _start(ledger, trial)
        _finish(ledger, trial, result, seconds=0.0)
        if self.cache is not None:
            self.cache.put(trial.identity, result)

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
                keeps_files=bool(payloads[identity].get("save_policy") or "until" in payloads[identity]),
            )
            for identity in trials
        ]
        with contextlib.closing(self.pool.events(jobs)) as events:
            for event in events:
                if isinstance(event, Started):
                    _start(ledger, trials[event.job.id], event, config=configuration_hash(event.job.payload))
                else:
                    yield self._record(ledger, trials[event.id], event)

    def close(self) -> None:
        """Kill what runs."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    @property
    def pool(self) -> Pool:
        """Where inner runs go; made when first needed."""
        if self._pool is None:
            self._pool = open_pool(self.kind, self.workers, self.gpus)
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
        if result["status"] != "failed" and not result["of_steps"]:  # nothing goes on from there
            remove_checkpoints(trial_folder(ledger.run_dir, trial.identity))
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


def _start(ledger: Ledger, trial: Trial, started: Started | None = None, *, config: str | None = None) -> None:
    ledger.start_trial(
        trial.identity,
        program=trial.program,
        key=trial.key,
        seed=trial.seed,
        replicate=trial.replicate,
        policy=trial.policy,
        attempts=1 if started is None else started.attempt,
        pid=None if started is None else started.pid,
        host=None if started is None else started.host,
        config=config,
    )


def _finish(ledger: Ledger, trial: Trial, result: dict[str, Any], seconds: float, attempts: int | None = None) -> None:
    before = result.get("before") or {}  # a shared cache may hold results of earlier versions
    ledger.finish_trial(
        trial.identity,
        status=result["status"],
        score=result["score"],
        reason=result["reason"],
        result=result,
        attempts=attempts,
        seconds=seconds,
        tokens=result["tokens"] - before.get("tokens", 0),
        flops=result["flops"] - before.get("flops", 0.0),
    )
