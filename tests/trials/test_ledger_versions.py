"""Ledgers of versions 1 and 2 are read as they are, and taken over when they are opened for writing."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from derl_gym.trials.ledger import Ledger, LedgerError, RunDirectoryMismatch

VERSION_1 = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE episodes (episode INTEGER PRIMARY KEY, seed TEXT, started_at TEXT NOT NULL);
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
    started_at TEXT, ended_at TEXT, seconds REAL, tokens INTEGER, flops REAL, host TEXT, pid INTEGER
);
CREATE TABLE checkpoints (
    episode INTEGER NOT NULL, step INTEGER NOT NULL, folder TEXT NOT NULL, made_at TEXT NOT NULL,
    PRIMARY KEY (episode, step)
);
CREATE TABLE finals (
    id INTEGER PRIMARY KEY, programs TEXT NOT NULL, seed INTEGER NOT NULL, test REAL NOT NULL,
    validation REAL, again INTEGER NOT NULL, policy TEXT, result TEXT, ended_at TEXT NOT NULL
);
PRAGMA application_id = 1145393740;
PRAGMA user_version = 1;
INSERT INTO meta VALUES ('kind', 'ledger'), ('config', '{"group_size": 2}'), ('created_at', '2026-01-01');
INSERT INTO episodes VALUES (0, '7', '2026-01-01T00:00:01+00:00');
INSERT INTO trials (identity, program, status, score, result, seconds) VALUES
    ('t', 'g1', 'scored', 0.25, '{"train_seconds": 2.0}', 2.5), ('u', 'g2', 'running', NULL, NULL, NULL);
INSERT INTO proposals (episode, step, slot, actions, program, identity, status, score, proposed_at) VALUES
    (0, 0, 0, '[1, 0]', 'g1', 't', 'scored', 0.25, '2026-01-01T00:00:02+00:00'),
    (0, 0, 1, '[2, 0]', 'g2', NULL, 'proposed', NULL, '2026-01-01T00:00:02+00:00');
INSERT INTO finals (programs, seed, test, again, ended_at) VALUES ('["g1"]', 3, 0.5, 0, '2026-01-02T00:00:00+00:00');
"""

TO_VERSION_2 = """
ALTER TABLE episodes ADD COLUMN reference TEXT;
CREATE TABLE proposer (
    episode INTEGER NOT NULL REFERENCES episodes, step INTEGER NOT NULL, seconds REAL NOT NULL,
    PRIMARY KEY (episode, step)
);
PRAGMA user_version = 2;
UPDATE episodes SET reference = 't';
UPDATE trials SET host = 'ours', pid = 5 WHERE identity = 't';
INSERT INTO proposer VALUES (0, 0, 1.5);
"""


def make_old(folder: Path, *statements: str) -> Path:
    folder.mkdir()
    with sqlite3.connect(folder / "ledger.sqlite") as db:
        for script in statements:
            db.executescript(script)
    db.close()
    return folder


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return make_old(tmp_path / "run", VERSION_1)


@pytest.fixture
def second(tmp_path: Path) -> Path:
    return make_old(tmp_path / "second", VERSION_1, TO_VERSION_2)


def told(ledger: Ledger) -> tuple:
    """What a ledger holds, without the columns that are new."""
    episodes = [{key: value for key, value in row.items() if key != "reference"} for row in ledger.episodes()]
    trials = [row for row in ledger.trials() if row["identity"] == "t"]
    return ledger.config, episodes, ledger.proposals(), trials, ledger.finals()


def version(folder: Path) -> int:
    db = sqlite3.connect(folder / "ledger.sqlite")
    found = db.execute("PRAGMA user_version").fetchone()[0]
    db.close()
    return found


def test_a_reader_leaves_an_old_ledger_as_it_is(old: Path) -> None:
    before = (old / "ledger.sqlite").read_bytes()
    with Ledger(old, readonly=True) as ledger:
        assert [row["program"] for row in ledger.proposals()] == ["g1", "g2"]
        assert ledger.episodes() == [
            {"reference": None, "episode": 0, "seed": 7, "started_at": "2026-01-01T00:00:01+00:00"}
        ]
        assert ledger.proposer_seconds() == {}
        assert ledger.finals()[0]["test"] == 0.5
    assert (old / "ledger.sqlite").read_bytes() == before and version(old) == 1


