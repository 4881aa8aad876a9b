"""Agent checkpoints in a run directory: folders that are complete or not there.

A folder is written aside, flushed, renamed, and counts from the moment its row is in the ledger. What no row
names is deleted. What is in a checkpoint is the agent's business.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from derl_gym.trials.database import Database, LedgerError, explained
from derl_gym.trials.private import make_private
from derl_gym.trials.run_directory import now

SCHEMA = """
CREATE TABLE checkpoints (
    episode INTEGER NOT NULL, step INTEGER NOT NULL, folder TEXT NOT NULL, made_at TEXT NOT NULL,
    PRIMARY KEY (episode, step)
)"""


@contextlib.contextmanager
def new_checkpoint(database: Database, run_dir: Path, episode: int, step: int, keep: int | None) -> Iterator[Path]:
    """See :meth:`derl_gym.trials.ledger.Ledger.new_checkpoint`."""
    if database.readonly:
        raise LedgerError(f"{database.path} is open for reading only")
    home = run_dir / "checkpoints"
    name = f"episode-{episode:04d}-step-{step:06d}"
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
            make_private(aside)
            _sync([*aside.rglob("*"), aside])
            os.rename(aside, home / name)
            _sync([home])
    except BaseException as error:
        shutil.rmtree(aside, ignore_errors=True)
        if os.strerror(errno.ENOSPC) in str(error):  # safetensors has an exception of its own for it
            raise LedgerError(f"disk full: {home} was not written") from error
        raise
    with database.transaction():
        folder = f"checkpoints/{name}"
        row = {"episode": episode, "step": step, "folder": folder, "made_at": now()}
        database.insert("checkpoints", row, "REPLACE")
        steps = [row["step"] for row in database.rows("SELECT step FROM checkpoints WHERE episode = ?", episode)]
        kept = sorted(s for s in steps if s <= step)[-keep:] if keep else steps
        for gone in set(steps) - set(kept):
            database.rows("DELETE FROM checkpoints WHERE episode = ? AND step = ?", episode, gone)
    sweep(database, run_dir)


def last_checkpoint(database: Database, run_dir: Path, episode: int) -> tuple[int, Path] | None:
    """See :meth:`derl_gym.trials.ledger.Ledger.last_checkpoint`."""
    rows = database.rows("SELECT step, folder FROM checkpoints WHERE episode = ? ORDER BY step DESC LIMIT 1", episode)
    if not rows:
        return None
    step, folder = rows[0]["step"], run_dir / rows[0]["folder"]
    if not folder.is_dir():
        raise LedgerError(f"the checkpoint of episode {episode}, step {step} is recorded, but {folder} is gone")
    return step, folder


def sweep(database: Database, run_dir: Path) -> None:
    """Delete the folders that no row names: half written, replaced, or no longer kept."""
    recorded = {row["folder"] for row in database.rows("SELECT folder FROM checkpoints")}
    home = run_dir / "checkpoints"
    for folder in home.iterdir() if home.is_dir() else ():
        if f"checkpoints/{folder.name}" not in recorded:
            shutil.rmtree(folder, ignore_errors=True)


def _sync(paths: list[Path]) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
