"""The ledger: one SQLite file per run directory, the whole truth about a search.

Written by one process (a lock on the directory sees to it), readable by anyone meanwhile. Every method
commits before it returns, so ``kill -9`` loses only the inner runs in flight. Test scores live in a table of
their own, ``finals``, and no other method gives them out. Clock times are kept for people; nothing is
computed from them.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from derl_gym.inner.config import CLOCKWORK
from derl_gym.inner.provenance import installation
from derl_gym.trials import checkpoints
from derl_gym.trials.database import LedgerError, sound
from derl_gym.trials.run_directory import LockedRunDirectory, RunDirectory, RunDirectoryMismatch, now

__all__ = ["Ledger", "LedgerError", "LockedRunDirectory", "ReplayMismatch", "RunDirectoryMismatch"]

SCHEMA_VERSION = 3
PROVENANCE = ("config", "code", "versions", "device", "host")
"""Columns of a trial that its result fills: what the process that ran it says of itself."""
_PROPOSER = """
CREATE TABLE proposer (
    episode INTEGER NOT NULL REFERENCES episodes, step INTEGER NOT NULL, seconds REAL NOT NULL,
    PRIMARY KEY (episode, step)
)"""
_RUNNING = "CREATE INDEX running ON trials (status) WHERE status = 'running'"
SCHEMA = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE episodes (episode INTEGER PRIMARY KEY, seed TEXT, started_at TEXT NOT NULL, reference TEXT);
{_PROPOSER};
CREATE TABLE proposals (
    episode INTEGER NOT NULL REFERENCES episodes, step INTEGER NOT NULL, slot INTEGER NOT NULL,
    actions TEXT NOT NULL, program TEXT NOT NULL, identity TEXT,
    status TEXT NOT NULL DEFAULT 'proposed' CHECK (status IN ('proposed', 'scored', 'invalid', 'failed')),
    score REAL, reason TEXT NOT NULL DEFAULT '', cached INTEGER NOT NULL DEFAULT 0,
    seconds REAL NOT NULL DEFAULT 0, proposed_at TEXT NOT NULL, settled_at TEXT,
    PRIMARY KEY (episode, step, slot)
);
CREATE TABLE trials (
    identity TEXT PRIMARY KEY, program TEXT NOT NULL, key TEXT, seed INTEGER, replicate INTEGER, policy TEXT,
    status TEXT NOT NULL CHECK (status IN ('running', 'interrupted', 'scored', 'invalid', 'failed')),
    score REAL, reason TEXT NOT NULL DEFAULT '', attempts INTEGER NOT NULL DEFAULT 0, result TEXT,
    started_at TEXT, ended_at TEXT, seconds REAL, tokens INTEGER, flops REAL, host TEXT, pid INTEGER,
    config TEXT, code TEXT, versions TEXT, device TEXT
);
{_RUNNING};
{checkpoints.SCHEMA};
CREATE TABLE finals (
    id INTEGER PRIMARY KEY, programs TEXT NOT NULL, seed INTEGER NOT NULL, test REAL NOT NULL,
    validation REAL, again INTEGER NOT NULL, policy TEXT, result TEXT, ended_at TEXT NOT NULL
)"""
_CAUSES = {"policy": "the policy that training starts from", "key": "its class of equal programs", "seed": "the seed"}
UPGRADES = {
    1: f"ALTER TABLE episodes ADD COLUMN reference TEXT; {_PROPOSER}",
    2: "; ".join([f"ALTER TABLE trials ADD COLUMN {name} TEXT" for name in PROVENANCE[:4]] + [_RUNNING]),
}
"""Version 1 knew neither the proposer's seconds nor reference runs, version 2 not what a trial ran with."""


class ReplayMismatch(LedgerError):
    """A recorded place was stepped again with something else than what is recorded there."""


