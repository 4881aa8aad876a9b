"""A run directory: one writer at a time, one configuration for good, one database.

``ledger.py`` builds on it. This file knows nothing of programs and scores.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from derl_gym.secrets import refuse_secrets
from derl_gym.trials.database import Database, LedgerError, damage, explained, sound
from derl_gym.trials.private import private_folder


class LockedRunDirectory(LedgerError):
    """Another live process writes this run directory."""


class RunDirectoryMismatch(LedgerError):
    """The run directory belongs to a search with another configuration."""


class RunDirectory:
    """The folder of one search, opened; see :class:`derl_gym.trials.ledger.Ledger` for arguments and errors.

    Attributes:
        run_dir: The folder, absolute.
        path: Its database file.
        config: The recorded configuration.
        readonly: Whether it was opened without the lock.
    """

    FREE: ClassVar[tuple[str, ...]] = ()
    """Dotted names in the configuration that may differ when the search is gone on with."""
    ADDED: ClassVar[tuple[str, ...]] = ()
    """Names that a recorded configuration may lack: they came after the first ledgers of its schema."""
    RELEASES: ClassVar[Mapping[int, str]] = {}
    """Older schema -> the version of the package that wrote it."""

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        config: Mapping[str, Any] | None,
        readonly: bool,
        version: int,
        schema: str,
        upgrades: Mapping[int, str],
        costly: bool = True,
    ) -> None:
        self.run_dir = Path(run_dir).absolute()
        self.path = self.run_dir / "ledger.sqlite"
        self.readonly = readonly
        self._lock: int | None = None
        wanted = None if config is None else json.loads(json.dumps(dict(config)))
        refuse_secrets(wanted, "the configuration of this search")
        if wanted is None and not self.path.is_file():
            raise LedgerError(f"there is no ledger in {self.run_dir}")
        if not readonly:
            with explained(self.run_dir):
                private_folder(self.run_dir)
                self._lock = _lock(self.run_dir / "lock")
        try:
            if not readonly:
                self._refuse_lost_ledger()
            self._db = Database(self.path, "ledger", version, schema, readonly, costly)
            try:
                if not readonly:  # it reads the whole file, and a reader meets the damage where it reads
                    verdict = self._db.rows("PRAGMA integrity_check(1)")[0]["integrity_check"]
                    if verdict != "ok":
                        raise LedgerError(damage(self.path, verdict))
                self.config = self._agree(wanted)
                if not readonly:  # and not before the search is known to be this one
                    self._db.upgrade(upgrades)
                    self._recover()
            except BaseException:
                self._db.close()
                raise
        except BaseException:
            self._unlock()
            raise

    def close(self) -> None:
        """Close the file and free the lock; twice is fine."""
        self._db.close()
        self._unlock()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_lost_ledger(self) -> None:
        """No crash leaves work behind without a ledger: it is written first. So it was deleted, or emptied."""
        if self.path.exists() and (not self.path.is_file() or self.path.stat().st_size):
            return
        with explained(self.run_dir):
            left = [name for name in ("checkpoints", "trials") if list(self.run_dir.glob(f"{name}/*"))]
        if left:
            raise LedgerError(
                f"{self.path} is {'empty' if self.path.exists() else 'gone'}, but {self.run_dir} holds "
                f"{' and '.join(left)}: the record of them is lost; use another run directory"
            )

    def _recover(self) -> None:
        """Put right what a killed writer left; the lock is held."""

    def _agree(self, wanted: dict[str, Any] | None) -> dict[str, Any]:
        """The recorded configuration, which must be the wanted one; recorded now where there is none."""
        rows = self._db.rows("SELECT value FROM meta WHERE key = 'config'")
        if not rows:
            if wanted is None or self.readonly:
                raise LedgerError(f"{self.path} has no configuration: its making was interrupted")
            with self._db.transaction():
                self._db.insert("meta", {"key": "config", "value": wanted})
                self._db.insert("meta", {"key": "created_at", "value": now()})
            return wanted
        recorded = self._recorded(rows[0])
        if wanted is not None:
            unlike = [*self.FREE, *(name for name in self.ADDED if name not in recorded)]
            there, here = (_without(config, unlike) for config in (recorded, wanted))
            if there != here:
                raise RunDirectoryMismatch(self._refusal(there, here))
        return recorded

    @sound
    def _recorded(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return dict(json.loads(row["value"]))

    def _refusal(self, there: dict[str, Any], here: dict[str, Any]) -> str:
        if (release := self.RELEASES.get(self._db.version)) is None:
            return (
                f"{self.run_dir} holds a search with another configuration; use another run directory, or the "
                "settings it was made with:\n" + "\n".join(_differences(there, here))
            )
        return (
            f"{self.run_dir} holds a search that derl_gym {release} began, and only derl_gym {release} can go on with "
            "it; this version reports on it and trains from it, and has left it as it was. A new search needs another "
            "run directory"
        )

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a folder that one process at a time may write; ``path`` is the lock's file in it.

    Raises:
        LockedRunDirectory: another live process holds it.
    """
    descriptor = _lock(path)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(path: Path) -> int:
    """Take the run directory's lock.

    It is the kernel's (``flock``), held as long as the file is open: a process that has ended holds none, however it
    ended, and no age or process id is judged. That is so on a disk of this machine. On NFS, Linux asks the server for
    the lock, so that it keeps off other machines too, unless the mount says ``local_lock`` or ``nolock``; the lock of a
    machine that died then lasts until the server gives it up. SQLite's write-ahead log, however, cannot be shared by
    machines over any network file system, so even readers belong on the writer's machine there.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"
            if holder == _me():
                holder = "another environment or ledger of this very process"
            raise LockedRunDirectory(
                f"{path.parent} is being written by {holder}; wait for it, or use another run directory"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{_me()}\n".encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _me() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _without(config: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """A copy without what these dotted names stand for."""
    copy = json.loads(json.dumps(config))
    for name in names:
        *parents, key = name.split(".")
        part = copy
        for parent in parents:
            part = part.get(parent) or {}
        part.pop(key, None)
    return copy


def _differences(recorded: Any, wanted: Any, name: str = "") -> list[str]:
    if isinstance(recorded, dict) and isinstance(wanted, dict):
        lines = []
        for key in sorted({*recorded, *wanted}):
            there, here = recorded.get(key, "(absent)"), wanted.get(key, "(absent)")
            if there != here:
                lines += _differences(there, here, f"{name}.{key}" if name else key)
        return lines
    return [f"  {name}: {recorded!r} there, {wanted!r} now"]


def now() -> str:
    """The time of the clock, UTC, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
