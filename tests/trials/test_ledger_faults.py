"""Faults put into the ledger: kill -9 at bad moments, full and read-only disks, foreign and damaged files."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from derl_gym.trials import ledger as ledger_module
from derl_gym.trials.database import APPLICATION_ID
from derl_gym.trials.ledger import Ledger, LedgerError, LockedRunDirectory
from derl_gym.trials.pool import Job, LocalPool

WRITER = """
    import numpy as np
    from derl_gym.trials.ledger import Ledger
    ledger = Ledger({folder!r}, {{"a": 1}})
    ledger.begin_episode(0, 0)
    first = sum(row["status"] == "scored" for row in ledger.proposals(0))
    print("open", flush=True)
    for i in range(first, 100000):
        ledger.propose(0, i, np.full((2, 8), i), ["g1", "g2"])
        if (ledger.trial(str(i)) or {{"status": "new"}})["status"] != "scored":
            ledger.start_trial(str(i), program="g1", seed=i)
            ledger.finish_trial(str(i), status="scored", score=0.5, result={{"text": "x" * 5000}})
        ledger.settle(0, i, 0, identity=str(i), status="scored", score=0.5)
        with ledger.new_checkpoint(0, i) as folder:
            (folder / "state").write_text("x" * 1000 + str(i))
        print(i, flush=True)
