"""Finished trials across run directories: an optional file that many searches may share at once.

What makes two trials the same is in their identity, which the environment computes. Failures are never kept.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from derl_gym.trials.database import Database, explained, sound

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE results (identity TEXT PRIMARY KEY, result TEXT NOT NULL)"""


class SharedCache:
    """Results by trial identity, in one SQLite file.

    Args:
        path: The file; made with its folder if need be. Every call opens it anew, so the object survives
            forks and serves any process or thread.

    Raises:
        LedgerError: the file cannot be made, or is something else. The methods raise it as well.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        with explained(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._open():
            pass

    @sound
    def get(self, identity: str) -> dict[str, Any] | None:
        """The result kept under an identity, or ``None``."""
        with self._open() as db:
            rows = db.rows("SELECT result FROM results WHERE identity = ?", identity)
        return json.loads(rows[0]["result"]) if rows else None

    def put(self, identity: str, result: Mapping[str, Any]) -> None:
        """Keep a result. The first one under an identity stays.

        Raises:
            ValueError: the result's ``status`` is neither ``"scored"`` nor ``"invalid"``.
        """
        if result.get("status") not in ("scored", "invalid"):
            raise ValueError(f"only scored and invalid trials are kept, not {result.get('status')!r}")
        with self._open() as db, db.transaction():
            db.insert("results", {"identity": identity, "result": dict(result)}, "IGNORE")

    @contextlib.contextmanager
    def _open(self) -> Iterator[Database]:
        with contextlib.closing(Database(self.path, "cache", 1, SCHEMA)) as db:
            yield db
