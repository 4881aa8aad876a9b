"""Tables out of a ledger: nothing is lost, types are kept, spreadsheets run nothing, test scores stay by themselves."""

from __future__ import annotations

import csv
import datetime
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from derl_gym.cli import main
from derl_gym.trials.export import TABLES, export
from derl_gym.trials.ledger import Ledger

ACTIONS = np.array([[3, 5, 0], [4, 5, 0], [7, 0, 0]])
PROGRAMS = ["-g1+g2", "+g1", ""]
REASON = "=cmd|'/C calc'!A0, \"quoted\",\nand a new line: \u00e4\u4e2d\U0001f600"


@pytest.fixture
def ledger(tmp_path: Path):
    with Ledger(tmp_path / "run", {"group_size": 3}) as ledger:
        ledger.begin_episode(0, 7)
        ledger.propose(0, 0, ACTIONS, PROGRAMS)
        ledger.start_trial("t", program="-g1+g2", key="k", seed=2**63 - 1, replicate=0, policy="@home", pid=9)
        result = {"curve": [{"reward": 0.1 + 0.2}], "device": "NVIDIA H200", "versions": {"torch": "2.6"}}
        ledger.finish_trial("t", status="scored", score=0.1 + 0.2, result=result, seconds=1.5, tokens=9, flops=3e15)
        ledger.start_trial("u", program="+g1", seed=1)
        ledger.finish_trial("u", status="failed", score=None, reason=REASON)
        ledger.settle(0, 0, 0, identity="t", status="scored", score=0.1 + 0.2, cached=True, seconds=1.5)
        ledger.settle(0, 0, 1, identity="u", status="failed", score=None, reason=REASON)
        yield ledger


def expected(ledger: Ledger) -> dict[str, list[dict[str, Any]]]:
    """What the ledger's own methods say, with JSON columns as texts."""
    tables = {"trials": ledger.trials(), "proposals": ledger.proposals(), "finals": ledger.finals()}
    for rows in tables.values():
        for row in rows:
            row |= {k: json.dumps(row[k]) for k in ("result", "versions") if row.get(k) is not None}
    return tables


def read_csv(path: Path) -> list[dict[str, Any]]:
    """By the kinds of the columns, as any program would have to."""
    numbers = {"integer": int, "number": float, "truth": {"True": True, "False": False}.get}
    lists = dict.fromkeys(("integers", "texts"), json.loads)
    with path.open(encoding="utf-8", newline="") as file:
        return [
            {k: (numbers | lists).get(TABLES[path.stem][k], str)(v) if v else None for k, v in row.items()}
            for row in csv.DictReader(file)
        ]


def read_parquet(path: Path) -> list[dict[str, Any]]:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = parquet.read_table(path).to_pylist()
    for row in rows:
        row |= {k: v.isoformat(timespec="milliseconds") for k, v in row.items() if isinstance(v, datetime.datetime)}
    return rows


@pytest.mark.parametrize(("form", "read"), [("csv", read_csv), ("parquet", read_parquet)])
def test_nothing_is_lost(ledger: Ledger, tmp_path: Path, form: Any, read: Any) -> None:
    pytest.importorskip("pyarrow" if form == "parquet" else "csv")
    for test, again in ((0.654321, False), (0.25, True)):
        ledger.record_final(["g1", "-g1+g2"], 3, test=test, policy="p", result={"n": 5} if again else None)
    folder = tmp_path / "tables"
    counts = {"trials": 2, "proposals": 3, "finals": 2}
    assert export(ledger, folder, form) == {folder / f"{name}.{form}": n for name, n in counts.items()}
    for name, rows in expected(ledger).items():
        found = read(folder / f"{name}.{form}")
        assert [set(row) for row in found] == [set(row) for row in rows], "no column is missing"
        if form == "csv":  # an empty text is an empty cell, and what looks like a formula is none any more
            rows = [{k: v or (None if v == "" else v) for k, v in row.items()} for row in rows]
            guarded = {REASON: f"'{REASON}", "@home": "'@home"}
            rows = [{k: guarded.get(v, v) if isinstance(v, str) else v for k, v in row.items()} for row in rows]
        assert found == rows
    assert (folder.stat().st_mode & 0o777, (folder / f"finals.{form}").stat().st_mode & 0o777) == (0o700, 0o600)


