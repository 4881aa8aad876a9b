"""The ledger: one SQLite file per run directory, the whole truth about a search.

Written by one process (a lock on the directory sees to it), readable by anyone meanwhile. Every method commits
before it returns, so ``kill -9`` loses only the inner runs in flight. Test scores live in their own table,
``finals``, and no other method gives them out. Times of the clock are kept for people; nothing is computed from them.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import math
import os
import shutil
import socket
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from derl_gym.trials.database import LedgerError, explained, open_database, transaction

__all__ = ["Ledger", "LedgerError", "LockedRunDirectory", "ReplayMismatch", "RunDirectoryMismatch"]

SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE episodes (episode INTEGER PRIMARY KEY, seed TEXT, started_at TEXT NOT NULL);
CREATE TABLE proposals (
    episode INTEGER NOT NULL REFERENCES episodes, step INTEGER NOT NULL, slot INTEGER NOT NULL,
    actions TEXT NOT NULL, program TEXT NOT NULL, identity TEXT,
    status TEXT NOT NULL DEFAULT 'proposed' CHECK (status IN ('proposed', 'scored', 'invalid', 'failed')),
    score REAL, reason TEXT NOT NULL DEFAULT '', cached INTEGER NOT NULL DEFAULT 0, seconds REAL NOT NULL DEFAULT 0,
    proposed_at TEXT NOT NULL, settled_at TEXT,
    PRIMARY KEY (episode, step, slot)
);
CREATE TABLE trials (
    identity TEXT PRIMARY KEY, program TEXT NOT NULL, key TEXT, seed INTEGER, replicate INTEGER, policy TEXT,
    status TEXT NOT NULL CHECK (status IN ('running', 'interrupted', 'scored', 'invalid', 'failed')),
    score REAL, reason TEXT NOT NULL DEFAULT '', attempts INTEGER NOT NULL DEFAULT 0, result TEXT,
    started_at TEXT, ended_at TEXT, seconds REAL, tokens INTEGER, flops REAL, host TEXT, pid INTEGER
);
CREATE TABLE checkpoints (
    episode INTEGER NOT NULL, step INTEGER NOT NULL, folder TEXT NOT NULL, made_at TEXT NOT NULL,
    PRIMARY KEY (episode, step)
);
CREATE TABLE finals (
    id INTEGER PRIMARY KEY, programs TEXT NOT NULL, seed INTEGER, test REAL NOT NULL, validation REAL,
    again INTEGER NOT NULL, policy TEXT, result TEXT, ended_at TEXT NOT NULL
)"""


class LockedRunDirectory(LedgerError):
    """Another live process writes this run directory."""


class RunDirectoryMismatch(LedgerError):
    """The run directory belongs to a search with another configuration."""


class ReplayMismatch(LedgerError):
    """A recorded place was stepped again with something else than what is recorded there."""


