"""SQLite with its errors in plain words; the ledger and the shared cache stand on it.

A file is ours when its ``application_id`` says so, and readable when its ``user_version`` is not newer than ours.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

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
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise LedgerError(f"disk full: {path} was not written") from error
        raise LedgerError(f"cannot use {error.filename or path}: {error.strerror or error}") from error


def open_database(
    path: Path, kind: str, version: int, schema: str, readonly: bool = False
) -> sqlite3.Connection:
    """Open a file of ours, or make it with its tables in one transaction.

    Args:
        path: The file; its folder must exist.
        kind: ``"ledger"`` or ``"cache"``, for the messages and to tell them apart.
        version: Newest schema that this code reads.
        schema: ``CREATE`` statements, separated by ``;``.
        readonly: Never create or write; a file that is being written can be read all the same.

    Returns:
        A connection in autocommit mode (use :func:`transaction`) whose rows have names.

    Raises:
        LedgerError: not a file of this kind, newer schema, damaged, or no permission.
    """
    with explained(path):
        if readonly:
            db = _connect_readonly(path)
        else:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            db = sqlite3.connect(path, timeout=30.0, isolation_level=None, check_same_thread=False)
        try:
            db.row_factory = sqlite3.Row
            if not readonly:
                db.execute("PRAGMA journal_mode=WAL")
                db.execute("PRAGMA synchronous=FULL")
                db.execute("PRAGMA foreign_keys=ON")
                with transaction(db):
                    if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                        for statement in schema.split(";"):
                            db.execute(statement)
                        db.execute(f"PRAGMA application_id={APPLICATION_ID}")
                        db.execute(f"PRAGMA user_version={version}")
                        db.execute("INSERT INTO meta VALUES ('kind', ?)", (kind,))
            _check(db, path, kind, version)
        except BaseException:
            db.close()
            raise
    return db


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """One commit, or nothing of it."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
        raise


def _connect_readonly(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise LedgerError(f"there is no file {path}")
    address = f"{path.absolute().as_uri()}?mode=ro"
    # Without write permission SQLite cannot make the index of the write-ahead log; if there is no log either,
    # nobody is writing and the file may be read as it lies.
    if not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists():
        address += "&immutable=1"
    return sqlite3.connect(address, uri=True, timeout=30.0, isolation_level=None, check_same_thread=False)


def _check(db: sqlite3.Connection, path: Path, kind: str, version: int) -> None:
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise LedgerError(f"{path} is a database of another program, not a derl_gym {kind}")
    found = db.execute("PRAGMA user_version").fetchone()[0]
    if found > version:
        raise LedgerError(
            f"{path} was written by a newer derl_gym (schema {found}, this one reads up to {version}): upgrade derl_gym"
        )
    if (there := db.execute("SELECT value FROM meta WHERE key = 'kind'").fetchone()[0]) != kind:
        raise LedgerError(f"{path} is a derl_gym {there}, not a {kind}")
    if (verdict := db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
        raise LedgerError(f"{path} is damaged: {verdict}")


def _explain(error: sqlite3.Error, path: Path) -> str:
    name = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith("SQLITE_FULL"):
        return f"disk full: {path} was not written"
    if name.startswith(("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_CANTOPEN")):
        return f"no permission to write {path} ({error})"
    if name.startswith("SQLITE_NOTADB"):
        return f"{path} is not a database, so it is no file of derl_gym's"
    if name.startswith("SQLITE_CORRUPT"):
        return f"{path} is damaged: {error}"
    if name.startswith("SQLITE_BUSY"):
        return f"{path} is in use by another process that does not let go of it"
    return f"{path}: {error}"