def test_a_spreadsheet_runs_nothing_and_programs_stay_as_they_are(ledger: Ledger, tmp_path: Path) -> None:
    ledger.start_trial("v", program="=1+2", pid=1)
    ledger.finish_trial("v", status="failed", score=None, reason="-2 is no good")
    export(ledger, tmp_path / "tables")
    with (tmp_path / "tables" / "trials.csv").open(newline="") as file:
        rows = {row["identity"]: row for row in csv.DictReader(file)}
    assert [rows[name]["program"] for name in "tuv"] == ["-g1+g2", "+g1", "'=1+2"]
    assert rows["u"]["reason"][:2] == "'=" and rows["v"]["reason"] == "'-2 is no good"


def test_types_in_parquet(ledger: Ledger, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    ledger.record_final(["g1"], 3, test=0.5)
    export(ledger, tmp_path, "parquet")
    types = {
        f"{name}.{field.name}": str(field.type)
        for name in TABLES
        for field in parquet.read_schema(tmp_path / f"{name}.parquet")
    }
    assert types["trials.seed"] == "int64" and types["trials.score"] == types["trials.flops"] == "double"
    assert types["trials.result"] == types["trials.versions"] == "string"
    assert types["proposals.cached"] == types["finals.again"] == "bool"
    assert types["proposals.settled_at"] == "timestamp[ms, tz=UTC]"
    assert types["proposals.actions"].startswith("list<") and "int64" in types["proposals.actions"]
    assert types["finals.programs"].startswith("list<") and "string" in types["finals.programs"]


def test_a_test_score_is_in_no_table_but_finals(ledger: Ledger, tmp_path: Path) -> None:
    export(ledger, tmp_path)
    assert {path.name for path in tmp_path.glob("*.csv")} == {"trials.csv", "proposals.csv"}, "none was made yet"
    ledger.record_final(["g1"], 3, test=0.654321)
    export(ledger, tmp_path)
    texts = {name: (tmp_path / f"{name}.csv").read_text() for name in TABLES}
    assert "0.654321" in texts["finals"] and "0.654321" not in texts["trials"] + texts["proposals"]


def test_all_tables_are_of_one_moment(ledger: Ledger) -> None:
    with Ledger(ledger.run_dir, readonly=True) as reader, reader.moment():
        ledger.start_trial("later", program="g1")
        ledger.settle(0, 0, 2, identity="later", status="invalid", score=0.0)
        trials = [row["identity"] for rows in reader.batches("trials", size=1) for row in rows]
        assert trials == ["t", "u"] and reader.proposals()[2]["identity"] is None
    with Ledger(ledger.run_dir, readonly=True) as reader:
        assert [len(rows) for rows in reader.batches("trials", size=2)] == [2, 1]


def test_without_pyarrow(ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'derl-gym\[train\]', or --format csv"):
        export(ledger, tmp_path / "tables", "parquet")
    assert not (tmp_path / "tables").exists()
    assert len(export(ledger, tmp_path / "tables")) == 2


def test_the_command(ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ledger.run_dir
    assert main(["export", str(run)]) == 0  # its writer is alive
    assert capsys.readouterr().out.splitlines() == [
        f"{run / 'export' / 'trials.csv'}: 2 rows",
        f"{run / 'export' / 'proposals.csv'}: 3 rows",
    ]
    assert main(["export", str(tmp_path / "none")]) == 2
    assert "there is no ledger in" in capsys.readouterr().err
    (tmp_path / "compare.json").write_text("{}")
    assert main(["export", str(tmp_path)]) == 2
    assert f"name one of its run directories, {run}" in capsys.readouterr().err
