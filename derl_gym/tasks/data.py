"""Problem sets from the Hugging Face hub or from local files, counted and hashed, and their 8:2 split.

A data set is a :class:`Source`: where it lies on the hub, its files in a local folder, which fields matter, how many
rows it has and what they hash to. The split depends on the problems' text alone, so that neither the order of the rows
nor the machine changes it. What a row means is the task's business.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from derl_gym.hub import use_cache_without_network

LOG = logging.getLogger("derl_gym")
DATA_VARIABLE = "DERL_GYM_DATA"
"""Environment variable with the folder of local data."""
ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".json.gz")

Row = dict[str, str]


@dataclasses.dataclass(frozen=True)
class Source:
    """A data set as it was published.

    Attributes:
        name: Folder of its local files.
        hub: Its name and configuration on the hub.
        fields: Fields of a row that are kept, the problem's text first.
        rows: How many rows each split has.
        sha256: By split, of the rows' kept fields; the order of the rows and blanks at the ends of a text don't matter.
    """

    name: str
    hub: tuple[str, str]
    fields: tuple[str, ...]
    rows: dict[str, int]
    sha256: dict[str, str]


def load_rows(source: Source, split: str, data_dir: str | None = None, check: bool = True) -> list[Row]:
    """The rows of a split, from ``data_dir``, else ``$DERL_GYM_DATA``, else the hub.

    Args:
        source: The data set.
        split: ``"train"`` or ``"test"``.
        data_dir: Folder that holds ``<name>/<split>`` as .jsonl or .json, gzipped or not.
        check: Refuse rows that are not the published ones; off, any rows with the right fields will do.

    Returns:
        Rows with the source's fields, in the order in which they come.

    Raises:
        FileNotFoundError: neither the files nor the hub can be reached; the message says what was tried.
        ValueError: the file is damaged, a field is missing, or the rows are not the published ones.
    """
    where, raw = _raw_rows(source, split, data_dir)
    rows: list[Row] = []
    for number, row in enumerate(raw, start=1):
        if not isinstance(row, dict) or any(not isinstance(row.get(field), str) for field in source.fields):
            found = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
            raise ValueError(f"{where}, row {number}: expected text in {', '.join(source.fields)}, found {found}")
        rows.append({field: row[field].strip() for field in source.fields})
    if not rows:
        raise ValueError(f"{where} holds no rows")
    if check:
        _check(source, split, where, rows)
    return rows


def split_rows(rows: Sequence[Row], field: str, seed: int = 0, validation_share: float = 0.2) -> tuple[list, list]:
    """Split rows at random into inner-train and validation (paper section 4.2).

    Every row's place is a hash of the seed and its ``field``; the last ones are the validation. Equal texts have equal
    places, so the same problem is on both sides only where the border falls between its copies, and then both go to
    training.

    Returns:
        ``(train, validation)``, each in the order of the hashes, whatever the order of ``rows``.
    """

    def place(row: Row) -> tuple[str, str]:
        return hashlib.sha256(f"{seed}:{row[field]}".encode()).hexdigest(), json.dumps(row, sort_keys=True)

    ordered = sorted(rows, key=place)
    border = len(ordered) - round(validation_share * len(ordered))
    while 0 < border < len(ordered) and ordered[border][field] == ordered[border - 1][field]:
        border += 1
    return ordered[:border], ordered[border:]


def find_file(source: Source, split: str, data_dir: str | None = None) -> Path | None:
    """The local file of a split, or ``None`` where the hub is to be asked.

    Raises:
        FileNotFoundError: ``data_dir`` was given but does not hold it.
    """
    folder = data_dir or os.environ.get(DATA_VARIABLE)
    if not folder:
        return None
    stem = Path(folder).expanduser() / source.name / split
    for ending in ENDINGS:
        if (path := stem.with_name(stem.name + ending)).is_file():
            return path
    if data_dir:
        raise FileNotFoundError(f"no {source.name} data: expected one of {stem}{{{','.join(ENDINGS)}}}")
    return None


def origin(source: Source, split: str, data_dir: str | None = None) -> str:
    """Where a split is read from, in words: its file, or its name on the hub.

    Raises:
        FileNotFoundError: ``data_dir`` was given but does not hold it.
    """
    path = find_file(source, split, data_dir)
    return f"{source.hub[0]} ({split}) on the hub" if path is None else str(path)


def content_hash(rows: Sequence[Row]) -> str:
    """SHA-256 over rows, whatever their order."""
    lines = sorted(json.dumps(row, sort_keys=True, ensure_ascii=True) for row in rows)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _raw_rows(source: Source, split: str, data_dir: str | None) -> tuple[str, Sequence[Any]]:
    path, where = find_file(source, split, data_dir), origin(source, split, data_dir)
    if path is None:
        return where, _from_hub(source, split)
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            if ".jsonl" in path.suffixes:
                return where, [json.loads(line) for line in file if line.strip()]
            rows = json.load(file)
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(rows, list):
        raise ValueError(f"{path} must hold a list of rows, not {type(rows).__name__}")
    return where, rows


def _from_hub(source: Source, split: str) -> Sequence[Any]:
    use_cache_without_network(source.hub[0])
    try:
        import datasets

        return list(datasets.load_dataset(*source.hub, split=split))  # type: ignore[arg-type]
    except Exception as error:  # the hub's client raises whatever its network stack does
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise FileNotFoundError(
            f"no {source.name} data: neither a local folder (data_dir= or ${DATA_VARIABLE}, holding "
            f"{source.name}/{split}.jsonl) nor {source.hub[0]} on the hub can be reached ({reason})"
        ) from error


def _check(source: Source, split: str, where: str, rows: Sequence[Row]) -> None:
    if len(rows) != source.rows[split]:
        raise ValueError(
            f"{where} has {len(rows)} rows, not the {source.rows[split]} of {source.name}'s {split} set; for data of "
            "your own, task_options={'check_data': False}"
        )
    if (found := content_hash(rows)) != source.sha256[split]:
        message = (
            f"{where} differs from the published {source.name} {split} set: its rows hash to {found[:12]}..., "
            f"not {source.sha256[split][:12]}..."
        )
        if not where.endswith("on the hub"):
            raise ValueError(f"{message}; for data of your own, task_options={{'check_data': False}}")
        LOG.warning("%s; the ledger records what was used", message)
