"""A ledger's tables as files for other programs: CSV with the standard library alone, Parquet through pyarrow.

Test scores are in ``finals`` and in no other file. What a search can read, it reads from its ledger, never from here.
"""

from __future__ import annotations

import csv
import datetime
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from derl_gym.trials.database import explained
from derl_gym.trials.ledger import Ledger
from derl_gym.trials.private import private_folder

TABLES: dict[str, dict[str, str]] = {
    "trials": {
        **dict.fromkeys(("identity", "program", "key"), "text"),
        **dict.fromkeys(("seed", "replicate"), "integer"),
        **dict.fromkeys(("policy", "status"), "text"),
        "score": "number",
        "reason": "text",
        "attempts": "integer",
        "result": "text",
        **dict.fromkeys(("started_at", "ended_at"), "time"),
        "seconds": "number",
        "tokens": "integer",
        "flops": "number",
        "host": "text",
        "pid": "integer",
        **dict.fromkeys(("config", "code", "versions", "device"), "text"),
    },
    "proposals": {
        **dict.fromkeys(("episode", "step", "slot"), "integer"),
        "actions": "integers",
        **dict.fromkeys(("program", "identity", "status"), "text"),
        "score": "number",
        "reason": "text",
        "cached": "truth",
        "seconds": "number",
        **dict.fromkeys(("proposed_at", "settled_at"), "time"),
    },
    "finals": {
        "id": "integer",
        "programs": "texts",
        "seed": "integer",
        **dict.fromkeys(("test", "validation"), "number"),
        "again": "truth",
        **dict.fromkeys(("policy", "result"), "text"),
        "ended_at": "time",
    },
}
"""Table -> column -> kind. ``result`` and ``versions`` are JSON texts."""
_FORMULA = re.compile(r"[=+\-@\t\r]")
_PROGRAM = re.compile(r"[g0-9+\-*/.() ]*")
Batches = Iterator[list[dict[str, Any]]]


def export(ledger: Ledger, folder: Path, form: Literal["csv", "parquet"] = "csv") -> dict[Path, int]:
    """Write the tables ``trials``, ``proposals`` and, where there are some, ``finals``, all as of one moment.

    In Parquet, times are UTC timestamps in milliseconds, and ``actions`` and ``programs`` are lists. In CSV these are
    ISO 8601 and JSON, and a missing value is an empty cell. A text that a spreadsheet would take for a formula begins
    with an apostrophe there, except for what is written in the alphabet of programs: that can call nothing, and
    ``-g1+g2`` has to stay what it is.

    Args:
        ledger: What is read; its search may be running.
        folder: Made if need be, for the user alone; files are as private as it is. Older ones are replaced.
        form: The format, which is also the files' suffix.

    Returns:
        File -> its number of rows.

    Raises:
        ImportError: Parquet without pyarrow.
        LedgerError: a file cannot be read or written.
    """
    write = _parquet_writer() if form == "parquet" else _write_csv
    written: dict[Path, int] = {}
    with ledger.moment(), explained(folder):
        private_folder(folder)
        for table, kinds in TABLES.items():
            path = folder / f"{table}.{form}"
            if table == "finals" and not ledger.finals():
                path.unlink(missing_ok=True)
                continue
            aside = folder / f".{path.name}.{os.getpid()}"
            try:
                written[path] = write(aside, kinds, ledger.batches(table))
                aside.chmod(0o644 & folder.stat().st_mode)
                os.replace(aside, path)
            finally:
                aside.unlink(missing_ok=True)
    return written


def _write_csv(path: Path, kinds: dict[str, str], batches: Batches) -> int:
    count = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file)
        out.writerow(kinds)
        for rows in batches:
            out.writerows([_cell(row.get(name), kind) for name, kind in kinds.items()] for row in rows)
            count += len(rows)
    return count


def _cell(value: Any, kind: str) -> Any:
    if value is None or kind != "text":
        return bool(value) if kind == "truth" else value
    formula = _FORMULA.match(value) and not _PROGRAM.fullmatch(value)
    return f"'{value}" if formula else value


def _parquet_writer() -> Callable[[Path, dict[str, str], Batches], int]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("Parquet needs pyarrow: pip install 'derl-gym[train]', or --format csv") from error
    types = {
        "text": pyarrow.string(),
        "integer": pyarrow.int64(),
        "number": pyarrow.float64(),
        "truth": pyarrow.bool_(),
        "time": pyarrow.timestamp("ms", "UTC"),
        "integers": pyarrow.list_(pyarrow.int64()),
        "texts": pyarrow.list_(pyarrow.string()),
    }
    read = {"truth": bool, "time": datetime.datetime.fromisoformat, "integers": json.loads, "texts": json.loads}

    def write(path: Path, kinds: dict[str, str], batches: Batches) -> int:
        count, schema = 0, pyarrow.schema([(name, types[kind]) for name, kind in kinds.items()])
        with pyarrow.parquet.ParquetWriter(path, schema) as out:
            for rows in batches:
                columns = {
                    name: [None if (value := row.get(name)) is None else read.get(kind, _same)(value) for row in rows]
                    for name, kind in kinds.items()
                }
                out.write_table(pyarrow.table(columns, schema))
                count += len(rows)
        return count

    return write


def _same(value: Any) -> Any:
    return value