"""


def integrity(path: Path) -> str:
    with sqlite3.connect(path) as db:
        return db.execute("PRAGMA integrity_check").fetchone()[0]


def test_kill_in_the_middle_of_writes_loses_nothing_committed(script, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    last = -1
    for seconds in (0.05, 0.13, 0.31):
        writer = script(WRITER.format(folder=str(run_dir)))
        assert writer.line().startswith("open")
        time.sleep(seconds)
        writer.process.kill()
        done = writer.process.communicate()[0].split()
        last = int(done[-1]) if done else last
        with Ledger(run_dir) as ledger:
            assert integrity(ledger.path) == "ok"
            trials = {trial["identity"]: trial for trial in ledger.trials()}
            proposals = ledger.proposals(0)
            assert len(proposals) % 2 == 0, "a group is there whole or not at all"
            for i in range(last + 1):
                assert trials[str(i)]["status"] == "scored"
                assert (proposals[2 * i]["identity"], proposals[2 * i]["score"]) == (str(i), 0.5)
            assert {trial["status"] for trial in trials.values()} <= {"scored", "interrupted"}
            if last >= 0:
                step, folder = ledger.last_checkpoint(0)
                assert step >= last
                assert (folder / "state").read_text() == "x" * 1000 + str(step)
                assert list((run_dir / "checkpoints").iterdir()) == [folder]
    assert last >= 0, "the writer was never killed before its first commit only"


@pytest.mark.parametrize("moment", ["checkpoints.os.rename", "checkpoints.now", "checkpoints.sweep"])
def test_kill_inside_a_checkpoint(script, tmp_path: Path, moment: str) -> None:
    """Before the rename, between rename and row, and after the row."""
    run_dir = tmp_path / "run"
    with Ledger(run_dir, {}) as ledger, ledger.new_checkpoint(0, 0) as folder:
        (folder / "state").write_text("old")
    dying = script(
        f"""
        import os
        from derl_gym.trials import checkpoints
        from derl_gym.trials.ledger import Ledger
        ledger = Ledger({str(run_dir)!r})
        def die(*arguments):
            os.kill(os.getpid(), 9)
        with ledger.new_checkpoint(0, 1) as folder:
            (folder / "state").write_text("new")
            {moment} = die
        """
    )
    dying.process.wait(30)
    assert dying.process.returncode == -signal.SIGKILL
    with Ledger(run_dir) as ledger:
        step, folder = ledger.last_checkpoint(0)
        assert (step, (folder / "state").read_text()) == ((1, "new") if moment == "checkpoints.sweep" else (0, "old"))
        assert list((run_dir / "checkpoints").iterdir()) == [folder], "what counts for nothing is swept away"


def test_lock_of_a_live_process_and_of_a_dead_one(script, tmp_path: Path) -> None:
    holder = script(
        f"""
        import time
        from derl_gym.trials.ledger import Ledger
        ledger = Ledger({str(tmp_path / "run")!r}, {{}})
        ledger.start_trial("t", program="g1", pid=1)
        ledger.start_trial("u", program="g1", pid=1)
        ledger.finish_trial("u", status="scored", score=0.5)
        print("ready", flush=True)
        time.sleep(60)
        """
    )
    holder.line()
    with pytest.raises(LockedRunDirectory, match=f"is being written by process {holder.process.pid} on "):
        Ledger(tmp_path / "run", {})
    with Ledger(tmp_path / "run", readonly=True) as reader:
        assert reader.trial("t")["status"] == "running"
    holder.process.kill()
    holder.process.wait()
    with Ledger(tmp_path / "run", {}) as ledger:
        assert ledger.trial("t")["status"] == "interrupted"
        assert ledger.trial("u")["status"] == "scored"
        ledger.start_trial("t", program="g1", attempts=1)
        assert ledger.trial("t")["status"] == "running", "it is run again"


class Enough(Exception):
    """The test has seen what it wanted."""


def test_lock_is_not_passed_on_to_the_pools_processes(tmp_path: Path) -> None:
    """They may outlive the driver for an instant; the next one must not find the directory locked."""
    job = Job("a", "targets:sleeps", {"seconds": 60}, tmp_path / "a")
    with LocalPool(workers=1, preload=()) as pool:
        ledger = Ledger(tmp_path / "run", {})

        def open_again(job: Job, pid: int, attempt: int) -> None:
            ledger.close()
            Ledger(tmp_path / "run", {}).close()
            raise Enough

        with pytest.raises(Enough):
            list(pool.run([job], open_again))


def test_killed_while_being_made(tmp_path: Path) -> None:
    """An empty file, and one with tables but without a configuration, are both made good."""
    (tmp_path / "ledger.sqlite").touch()
    with pytest.raises(LedgerError, match="is empty: the making of this ledger was interrupted"):
        Ledger(tmp_path, readonly=True)
    with Ledger(tmp_path, {"a": 1}) as ledger:
        assert ledger.config == {"a": 1}
    with sqlite3.connect(tmp_path / "ledger.sqlite") as db:
        db.execute("DELETE FROM meta WHERE key != 'kind'")
    db.close()
    with pytest.raises(LedgerError, match="has no configuration"):
        Ledger(tmp_path)
    with Ledger(tmp_path, {"a": 2}) as ledger:
        assert ledger.config == {"a": 2}


def make_foreign(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE precious (x)")
    db.close()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (make_foreign, "is a database of another program, not a derl_gym ledger"),
        (lambda path: path.write_text("not a database at all, but long enough to look at " * 20), "is not a database"),
    ],
)
@pytest.mark.parametrize("readonly", [False, True])
def test_foreign_file_is_refused_and_untouched(tmp_path: Path, make, words: str, readonly: bool) -> None:
    path = tmp_path / "ledger.sqlite"
    make(path)
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=words):
        Ledger(tmp_path, None if readonly else {}, readonly=readonly)
    assert path.read_bytes() == before
    assert {entry.name for entry in tmp_path.iterdir()} <= {"ledger.sqlite", "lock"}


def test_newer_schema(tmp_path: Path) -> None:
    Ledger(tmp_path, {}).close()
    with sqlite3.connect(tmp_path / "ledger.sqlite") as db:
        assert db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
        db.execute("PRAGMA user_version = 99")
    db.close()
    for readonly in (False, True):
        with pytest.raises(LedgerError, match="newer derl_gym: its schema is 99"):
            Ledger(tmp_path, readonly=readonly)


def test_damaged_file(tmp_path: Path) -> None:
    with Ledger(tmp_path, {}) as ledger:
        for i in range(50):
            ledger.start_trial(str(i), program="g1")
            ledger.finish_trial(str(i), status="scored", score=0.5, result={"text": "x" * 3000})
    path = tmp_path / "ledger.sqlite"
    data = bytearray(path.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    path.write_bytes(data)
    with pytest.raises(LedgerError, match="is damaged"):
        Ledger(tmp_path)
    with pytest.raises(LedgerError, match="is damaged"), Ledger(tmp_path, readonly=True) as reader:
        reader.trials()


def test_name_of_a_trial_that_differs_from_its_index(tmp_path: Path) -> None:
    """Rows that no look-up would find any more are damage, and the message says what helps."""
    with Ledger(tmp_path, {}) as ledger:
        ledger.start_trial("first-trial", program="g1")
        ledger.finish_trial("first-trial", status="scored", score=0.5)
    path = tmp_path / "ledger.sqlite"
    data = path.read_bytes()
    assert data.count(b"first-trial") == 2, "once in the table, once in its index"
    path.write_bytes(data.replace(b"first-trial", b"worst-trial", 1))
    with pytest.raises(LedgerError, match="is damaged: .* index .*; put back a copy of its folder, or begin anew"):
        Ledger(tmp_path)


def test_no_permission(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file" / "run", Path("/proc/no-such-run")):
        with pytest.raises(LedgerError, match=f"cannot use {folder}"):
            Ledger(folder, {})


def test_read_only_disk(small_disk: Path) -> None:
    with Ledger(small_disk / "run", {"a": 1}) as ledger:
        ledger.start_trial("t", program="g1")
        ledger.finish_trial("t", status="scored", score=0.5)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(LedgerError, match="Read-only file system"):
        Ledger(small_disk / "run", {"a": 1})
    with Ledger(small_disk / "run", readonly=True) as reader:
        assert reader.trial("t")["score"] == 0.5


def test_disk_full(small_disk: Path) -> None:
    run_dir = small_disk / "run"
    filler = small_disk / "filler"
    with Ledger(run_dir, {}) as ledger:
        filler.write_bytes(b"x" * 1_200_000)
        written = 0
        with pytest.raises(LedgerError, match="disk full"):
            for i in range(200):
                ledger.start_trial(str(i), program="g1")
                ledger.finish_trial(str(i), status="scored", score=0.5, result={"text": "x" * 20000})
                written = i + 1
        assert written > 0
        with pytest.raises((LedgerError, OSError), match="full|No space"), ledger.new_checkpoint(0, 0) as folder:
            (folder / "state").write_bytes(b"x" * 2_000_000)
        filler.unlink()
        ledger.start_trial("later", program="g1")
        ledger.finish_trial("later", status="scored", score=0.5)
    with Ledger(run_dir) as ledger:
        assert ledger.last_checkpoint(0) is None
        assert list((run_dir / "checkpoints").iterdir()) == []
        done = [trial["identity"] for trial in ledger.trials() if trial["status"] == "scored"]
        assert done == [*map(str, range(written)), "later"]
        assert integrity(ledger.path) == "ok"


def test_disk_full_in_a_checkpoint(small_disk: Path) -> None:
    class SafetensorError(Exception):
        pass

    with Ledger(small_disk / "run", {"a": 1}) as ledger:
        with pytest.raises(LedgerError, match="disk full"), ledger.new_checkpoint(0, 0) as folder:
            (folder / "weights").write_bytes(b"x" * (4 << 20))
        with pytest.raises(LedgerError, match="disk full"), ledger.new_checkpoint(0, 0):
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        with ledger.new_checkpoint(0, 0) as folder:
            (folder / "weights").write_bytes(b"x")
        assert ledger.last_checkpoint(0) is not None


def test_disk_full_when_it_is_made(small_disk: Path) -> None:
    with (small_disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
        while True:
            filler.write(b"x" * 4096)
    with pytest.raises(LedgerError, match="disk full"):
        Ledger(small_disk / "run", {})


def test_ctrl_c_in_a_transaction_rolls_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(["2030-01-01T00:00:00.000+00:00"])

    def interrupted() -> str:
        for time_now in times:
            return time_now
        raise KeyboardInterrupt

    with Ledger(tmp_path, {}) as ledger:
        ledger.begin_episode(0, 0)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(ledger_module, "now", interrupted)
            ledger.propose(0, 0, np.ones((2, 3), int), ["g1", "g2"])
        assert ledger.proposals() == [], "the first of the two rows is gone as well"
        ledger.propose(0, 0, np.ones((2, 3), int), ["g1", "g2"])
        assert len(ledger.proposals()) == 2


@pytest.mark.parametrize("lost", ["emptied", "deleted"])
def test_lost_ledger_is_not_begun_anew(tmp_path: Path, lost: str) -> None:
    with Ledger(tmp_path, config={"a": 1}) as ledger, ledger.new_checkpoint(0, 0) as folder:
        (folder / "agent.json").write_text("{}")
    for file in tmp_path.glob("ledger.sqlite*"):
        file.unlink()
    if lost == "emptied":
        (tmp_path / "ledger.sqlite").touch()
    with pytest.raises(LedgerError, match="holds checkpoints: the record of them is lost"):
        Ledger(tmp_path, config={"a": 1})
    assert len(list(tmp_path.glob("checkpoints/*/agent.json"))) == 1, "nothing is swept away"