def test_an_old_ledger_is_taken_over_with_everything_in_it(old: Path) -> None:
    with Ledger(old, readonly=True) as ledger:
        before = told(ledger)
    with Ledger(old) as ledger:
        assert told(ledger) == before
        assert ledger.trial("u")["status"] == "interrupted"
        ledger.propose(0, 0, np.array([[1, 0], [2, 0]]), ["g1", "g2"], seconds=9.0)  # a replay
        assert ledger.proposer_seconds() == {}
        ledger.settle(0, 0, 1, identity="u", status="invalid", score=0.0)
        ledger.propose(0, 1, np.array([[3, 0]]), ["g3"], seconds=0.5)
        ledger.set_reference(0, "t")
        ledger.record_final(["g1"], 3, test=0.25)
    assert version(old) == 3
    with Ledger(old, {"group_size": 2}) as ledger:  # opened again: nothing is done twice
        assert ledger.proposer_seconds() == {(0, 1): 0.5}
        assert ledger.episodes()[0]["reference"] == "t"
        assert [row["again"] for row in ledger.finals()] == [False, True]
        assert [row["status"] for row in ledger.proposals()] == ["scored", "invalid", "proposed"]


def test_a_ledger_of_version_2_is_taken_over_with_everything_in_it(second: Path) -> None:
    with Ledger(second, readonly=True) as ledger:
        before, trial = told(ledger), ledger.trial("t")
        assert (trial["config"], trial["code"], trial["versions"], trial["device"]) == (None, None, None, None)
    assert version(second) == 2, "a reader leaves it as it is"
    with Ledger(second, {"group_size": 2}) as ledger:
        assert told(ledger) == before and ledger.trial("t") == trial
        assert (trial["host"], trial["pid"]) == ("ours", 5)
        assert ledger.proposer_seconds() == {(0, 0): 1.5} and ledger.episodes()[0]["reference"] == "t"
        assert ledger.trial("u")["status"] == "interrupted"
        ledger.start_trial("u", program="g2", pid=1, host="node", config="c")
        ledger.finish_trial("u", status="scored", score=0.5, result={"device": "GPU", "versions": {"torch": "2"}})
        after = ledger.trial("u")
    assert version(second) == 3
    assert (after["host"], after["config"], after["device"]) == ("node", "c", "GPU")
    assert (after["versions"], after["code"], after["result"]) == ({"torch": "2"}, None, {})


def test_old_and_new_ledgers_have_the_same_tables(old: Path, second: Path, tmp_path: Path) -> None:
    for folder in (old, second, tmp_path / "new"):
        Ledger(folder, {"group_size": 2}).close() if folder == tmp_path / "new" else Ledger(folder).close()
    columns = []
    for folder in (old, second, tmp_path / "new"):
        db = sqlite3.connect(folder / "ledger.sqlite")
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        columns.append({name: db.execute(f"PRAGMA table_info({name})").fetchall() for name in names})
        columns[-1]["indices"] = sorted(db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index'"))
        db.close()
    assert columns[0] == columns[1] == columns[2] and "proposer" in columns[0]
    assert "running" in dict(columns[0]["indices"])


def test_a_take_over_that_is_interrupted_did_not_happen(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from derl_gym.trials import ledger as module

    statements = module.UPGRADES[1]
    monkeypatch.setitem(module.UPGRADES, 1, f"{statements}; CREATE TABLE finals (again TEXT)")
    with pytest.raises(LedgerError, match="finals already exists"):
        Ledger(old)
    assert version(old) == 1
    monkeypatch.setitem(module.UPGRADES, 1, statements)
    with Ledger(old) as ledger:
        assert ledger.proposer_seconds() == {} and len(ledger.proposals()) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_old_ledger_that_may_not_be_written_is_read(old: Path) -> None:
    (old / "ledger.sqlite").chmod(0o400)
    old.chmod(0o500)
    try:
        with Ledger(old, readonly=True) as ledger:
            assert len(ledger.proposals()) == 2
    finally:
        old.chmod(0o700)


def test_a_search_of_an_old_version_is_refused_before_its_ledger_is_changed(old: Path) -> None:
    with Ledger(old, readonly=True) as ledger:
        before = told(ledger)
    with pytest.raises(RunDirectoryMismatch, match="only derl_gym 0.1 can go on with it") as refused:
        Ledger(old, {"group_size": 2, "preset": None, "data": {}})
    assert "absent" not in str(refused.value)
    assert version(old) == 1, "the old version still opens it"
    with Ledger(old, readonly=True) as ledger:
        assert told(ledger) == before and ledger.trial("u")["status"] == "running"


def test_seconds_are_counted_once_and_summed_over_the_parts_of_a_group(tmp_path: Path) -> None:
    with Ledger(tmp_path, {}) as ledger:
        ledger.begin_episode(0, 1)
        for slot, seconds in enumerate((1.0, 2.5)):
            ledger.propose(0, 0, np.array([[slot, 0]]), ["g1"], first_slot=slot, seconds=seconds)
        ledger.propose(0, 0, np.array([[1, 0]]), ["g1"], first_slot=1, seconds=100.0)
        ledger.propose(0, 1, np.array([[1, 0], [2, 0]]), ["g1", "g2"], seconds=4.0)
        assert ledger.proposer_seconds() == {(0, 0): 3.5, (0, 1): 4.0}