class Ledger(RunDirectory):
    """The record of one run directory; see the module's header. A context manager.

    Args:
        run_dir: The run directory. Made, private to the user, if it does not exist.
        config: The search's configuration, JSON-able. Needed to make a ledger; compared with the recorded one
            when there is a ledger already.
        readonly: Read only, without the lock: also while a search runs, also without write permission.
        costly: Whether its trials cost something, so that each is to survive a power cut; see
            :class:`derl_gym.trials.database.Database`.

    Raises:
        LockedRunDirectory: another process has it open for writing; the message names its pid.
        RunDirectoryMismatch: ``config`` differs from the recorded one; the message lists the differing keys.
        ValueError: ``config`` holds a secret (:mod:`derl_gym.secrets`); everything else that is written is redacted.
        LedgerError: no ledger there (and no ``config``), not a ledger, newer schema, damaged, no permission,
            disk full. Every other method raises it as well when the file cannot be read or written any more.

    A trial that was running when its process died is ``"interrupted"`` as soon as the ledger is opened again.
    """

    FREE = tuple(f"{place}.{name}" for place in ("inner", "inner_config", "final_inner") for name in CLOCKWORK)
    ADDED = ("base_policy",)
    RELEASES: ClassVar[Mapping[int, str]] = {1: "0.1"}

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        config: Mapping[str, Any] | None = None,
        *,
        readonly: bool = False,
        costly: bool = True,
    ) -> None:
        super().__init__(run_dir, config, readonly, SCHEMA_VERSION, SCHEMA, UPGRADES, costly)

    def __enter__(self) -> Ledger:
        return self

    def _recover(self) -> None:
        with self._db.transaction():
            self._db.update("trials", {"status": "running"}, {"status": "interrupted", "ended_at": now()})
        checkpoints.sweep(self._db, self.run_dir)

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
        with self._db.transaction():
            known = [row["seed"] for row in self.episodes() if row["episode"] == episode]
            if not known:
                known = [None if seed is None else int(seed)]
                text = None if seed is None else str(known[0])  # 128 bits do not fit SQLite's integers
                self._db.insert("episodes", {"episode": episode, "seed": text, "started_at": now()})
        if seed is not None and known[0] != seed:
            raise ReplayMismatch(f"episode {episode} is recorded with seed {known[0]}, not {seed}")
        return known[0]

    @sound
    def episodes(self) -> list[dict[str, Any]]:
        """Every episode: ``episode``, ``seed``, ``started_at`` and ``reference``, a trial's identity or ``None``."""
        rows = self._db.rows("SELECT * FROM episodes ORDER BY episode")
        return [{"reference": None, **row, "seed": None if row["seed"] is None else int(row["seed"])} for row in rows]

    def set_reference(self, episode: int, identity: str) -> None:
        """Record which trial is the episode's reference run, from whose FLOPs the caps of the others come."""
        with self._db.transaction():
            self._db.update("episodes", {"episode": episode}, {"reference": identity})

    @sound
    def proposer_seconds(self) -> dict[tuple[int, int], float]:
        """(episode, outer step) -> wall-clock seconds from the scores before it (or the reset) to its programs.

        Only what was lived through is counted: no replay, and nothing before a kill that left no record.
        """
        if self._db.version < 2:
            return {}
        rows = self._db.rows("SELECT * FROM proposer ORDER BY episode, step")
        return {(row["episode"], row["step"]): row["seconds"] for row in rows}

    def propose(
        self,
        episode: int,
        step: int,
        actions: np.ndarray,
        programs: Sequence[str],
        first_slot: int = 0,
        seconds: float = 0.0,
    ) -> list[dict[str, Any]]:
        """Record what was proposed, before any of it runs; all rows or none.

        Args:
            episode: Of :meth:`begin_episode`.
            step: Outer step, from 0.
            actions: Token ids, integer (n, L).
            programs: Their n texts.
            first_slot: Place in the group of the first one, where a group comes in parts.
            seconds: What the proposer took for them; counted only when they are new.

        Returns:
            The n rows as they are recorded now, like those of :meth:`proposals`; on a replay with scores.

        Raises:
            ReplayMismatch: another action is recorded at one of these places.
        """
        ids = np.asarray(actions)
        if ids.ndim != 2 or ids.dtype.kind not in "iu" or len(ids) != len(programs):
            raise ValueError(
                f"actions must be integers of shape ({len(programs)}, L), one row per program, "
                f"not {ids.dtype} of shape {ids.shape}"
            )
        slots = range(int(first_slot), int(first_slot) + len(ids))
        with self._db.transaction():
            known = {row["slot"]: row for row in self._group(episode, step)}
            if not any(slot in known for slot in slots):
                query = "SELECT seconds FROM proposer WHERE episode = ? AND step = ?"
                before = sum(row["seconds"] for row in self._db.rows(query, episode, step))
                told = {"episode": episode, "step": step, "seconds": before + seconds}
                self._db.insert("proposer", told, "REPLACE")
            for slot, row, program in zip(slots, ids.tolist(), programs, strict=True):
                place = {"episode": episode, "step": step, "slot": slot}
                if slot not in known:
                    told = {"actions": row, "program": program, "proposed_at": now()}
                    self._db.insert("proposals", place | told)
                elif known[slot]["actions"] != row:
                    raise ReplayMismatch(
                        f"episode {episode}, step {step}, slot {slot} is recorded in {self.run_dir} with the "
                        f"program {known[slot]['program']!r}, not {program!r}: to resume, propose the same "
                        "again (same agent, same seed); for another search, use another run directory"
                    )
        return [row for row in self._group(episode, step) if row["slot"] in slots]

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
        """Record how a proposal ended. Only a failed one may be settled again with something else.

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
            ReplayMismatch: it is settled by another trial; see :meth:`check_settled`.
        """
        score = _checked(status, score)
        place = {"episode": episode, "step": step, "slot": slot}
        told = {"identity": identity, "status": status, "score": score, "reason": reason}
        with self._db.transaction():
            rows = [row for row in self._group(episode, step) if row["slot"] == slot]
            if not rows:
                raise LedgerError(f"nothing is proposed at {place}")
            old = (rows[0]["status"], rows[0]["score"])
            if old[0] in ("scored", "invalid") and old != (status, score):
                raise LedgerError(f"the proposal at {place} has ended as {old}, not as {(status, score)}")
            if rows[0]["identity"] != identity:
                self.check_settled(rows[0], identity, self.trial(identity) if identity else None)
            cost = {"cached": int(cached), "seconds": seconds, "settled_at": now()}
            self._db.update("proposals", place, told | cost)

    def check_settled(
        self, row: Mapping[str, Any], identity: str | None, trial: Mapping[str, Any] | None = None
    ) -> None:
        """Make sure that a proposal that has ended with a score, or as invalid, is still answered by the same trial.

        Args:
            row: Of :meth:`proposals`.
            identity: Of the trial that answers it now.
            trial: What is known of that one, as :meth:`start_trial` is told it: the error names what differs.

        Raises:
            ReplayMismatch: it was another.
        """
        if row["status"] not in ("scored", "invalid") or row["identity"] == identity:
            return
        there = self.trial(row["identity"]) if row["identity"] else None
        causes = [
            f"{name}: {there[key]} there, {trial[key]} now"
            for key, name in _CAUSES.items()
            if there and trial and there[key] != trial[key]
        ]
        raise ReplayMismatch(
            f"{row['program']!r} (episode {row['episode']}, step {row['step']}, slot {row['slot']}) was answered by "
            f"trial {row['identity']} in {self.run_dir}, but would be by {identity} now. What differs: "
            f"{'; '.join(causes) or 'the data, the task or the settings of the inner runs'}. Put it back as it was, "
            "or use another run directory"
        )

    @sound
    def proposals(self, episode: int | None = None) -> list[dict[str, Any]]:
        """Every proposal, of one episode or of all, by its place. ``actions`` is a list of ids."""
        where = "" if episode is None else "WHERE episode = ?"
        values = () if episode is None else (episode,)
        query = f"SELECT * FROM proposals {where} ORDER BY episode, step, slot"
        return [_proposal(row) for row in self._db.each(query, *values)]

    @sound
    def recorded_actions(self, episode: int) -> list[np.ndarray]:
        """Actions of an episode: per outer step int64 (n, L); the last step may hold a part of its group."""
        steps: dict[int, list[list[int]]] = {}
        query = "SELECT step, actions FROM proposals WHERE episode = ? ORDER BY step, slot"
        for row in self._db.each(query, episode):
            steps.setdefault(row["step"], []).append(json.loads(row["actions"]))
        return [np.array(rows, dtype=np.int64) for rows in steps.values()]

    @sound
    def trial(self, identity: str) -> dict[str, Any] | None:
        """One trial's row, or ``None``. ``result`` and ``versions`` are dicts or ``None``."""
        rows = self._db.rows("SELECT * FROM trials WHERE identity = ?", identity)
        return _trial(rows[0]) if rows else None

    @sound
    def trials(self, *, curves: bool = True) -> list[dict[str, Any]]:
        """Every trial, in the order in which they were first started.

        Args:
            curves: Whether the results have their ``curve``, which is most of a ledger's bytes.
        """
        columns = [row["name"] for row in self._db.rows("SELECT name FROM pragma_table_info('trials')")]
        if not curves:
            columns[columns.index("result")] = "json_remove(result, '$.curve') AS result"
        return [_trial(row) for row in self._db.each(f"SELECT {', '.join(columns)} FROM trials ORDER BY rowid")]

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
        host: str | None = None,
        config: str | None = None,
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
            pid: Its process; ``None`` where there is none.
            host: The process's machine; ``None``: this one. What runs here is taken to run with this installation,
                until its result says what it was.
            config: Hash of its settings (:func:`derl_gym.inner.provenance.configuration_hash`).

        Raises:
            LedgerError: it has ended with a score, or as invalid, already.
        """
        told = {"program": program, "key": key, "seed": seed, "replicate": replicate, "policy": policy}
        runs = dict.fromkeys(PROVENANCE) | {"config": config, "host": host}
        if pid is not None and host in (None, socket.gethostname()):
            runs |= installation()
        runs |= {"status": "running", "reason": "", "attempts": attempts, "pid": pid}
        runs |= {"started_at": now(), "ended_at": None}
        with self._db.transaction():
            if self._open_trial(identity) is None:
                self._db.insert("trials", {"identity": identity} | told | runs)
            else:
                self._db.update("trials", {"identity": identity}, runs)

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
            result: The whole result, JSON-able. What it says of :data:`PROVENANCE` goes into the columns of these
                names instead; what it leaves out stays as :meth:`start_trial` recorded it.
            attempts: Attempts made; ``None`` leaves what :meth:`start_trial` said.
            seconds: Wall-clock seconds.
            tokens: Tokens seen in training.
            flops: Floating point operations.

        Raises:
            ValueError: status and score do not fit together.
            LedgerError: it was never started, or has ended already with a score or as invalid.
        """
        told = {"status": status, "score": _checked(status, score), "reason": reason, "ended_at": now()}
        cost = {"seconds": seconds, "tokens": tokens, "flops": flops}
        rest = dict(result or {})
        told |= {name: found for name in PROVENANCE if (found := rest.pop(name, None))}
        told["result"] = None if result is None else rest
        with self._db.transaction():
            trial = self._open_trial(identity)
            if trial is None:
                raise LedgerError(f"trial {identity} was never started")
            told["attempts"] = trial["attempts"] if attempts is None else attempts
            self._db.update("trials", {"identity": identity}, told | cost)

    def new_checkpoint(self, episode: int, step: int, keep: int | None = 1) -> AbstractContextManager[Path]:
        """A folder to write the agent's state into; it counts only if the block ends without an error.

        Args:
            episode: The episode it belongs to.
            step: The outer step it belongs to; a second checkpoint of a step takes the first one's place.
            keep: Checkpoints of this episode that stay, this one included; ``None`` keeps all.

        Returns:
            A context manager that gives an empty folder. It is renamed afterwards, so do not keep its path.
        """
        return checkpoints.new_checkpoint(self._db, self.run_dir, int(episode), int(step), keep)

    def last_checkpoint(self, episode: int) -> tuple[int, Path] | None:
        """Step and folder of an episode's latest checkpoint, or ``None``.

        Raises:
            LedgerError: it is recorded, but its folder is gone.
        """
        return checkpoints.last_checkpoint(self._db, self.run_dir, int(episode))

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
            Whether a final of these programs and this seed was recorded before: the new row's ``again``.
        """
        told = {"programs": list(programs), "seed": seed, "test": _checked("scored", test), "policy": policy}
        told["validation"] = None if validation is None else _checked("scored", validation)
        told["result"] = None if result is None else dict(result)
        with self._db.transaction():
            again = any(row["programs"] == list(programs) and row["seed"] == seed for row in self.finals())
            self._db.insert("finals", told | {"again": int(again), "ended_at": now()})
        return again

    @sound
    def finals(self) -> list[dict[str, Any]]:
        """Every final training, in order. ``programs`` is a list, ``again`` a bool, ``result`` a dict."""
        return [
            {**_decoded(row), "programs": json.loads(row["programs"]), "again": bool(row["again"])}
            for row in self._db.rows("SELECT * FROM finals ORDER BY id")
        ]

    def together(self) -> AbstractContextManager[None]:
        """What is written within the block is committed at its end, all or nothing."""
        return self._db.transaction()

    def moment(self) -> AbstractContextManager[None]:
        """Within the block everything is read as it is at its beginning, whatever the writer adds meanwhile."""
        return self._db.moment()

    def batches(self, table: str, size: int = 1000) -> Iterator[list[dict[str, Any]]]:
        """The rows of a table as they are stored, in the order of their making, some at a time."""
        last = 0
        query = f"SELECT rowid AS place, * FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT ?"
        while rows := self._db.rows(query, last, size):
            last = rows[-1]["place"]
            yield rows

    @sound
    def _group(self, episode: int, step: int) -> list[dict[str, Any]]:
        query = "SELECT * FROM proposals WHERE episode = ? AND step = ? ORDER BY slot"
        return [_proposal(row) for row in self._db.rows(query, episode, step)]

    def _open_trial(self, identity: str) -> dict[str, Any] | None:
        trial = self.trial(identity)
        if trial is not None and trial["status"] in ("scored", "invalid"):
            raise LedgerError(f"trial {identity} has ended already: {trial['status']} {trial['score']}")
        return trial


def _checked(status: str, score: float | None) -> float | None:
    """The score as a float, when status and score fit together."""
    wanted = {"scored": "in [0, 1]", "invalid": "0", "failed": "None"}.get(status)
    if wanted is None:
        raise ValueError(f"status must be 'scored', 'invalid' or 'failed', not {status!r}")
    if status == "failed" and score is None:
        return None
    if status == "failed" or score is None or not 0.0 <= score <= (1.0 if status == "scored" else 0.0):
        raise ValueError(f"the score of a run that is {status} must be {wanted}, not {score!r}")
    return float(score)


def _proposal(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "actions": json.loads(row["actions"]), "cached": bool(row["cached"])}


def _trial(row: dict[str, Any]) -> dict[str, Any]:
    return {**dict.fromkeys(PROVENANCE), **_decoded(row)}  # an older ledger that is only read lacks some of them


def _decoded(row: dict[str, Any]) -> dict[str, Any]:
    texts = {name: row[name] for name in ("result", "versions") if row.get(name) is not None}
    return {**row, **{name: json.loads(text) for name, text in texts.items()}}
