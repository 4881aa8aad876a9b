"""SQLite with its errors in plain words; the ledger and the shared cache stand on it.

A file is ours when its ``application_id`` and its ``kind`` say so, and readable when its ``user_version`` is
not newer than ours. Nothing is written to a file before that is known.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from derl_gym.secrets import redacted_values

APPLICATION_ID = 0x4445524C  # "DERL"


class LedgerError(RuntimeError):
    """A ledger or cache cannot be opened, read or written; the message says why and names the file."""


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and of the file system into :class:`LedgerError`."""
    try:
        yield
    except sqlite3.Error as error:
        raise LedgerError(_explain(error, path)) from error
    except UnicodeDecodeError as error:
        raise LedgerError(damage(path, error)) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise LedgerError(f"disk full: {path} was not written") from error
        raise LedgerError(f"cannot use {error.filename or path}: {error.strerror or error}") from error


def damage(path: Path, what: object) -> str:
    """That a file is damaged, and what helps: it is not repaired, since nobody could tell what was lost."""
    return (
        f"{path} is damaged: {what}; put back a copy of its folder, or begin anew in another one, where trials that "
        "a cache_dir holds are not trained again"
    )


Read = TypeVar("Read", bound=Callable[..., Any])


def sound(read: Read) -> Read:
    """Decorate a method that reads: what cannot be what was written makes a :class:`LedgerError`.

    Text that is not the JSON it should be, or is missing, for instance. A changed digit of a number is not noticed:
    SQLite keeps no checksums.
    """

    @functools.wraps(read)
    def reading(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return read(self, *arguments, **named)
        except (ValueError, TypeError, LookupError) as error:
            raise LedgerError(damage(self.path, error)) from error

    return reading  # type: ignore[return-value]


class Database:
    """One file of ours: opened, or made with its tables in one transaction.

    Args:
        path: The file; its folder must exist.
        kind: ``"ledger"`` or ``"cache"``, for the messages and to tell them apart.
        version: Newest schema that this code reads.
        schema: ``CREATE`` statements, separated by ``;``. One table is ``meta (key, value)``.
        readonly: Never create or write; a file that is being written can be read all the same.
        costly: Whether what is committed cost something: it survives a power cut as well, which takes some
            milliseconds per commit. Whatever is committed survives the death of the process.

    A file of an older version keeps its tables until :meth:`upgrade`.

    Raises:
        LedgerError: not a file of this kind, newer schema, damaged, no permission, disk full. The methods
            raise it as well.
    """

    def __init__(
        self,
        path: Path,
        kind: str,
        version: int,
        schema: str,
        readonly: bool = False,
        costly: bool = True,
    ) -> None:
        self.path = path
        self.readonly = readonly
        with explained(path):
            self._db = _connect_readonly(path) if readonly else _connect(path)
            try:
                self._db.row_factory = sqlite3.Row
                if readonly or self._tables():
                    self._check(kind, version)
                if not readonly:
                    # WAL: one writer and many readers at once. FULL waits for the disk at each commit.
                    waits = f"synchronous={'FULL' if costly else 'NORMAL'}"
                    for setting in ("journal_mode=WAL", waits, "foreign_keys=ON"):
                        self._db.execute(f"PRAGMA {setting}")
                    if not self._tables():
                        self._create(kind, version, schema)
            except BaseException:
                self._db.close()
                raise

    @property
    def version(self) -> int:
        """Schema of the file as it is now."""
        with explained(self.path):
            return self._version()

    def upgrade(self, upgrades: Mapping[int, str]) -> None:
        """Take an older file over, all or nothing.

        Args:
            upgrades: Older version -> the statements that make its file one of the next version.
        """
        if self.version not in upgrades:
            return
        with self.transaction():
            while (old := self._version()) in upgrades:  # read again: another process may have been faster
                for statement in upgrades[old].split(";"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version={old + 1}")

    def close(self) -> None:
        """Close the file; twice is fine."""
        with explained(self.path):
            self._db.close()

    def each(self, query: str, *values: Any) -> Iterator[dict[str, Any]]:
        """The rows of a query one by one, as dicts."""
        with explained(self.path):
            for row in self._db.execute(query, [plain(value) for value in values]):
                yield dict(row)

    def rows(self, query: str, *values: Any) -> list[dict[str, Any]]:
        """The rows of a query, as dicts."""
        return list(self.each(query, *values))

    @contextlib.contextmanager
    def moment(self) -> Iterator[None]:
        """Within the block, what is read is as it was at its beginning; nothing may be written in it."""
        with explained(self.path):
            self._db.execute("BEGIN")
            try:
                self._tables()  # the first look decides on the moment
                yield
            finally:
                self._db.execute("ROLLBACK")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """What is written in the block is committed at its end, all or nothing; within another block, at its end."""
        if self.readonly:
            raise LedgerError(f"{self.path} is open for reading only")
        if self._db.in_transaction:
            yield
            return
        with explained(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    with contextlib.suppress(sqlite3.Error):
                        self._db.execute("ROLLBACK")
                raise

    def insert(self, table: str, values: dict[str, Any], conflict: str = "ABORT") -> None:
        """Insert one row, keys and passwords redacted.

        Args:
            table: Where.
            values: By column.
            conflict: SQLite's word for what happens when its key is there already.
        """
        marks = ", ".join("?" * len(values))
        self._db.execute(
            f"INSERT OR {conflict} INTO {table} ({', '.join(values)}) VALUES ({marks})",
            redacted_values(map(plain, values.values())),
        )

    def update(self, table: str, where: dict[str, Any], values: dict[str, Any]) -> None:
        """Change the columns ``values`` of the rows that have the columns ``where``, keys and passwords redacted."""
        changes = ", ".join(f"{name} = ?" for name in values)
        place = " AND ".join(f"{name} = ?" for name in where)
        self._db.execute(
            f"UPDATE {table} SET {changes} WHERE {place}",
            [*redacted_values(map(plain, values.values())), *map(plain, where.values())],
        )

    def _tables(self) -> int:
        return self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]

    def _create(self, kind: str, version: int, schema: str) -> None:
        with self.transaction():
            if self._tables():
                return  # another process was faster
            for statement in schema.split(";"):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA application_id={APPLICATION_ID}")
            self._db.execute(f"PRAGMA user_version={version}")
            self.insert("meta", {"key": "kind", "value": kind})

    def _version(self) -> int:
        return self._db.execute("PRAGMA user_version").fetchone()[0]

    @sound
    def _check(self, kind: str, version: int) -> None:
        def one(query: str) -> Any:
            return self._db.execute(query).fetchone()[0]

        if not self._tables():
            raise LedgerError(f"{self.path} is empty: the making of this {kind} was interrupted")
        if one("PRAGMA application_id") != APPLICATION_ID:
            raise LedgerError(f"{self.path} is a database of another program, not a derl_gym {kind}")
        if (there := one("SELECT value FROM meta WHERE key = 'kind'")) != kind:
            raise LedgerError(f"{self.path} is a derl_gym {there}, not a {kind}")
        if (found := one("PRAGMA user_version")) > version:
            raise LedgerError(
                f"{self.path} was written by a newer derl_gym: its schema is {found}, this one reads up to {version}"
            )


def plain(value: Any) -> Any:
    """A value as SQLite takes it: dicts and lists as JSON, numpy's scalars as numbers (else they are blobs)."""
    if isinstance(value, dict | list | tuple):
        return json.dumps(value)
    return value.item() if isinstance(value, np.generic) else value


def _connect(target: Path | str, uri: bool = False) -> sqlite3.Connection:
    if isinstance(target, Path):
        os.close(os.open(target, os.O_RDWR | os.O_CREAT, 0o600))
    return sqlite3.connect(target, timeout=30.0, isolation_level=None, check_same_thread=False, uri=uri)


def _connect_readonly(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise LedgerError(f"there is no file {path}")
    address = f"{path.absolute().as_uri()}?mode=ro"
    # Without write permission SQLite cannot make the index of the write-ahead log; where there is no log
    # either, nobody is writing and the file may be read as it lies.
    if not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists():
        address += "&immutable=1"
    return _connect(address, uri=True)


def _explain(error: sqlite3.Error, path: Path) -> str:
    name = getattr(error, "sqlite_errorname", None) or ""
    if name.startswith("SQLITE_FULL"):
        return f"disk full: {path} was not written"
    if name.startswith(("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_CANTOPEN")):
        return f"no permission to write {path} ({error})"
    if name.startswith("SQLITE_NOTADB"):
        return f"{path} is not a database, so it is no file of derl_gym's"
    if name.startswith("SQLITE_CORRUPT"):
        return damage(path, error)
    if name.startswith("SQLITE_BUSY"):
        return f"{path} is in use by another process that does not let go of it"
    return f"{path}: {error}" + ("; is the disk full?" if name.startswith("SQLITE_IOERR") else "")