class Ledger:
    """The record of one run directory; see the module's header.

    Args:
        run_dir: The run directory. Made, private to the user, if it does not exist.
        config: The search's configuration, JSON-able. Needed to make a ledger; compared with the one recorded
            when there is one already.
        readonly: Read only, without the lock: also while a search runs, also without write permission.

    Raises:
        LockedRunDirectory: another process has it open for writing; the message names its pid.
        RunDirectoryMismatch: ``config`` differs from the recorded one; the message lists the differing keys.
        LedgerError: no ledger there (and no ``config``), not a ledger, newer schema, damaged, no permission, disk full.
            Every other method raises it as well when the file cannot be written any more.

    A trial that was running when its process died is ``"interrupted"`` as soon as the ledger is opened again.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        config: Mapping[str, Any] | None = None,
        *,
        readonly: bool = False,
    ) -> None:
        self.run_dir = Path(run_dir).absolute()
        self.path = self.run_dir / "ledger.sqlite"
        self.readonly = readonly
        self._lock: int | None = None
        if config is None and not self.path.is_file():
            raise LedgerError(f"there is no ledger in {self.run_dir}")
        wanted = None if config is None else json.loads(json.dumps(dict(config)))
        if not readonly:
            with explained(self.run_dir):
                self.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._lock = _lock(self.run_dir / "lock")
        try:
            self._db = open_database(self.path, "ledger", SCHEMA_VERSION, SCHEMA, readonly)
            try:
                self.config = self._read_config(wanted)
                if not readonly:
                    self._recover()
            except BaseException:
                self._db.close()
                raise
        except BaseException:
            self._unlock()
            raise

    def close(self) -> None:
        """Close the file and free the lock. Closing twice is fine."""
        with explained(self.path):
            self._db.close()
        self._unlock()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Episodes and proposals

    def begin_episode(self, episode: int, seed: int | None) -> int | None:
        """Record an episode, or find it recorded.

        Args:
            episode: Number of the episode, from 0.
            seed: Its seed, of any size; ``None`` takes what is recorded.

        Returns:
            The recorded seed.

        Raises:
            ReplayMismatch: it is recorded with another seed.
        """
        with self._write() as db:
            row = db.execute("SELECT seed FROM episodes WHERE episode = ?", (int(episode),)).fetchone()
            if row is None:
                text = None if seed is None else str(int(seed))
                db.execute("INSERT INTO episodes VALUES (?, ?, ?)", (int(episode), text, _now()))
                return None if seed is None else int(seed)
            recorded = None if row["seed"] is None else int(row["seed"])
            if seed is not None and recorded != seed:
                raise ReplayMismatch(f"episode {episode} is recorded with seed {recorded}, not {seed}")
            return recorded

    def episodes(self) -> list[dict[str, Any]]:
        """Every episode: ``episode``, ``seed``, ``started_at``."""
        rows = self._rows("SELECT * FROM episodes ORDER BY episode")
        return [{**row, "seed": None if row["seed"] is None else int(row["seed"])} for row in rows]

    def propose(
        self, episode: int, step: int, actions: np.ndarray, programs: Sequence[str], first_slot: int = 0
    ) -> list[dict[str, Any]]:
        """Record what was proposed, before any of it runs; all rows or none.

        Args:
            episode: Of :meth:`begin_episode`.
            step: Outer step, from 0.
            actions: Token ids, integer (n, L).
            programs: Their n texts.
            first_slot: Place in the group of the first one, where a group comes in parts.

        Returns:
            The n rows as they are recorded now, like those of :meth:`proposals`. On a replay they hold the old scores.

        Raises:
            ReplayMismatch: another action is recorded at one of these places.
        """
        ids = np.asarray(actions)
        if ids.ndim != 2 or ids.dtype.kind not in "iu" or len(ids) != len(programs):
            raise ValueError(
                f"actions must be integers of shape ({len(programs)}, L), one row per program, "
                f"not {ids.dtype} of shape {ids.shape}"
            )
        place = (int(episode), int(step))
        with self._write() as db:
            for slot, (row, program) in enumerate(
                zip(ids.tolist(), programs, strict=True), start=int(first_slot)
            ):
                known = db.execute(
                    "SELECT actions, program FROM proposals WHERE (episode, step, slot) = (?, ?, ?)",
                    (*place, slot),
                ).fetchone()
                if known is None:
                    db.execute(
                        "INSERT INTO proposals (episode, step, slot, actions, program, proposed_at) "
                        "VALUES (?, ?, ?, ?, ?, ?)",
                        (*place, slot, json.dumps(row), program, _now()),
                    )
                elif json.loads(known["actions"]) != row:
                    raise ReplayMismatch(
                        f"episode {episode}, step {step}, slot {slot} is recorded in {self.run_dir} with the program "
                        f"{known['program']!r}, not {program!r}: to resume, propose the same again "
                        "(same agent, same seed); for another search, use another run directory"
                    )
        rows = self._rows(
            "SELECT * FROM proposals WHERE episode = ? AND step = ? AND slot >= ? AND slot < ? ORDER BY slot",
            (*place, int(first_slot), int(first_slot) + len(ids)),
        )
        return [_proposal(row) for row in rows]

    def settle(
        self,
        episode: int,
        step: int,
        slot: int,
        *,
        identity: str | None,
        status: str,
        score: float | None,
        reason: str = "",
        cached: bool = False,
        seconds: float = 0.0,
    ) -> None:
        """Record how a proposal ended.

        Args:
            episode: With ``step`` and ``slot``, its place.
            step: See ``episode``.
            slot: See ``episode``.
            identity: The trial that gave the score; ``None`` when none was needed.
            status: ``"scored"``, ``"invalid"`` or ``"failed"``.
            score: In [0, 1]; 0 when invalid, ``None`` when failed.
            reason: Why it is invalid or failed.
            cached: Whether no inner run was made for it.
            seconds: What it cost.

        Raises:
            ValueError: status and score do not fit together.
            LedgerError: nothing is proposed there, or it is settled with another score.
        """
        value = _checked(status, score)
        place = (int(episode), int(step), int(slot))
        with self._write() as db:
            row = db.execute(
                "SELECT status, score FROM proposals WHERE (episode, step, slot) = (?, ?, ?)", place
            ).fetchone()
            if row is None:
                raise LedgerError(f"nothing is proposed at episode {episode}, step {step}, slot {slot}")
            if row["status"] in ("scored", "invalid") and (row["status"], row["score"]) != (status, value):
                raise LedgerError(
                    f"episode {episode}, step {step}, slot {slot} is settled as {row['status']} {row['score']}, "
                    f"not {status} {value}"
                )
            db.execute(
                "UPDATE proposals SET identity = ?, status = ?, score = ?, reason = ?, cached = ?, seconds = ?, "
                "settled_at = ? WHERE (episode, step, slot) = (?, ?, ?)",
                (identity, status, value, reason, int(cached), float(seconds), _now(), *place),
            )

    def proposals(self, episode: int | None = None) -> list[dict[str, Any]]:
        """Every proposal, of one episode or of all, in the order of its place. ``actions`` is a list of ids."""
        rows = self._rows(
            "SELECT * FROM proposals WHERE ? IS NULL OR episode = ? ORDER BY episode, step, slot",
            (episode, episode),
        )
        return [_proposal(row) for row in rows]

    def recorded_actions(self, episode: int) -> list[np.ndarray]:
        """The recorded actions of an episode: per outer step an int64 (n, L) array; the last may be a part of a group."""
        steps: dict[int, list[list[int]]] = {}
        for row in self.proposals(int(episode)):
            steps.setdefault(row["step"], []).append(row["actions"])
        return [np.array(rows, dtype=np.int64) for rows in steps.values()]

    # Trials

    def trial(self, identity: str) -> dict[str, Any] | None:
        """One trial's row, or ``None``. ``result`` is a dict or ``None``."""
        rows = self._rows("SELECT * FROM trials WHERE identity = ?", (identity,))
        return _decoded(rows[0]) if rows else None

    def trials(self) -> list[dict[str, Any]]:
        """Every trial in the order in which they were first started."""
        return [_decoded(row) for row in self._rows("SELECT * FROM trials ORDER BY rowid")]

    def start_trial(
        self,
        identity: str,
        *,
        program: str,
        key: str | None = None,
        seed: int | None = None,
        replicate: int | None = None,
        policy: str | None = None,
        attempts: int = 1,
        pid: int | None = None,
    ) -> None:
        """Record that a trial runs now (again).

        Args:
            identity: What makes it this trial and no other.
            program: The reward program's text.
            key: Its equivalence key.
            seed: Seed of the inner run, below 2**63.
            replicate: Which of several seeds it is.
            policy: Where the inner run starts from.
            attempts: Which attempt this is, from 1.
            pid: Its process.

        Raises:
            LedgerError: it has ended with a score, or as invalid, already.
        """
        with self._write() as db:
            row = db.execute("SELECT status FROM trials WHERE identity = ?", (identity,)).fetchone()
            if row is not None and row["status"] in ("scored", "invalid"):
                raise LedgerError(
                    f"trial {identity} has ended as {row['status']} already; look it up before a start"
                )
            db.execute(
                "INSERT INTO trials (identity, program, key, seed, replicate, policy, status, attempts, started_at, "
                "host, pid) VALUES (?, ?, ?, ?, ?, ?, 'running', ?, ?, ?, ?) ON CONFLICT (identity) DO UPDATE SET "
                "status = 'running', score = NULL, reason = '', attempts = excluded.attempts, ended_at = NULL, "
                "started_at = excluded.started_at, host = excluded.host, pid = excluded.pid",
                (
                    identity,
                    program,
                    key,
                    _whole(seed),
                    _whole(replicate),
                    policy,
                    int(attempts),
                    _now(),
                    socket.gethostname(),
                    _whole(pid),
                ),
            )

    def finish_trial(
        self,
        identity: str,
        *,
        status: str,
        score: float | None,
        reason: str = "",
        result: Mapping[str, Any] | None = None,
        attempts: int | None = None,
        seconds: float | None = None,
        tokens: int | None = None,
        flops: float | None = None,
    ) -> None:
        """Record how a started trial ended.

        Args:
            identity: Of :meth:`start_trial`.
            status: ``"scored"``, ``"invalid"`` or ``"failed"``.
            score: In [0, 1]; 0 when invalid, ``None`` when failed.
            reason: Why it is invalid or failed.
            result: The whole result, JSON-able.
            attempts: Attempts made; ``None`` leaves what :meth:`start_trial` said.
            seconds: Wall-clock seconds.
            tokens: Tokens seen in training.
            flops: Floating point operations.

        Raises:
            ValueError: status and score do not fit together.
            LedgerError: it was never started, or has ended already with a score or as invalid.
        """
        value = _checked(status, score)
        with self._write() as db:
            row = db.execute("SELECT status FROM trials WHERE identity = ?", (identity,)).fetchone()
            if row is None or row["status"] in ("scored", "invalid"):
                raise LedgerError(
                    f"trial {identity} was never started"
                    if row is None
                    else f"trial {identity} has ended already"
                )
            db.execute(
                "UPDATE trials SET status = ?, score = ?, reason = ?, result = ?, attempts = coalesce(?, attempts), "
                "ended_at = ?, seconds = ?, tokens = ?, flops = ? WHERE identity = ?",
                (
                    status,
                    value,
                    reason,
                    None if result is None else json.dumps(dict(result)),
                    _whole(attempts),
                    _now(),
                    _real(seconds),
                    _whole(tokens),
                    _real(flops),
                    identity,
                ),
            )

    # Checkpoints of the agent

    @contextlib.contextmanager
    def new_checkpoint(self, episode: int, step: int, keep: int | None = 1) -> Iterator[Path]:
        """A folder to write the agent's state into; it counts only once the block has ended without an error.

        Args:
            episode: The episode it belongs to.
            step: The outer step it belongs to; a second checkpoint of the same step takes the first one's place.
            keep: Checkpoints of this episode that are kept, this one included; ``None`` keeps all.

        Yields:
            An empty folder. It is renamed afterwards, so do not keep its path.
        """
        home = self.run_dir / "checkpoints"
        name = f"episode-{int(episode):04d}-step-{int(step):06d}"
        with explained(home):
            home.mkdir(mode=0o700, exist_ok=True)
            while (home / name).exists():
                name += "-again"
            aside = home / f".{name}"
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(mode=0o700)
        try:
            yield aside
            with explained(home):
                _sync(aside)
                os.rename(aside, home / name)
                _sync(home, deep=False)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        with self._write() as db:
            db.execute(
                "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?)",
                (int(episode), int(step), f"checkpoints/{name}", _now()),
            )
            if keep is not None:
                db.execute(
                    "DELETE FROM checkpoints WHERE episode = ? AND step NOT IN "
                    "(SELECT step FROM checkpoints WHERE episode = ? AND step <= ? ORDER BY step DESC LIMIT ?)",
                    (int(episode), int(episode), int(step), max(1, keep)),
                )
        self._sweep_checkpoints()

    def last_checkpoint(self, episode: int) -> tuple[int, Path] | None:
        """Step and folder of an episode's latest checkpoint, or ``None``.

        Raises:
            LedgerError: it is recorded but its folder is gone.
        """
        rows = self._rows(
            "SELECT step, folder FROM checkpoints WHERE episode = ? ORDER BY step DESC LIMIT 1",
            (int(episode),),
        )
        if not rows:
            return None
        folder = self.run_dir / rows[0]["folder"]
        if not folder.is_dir():
            raise LedgerError(
                f"the checkpoint of episode {episode}, step {rows[0]['step']} is gone: {folder}"
            )
        return rows[0]["step"], folder

    # Final trainings and their test scores

    def record_final(
        self,
        programs: Sequence[str],
        seed: int,
        *,
        test: float,
        validation: float | None = None,
        policy: str | None = None,
        result: Mapping[str, Any] | None = None,
    ) -> bool:
        """Record a final training and its evaluation on the test split.

        Args:
            programs: The reward programs it was trained with, one per stage.
            seed: Seed of the final training.
            test: Score on the test split, in [0, 1].
            validation: Score on the validation split, where there is one.
            policy: Folder of the trained policy.
            result: The whole result, JSON-able.

        Returns:
            Whether the test split had been opened for these programs and this seed before: the row's ``again``.
        """
        texts = json.dumps(list(programs))
        with self._write() as db:
            again = db.execute(
                "SELECT count(*) FROM finals WHERE programs = ? AND seed = ?", (texts, int(seed))
            ).fetchone()[0]
            db.execute(
                "INSERT INTO finals (programs, seed, test, validation, again, policy, result, ended_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    texts,
                    int(seed),
                    _checked("scored", test),
                    None if validation is None else _checked("scored", validation),
                    int(again > 0),
                    policy,
                    None if result is None else json.dumps(dict(result)),
                    _now(),
                ),
            )
        return again > 0

    def finals(self) -> list[dict[str, Any]]:
        """Every final training: ``programs`` (list), ``seed``, ``test``, ``validation``, ``again``, ``policy``, ..."""
        return [
            {**_decoded(row), "programs": json.loads(row["programs"]), "again": bool(row["again"])}
            for row in self._rows("SELECT * FROM finals ORDER BY id")
        ]

    # Inside

    @contextlib.contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        if self.readonly:
            raise LedgerError(f"{self.path} is open for reading only")
        with explained(self.path), transaction(self._db):
            yield self._db

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        with explained(self.path):
            return [dict(row) for row in self._db.execute(query, values)]

    def _read_config(self, wanted: dict[str, Any] | None) -> dict[str, Any]:
        rows = self._rows("SELECT value FROM meta WHERE key = 'config'")
        if rows:
            recorded = json.loads(rows[0]["value"])
            if wanted is not None and recorded != wanted:
                raise RunDirectoryMismatch(
                    f"{self.run_dir} holds a search with another configuration; use another run directory, or the "
                    "same settings:\n" + "\n".join(_differences(recorded, wanted))
                )
            return recorded
        if wanted is None:
            raise LedgerError(f"{self.path} was never finished being made: give a configuration")
        with self._write() as db:
            db.execute("INSERT INTO meta VALUES ('config', ?)", (json.dumps(wanted),))
            db.execute("INSERT INTO meta VALUES ('created_at', ?)", (_now(),))
        return wanted

    def _recover(self) -> None:
        with self._write() as db:
            db.execute(
                "UPDATE trials SET status = 'interrupted', ended_at = ? WHERE status = 'running'", (_now(),)
            )
        self._sweep_checkpoints()

    def _sweep_checkpoints(self) -> None:
        """Delete folders that no row names: half written, replaced, or no longer kept."""
        recorded = {row["folder"] for row in self._rows("SELECT folder FROM checkpoints")}
        for folder in (self.run_dir / "checkpoints").glob("*"):
            if f"checkpoints/{folder.name}" not in recorded:
                shutil.rmtree(folder, ignore_errors=True)

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _lock(path: Path) -> int:
    """Take the run directory's lock; the kernel frees it when this process ends, however it ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "an unnamed process"
            raise LockedRunDirectory(
                f"{path.parent} is being written by {holder}; wait for it, or use another run directory"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _checked(status: str, score: float | None) -> float | None:
    if status == "failed":
        if score is not None:
            raise ValueError(f"a failed run has no score, not {score!r}")
        return None
    if status not in ("scored", "invalid"):
        raise ValueError(f"status must be 'scored', 'invalid' or 'failed', not {status!r}")
    if score is None or not 0.0 <= float(score) <= 1.0 or (status == "invalid" and score != 0):
        raise ValueError(
            f"the score of a run that is {status} must be {'in [0, 1]' if status == 'scored' else '0'}, not {score!r}"
        )
    return float(score)


def _differences(recorded: Any, wanted: Any, name: str = "") -> list[str]:
    if isinstance(recorded, dict) and isinstance(wanted, dict):
        lines = []
        for key in sorted({*recorded, *wanted}):
            there, here = recorded.get(key, "(absent)"), wanted.get(key, "(absent)")
            if there != here:
                lines += _differences(there, here, f"{name}.{key}" if name else key)
        return lines
    return [f"  {name}: {recorded!r} there, {wanted!r} now"]


def _proposal(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "actions": json.loads(row["actions"]), "cached": bool(row["cached"])}


def _decoded(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "result": None if row["result"] is None else json.loads(row["result"])}


# numpy scalars would be stored as blobs, silently.
def _whole(value: int | None) -> int | None:
    return None if value is None else int(value)


def _real(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(value)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def _sync(folder: Path, deep: bool = True) -> None:
    """Flush a folder, and with ``deep`` all that is in it, to the disk."""
    for path in [*(folder.rglob("*") if deep else ()), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
