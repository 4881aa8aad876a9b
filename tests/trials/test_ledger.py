"""The ledger: what is recorded, what is refused, and what a search may read."""

from __future__ import annotations

import json
import socket
import sqlite3
import stat
from pathlib import Path

import numpy as np
import pytest

import derl_gym
from derl_gym.trials import ledger as ledger_module
from derl_gym.trials.cache import SharedCache
from derl_gym.trials.ledger import Ledger, LedgerError, ReplayMismatch, RunDirectoryMismatch

CONFIG = {"id": "DERL-Arithmetic-v0", "inner": {"steps": 32, "trl": {}}, "outer_steps": 3}
ACTIONS = np.array([[1, 5, 2, 0], [2, 0, 0, 0]])
PROGRAMS = ["g1+g2", "g2"]


@pytest.fixture
def ledger(tmp_path: Path):
    with Ledger(tmp_path / "run", CONFIG) as ledger:
        ledger.begin_episode(0, 7)
        yield ledger


def test_made_private_and_opened_again(tmp_path: Path) -> None:
    with Ledger(tmp_path / "a" / "run", CONFIG) as ledger:
        assert ledger.config == CONFIG
    folder = tmp_path / "a" / "run"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "ledger.sqlite").stat().st_mode) == 0o600
    with Ledger(folder, CONFIG) as ledger:
        assert ledger.config == CONFIG
    with Ledger(folder) as ledger:
        assert ledger.config == CONFIG, "whoever resumes need not repeat the settings"


def test_config_is_compared_as_json(tmp_path: Path) -> None:
    Ledger(tmp_path, {"names": ("g1", "g2")}).close()
    Ledger(tmp_path, {"names": ["g1", "g2"]}).close()


def test_other_config_names_the_keys(tmp_path: Path) -> None:
    Ledger(tmp_path, CONFIG).close()
    other = {"id": CONFIG["id"], "inner": {"steps": 64, "trl": {}}, "outer_steps": 3, "cache": "off"}
    with pytest.raises(RunDirectoryMismatch) as caught:
        Ledger(tmp_path, other)
    assert str(caught.value).splitlines()[1:] == [
        "  cache: '(absent)' there, 'off' now",
        "  inner.steps: 32 there, 64 now",
    ]
    Ledger(tmp_path, CONFIG).close()  # the lock is free again


def test_no_ledger_there(tmp_path: Path) -> None:
    for readonly in (False, True):
        with pytest.raises(LedgerError, match="there is no ledger in"):
            Ledger(tmp_path / "run", readonly=readonly)
    assert not (tmp_path / "run").exists()


def test_proposals_are_recorded_before_they_are_settled(ledger: Ledger) -> None:
    rows = ledger.propose(0, 0, ACTIONS, PROGRAMS)
    assert [(row["slot"], row["program"], row["status"], row["score"]) for row in rows] == [
        (0, "g1+g2", "proposed", None),
        (1, "g2", "proposed", None),
    ]
    assert rows[0]["actions"] == [1, 5, 2, 0]
    ledger.settle(0, 0, 1, identity=None, status="invalid", score=0, reason="constant")
    ledger.settle(0, 0, 0, identity="t", status="scored", score=0.25, cached=True, seconds=1.5)
    first, second = ledger.proposals()
    assert (first["identity"], first["status"], first["score"]) == ("t", "scored", 0.25)
    assert (first["cached"], first["seconds"]) == (True, 1.5)
    assert (second["status"], second["score"], second["reason"]) == ("invalid", 0.0, "constant")


def test_replay_gives_the_recorded_rows(ledger: Ledger) -> None:
    ledger.propose(0, 0, ACTIONS, PROGRAMS)
    ledger.settle(0, 0, 0, identity="t", status="scored", score=0.25)
    rows = ledger.propose(0, 0, ACTIONS, PROGRAMS)
    assert [row["score"] for row in rows] == [0.25, None]
    assert len(ledger.proposals()) == 2


def test_replay_of_another_program_is_refused_whole(ledger: Ledger) -> None:
    ledger.propose(0, 0, ACTIONS[:1], PROGRAMS[:1])
    other = ACTIONS[::-1].copy()
    with pytest.raises(ReplayMismatch, match=r"step 0, slot 0 .* the program 'g1\+g2', not 'g2'"):
        ledger.propose(0, 0, other, PROGRAMS[::-1])
    assert len(ledger.proposals()) == 1, "slot 1 of the refused group is not there either"


def test_group_in_parts(ledger: Ledger) -> None:
    for slot in range(2):
        rows = ledger.propose(0, 0, ACTIONS[slot : slot + 1], PROGRAMS[slot : slot + 1], first_slot=slot)
        assert [row["slot"] for row in rows] == [slot]
    ledger.propose(0, 1, ACTIONS[:1], PROGRAMS[:1])
    groups = ledger.recorded_actions(0)
    assert [group.dtype for group in groups] == [np.int64, np.int64]
    np.testing.assert_array_equal(groups[0], ACTIONS)
    np.testing.assert_array_equal(groups[1], ACTIONS[:1])
    assert ledger.recorded_actions(1) == []


@pytest.mark.parametrize("actions", [ACTIONS[0], ACTIONS.astype(float), ACTIONS[:1]])
def test_wrong_actions(ledger: Ledger, actions: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"integers of shape \(2, L\)"):
        ledger.propose(0, 0, actions, PROGRAMS)


def test_proposal_needs_its_episode(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="FOREIGN KEY"):
        ledger.propose(5, 0, ACTIONS, PROGRAMS)


def test_episodes(ledger: Ledger) -> None:
    assert ledger.begin_episode(0, 7) == 7
    assert ledger.begin_episode(0, None) == 7
    with pytest.raises(ReplayMismatch, match="episode 0 is recorded with seed 7, not 8"):
        ledger.begin_episode(0, 8)
    assert ledger.begin_episode(1, 2**127 + 1) == 2**127 + 1, "Gymnasium's own seeds have 128 bits"
    assert ledger.begin_episode(2, None) is None
    assert [(row["episode"], row["seed"]) for row in ledger.episodes()] == [(0, 7), (1, 2**127 + 1), (2, None)]
    ledger.propose(1, 0, ACTIONS, PROGRAMS)
    assert (len(ledger.proposals()), len(ledger.proposals(0)), len(ledger.proposals(1))) == (2, 0, 2)


def test_only_a_failure_may_be_settled_anew(ledger: Ledger) -> None:
    ledger.propose(0, 0, ACTIONS, PROGRAMS)
    ledger.settle(0, 0, 0, identity="t", status="failed", score=None, reason="killed")
    ledger.settle(0, 0, 0, identity="t", status="scored", score=0.5)
    ledger.settle(0, 0, 0, identity="t", status="scored", score=0.5)
    with pytest.raises(LedgerError, match=r"has ended as \('scored', 0.5\)"):
        ledger.settle(0, 0, 0, identity="t", status="scored", score=0.6)
    with pytest.raises(LedgerError, match="nothing is proposed at"):
        ledger.settle(0, 3, 0, identity="t", status="scored", score=0.6)
    assert ledger.proposals()[0]["score"] == 0.5


def test_trial_from_start_to_end(ledger: Ledger) -> None:
    assert ledger.trial("t") is None
    ledger.start_trial("t", program="g1", key="k", seed=np.int64(3), replicate=1, policy="base", pid=42)
    assert ledger.trial("t")["status"] == "running"
    result = {"curve": [{"reward": 0.5}], "steps": 32}
    ledger.finish_trial(
        "t", status="scored", score=np.float64(0.75), result=result, seconds=2.0, tokens=np.int64(99), flops=1e15
    )
    trial = ledger.trial("t")
    assert {key: trial[key] for key in ("program", "key", "seed", "replicate", "policy", "pid")} == {
        "program": "g1",
        "key": "k",
        "seed": 3,
        "replicate": 1,
        "policy": "base",
        "pid": 42,
    }
    assert (trial["status"], trial["score"], trial["result"]) == ("scored", 0.75, result)
    assert (trial["attempts"], trial["seconds"], trial["tokens"], trial["flops"]) == (1, 2.0, 99, 1e15)
    assert trial["started_at"].endswith("+00:00")
    assert ledger.trials() == [trial]


def test_a_trial_knows_what_it_ran_with(ledger: Ledger) -> None:
    ledger.start_trial("here", program="g1", pid=42, config="c")
    here = ledger.trial("here")
    assert (here["host"], here["config"], here["device"]) == (socket.gethostname(), "c", None)
    assert here["code"].startswith(f"{derl_gym.__version__}+") and here["versions"]["python"]
    ledger.finish_trial("here", status="failed", score=None, reason="killed", result={"host": "", "versions": {}})
    assert ledger.trial("here")["host"] == socket.gethostname(), "a process that was killed says nothing of itself"
    said = {"host": "node", "device": "NVIDIA H200", "config": "d", "code": "9.9+0", "versions": {"torch": "9.9"}}
    for name, known in (("there", {"pid": 7, "host": "node"}), ("cached", {})):
        ledger.start_trial(name, program="g1", **known)
        before = ledger.trial(name)
        assert (before["code"], before["versions"]) == (None, None), "another machine's are not known yet"
        assert before["host"] == known.get("host")
        ledger.finish_trial(name, status="scored", score=0.5, result=said | {"steps": 3})
        row = ledger.trial(name)
        assert {key: row[key] for key in said} == said and row["result"] == {"steps": 3}, "each said in one place"


def test_keys_are_not_written(ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", key := "hf_abcdefgh")
    ledger.propose(0, 0, ACTIONS, PROGRAMS)
    ledger.start_trial("t", program="g1", pid=1)
    ledger.finish_trial("t", status="failed", score=None, reason=f"sent {key}", result={"seen": [{"key": key}]})
    ledger.settle(0, 0, 0, identity="t", status="failed", score=None, reason=f"sent {key}")
    SharedCache(tmp_path / "cache.sqlite").put("t", {"status": "scored", "reason": key})
    assert ledger.trial("t")["reason"] == ledger.proposals()[0]["reason"] == "sent ***"
    assert ledger.trial("t")["result"] == {"seen": [{"key": "***"}]}
    for config in ({"inner": {"policy": key}}, {"task_options": {"api_key": "x"}}):
        with pytest.raises(ValueError, match="holds a secret"):
            Ledger(tmp_path / "other", config)
    assert not (tmp_path / "other").exists()
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]


def test_trials_without_their_curves(ledger: Ledger) -> None:
    ledger.start_trial("t", program="g1", pid=1)
    ledger.finish_trial("t", status="scored", score=0.5, result={"curve": [{"reward": 0.5}], "scores": {"a": 0.1}})
    ledger.start_trial("u", program="g2")
    whole, bare = ledger.trials(), ledger.trials(curves=False)
    assert bare[0].pop("result") == {"scores": {"a": 0.1}} and bare[1].pop("result") is None
    assert whole[0].pop("result") == {"curve": [{"reward": 0.5}], "scores": {"a": 0.1}}
    assert [list(row) for row in bare] == [[name for name in row if name != "result"] for row in whole]
    assert bare[0] == whole[0]


def test_ended_trial_is_not_run_again_and_a_failed_one_is(ledger: Ledger) -> None:
    ledger.start_trial("t", program="g1")
    ledger.finish_trial("t", status="failed", score=None, reason="killed by signal 9", attempts=2)
    assert ledger.trial("t")["attempts"] == 2
    ledger.start_trial("t", program="g1")
    assert (ledger.trial("t")["status"], ledger.trial("t")["reason"]) == ("running", "")
    ledger.finish_trial("t", status="invalid", score=0.0, reason="division by zero")
    for again in (
        lambda: ledger.start_trial("t", program="g1"),
        lambda: ledger.finish_trial("t", status="scored", score=1.0),
    ):
        with pytest.raises(LedgerError, match="trial t has ended already: invalid 0.0"):
            again()
    with pytest.raises(LedgerError, match="trial u was never started"):
        ledger.finish_trial("u", status="scored", score=1.0)


@pytest.mark.parametrize(
    ("status", "score"),
    [
        ("scored", None),
        ("scored", 1.5),
        ("scored", -0.1),
        ("scored", float("nan")),
        ("invalid", 0.5),
        ("invalid", None),
        ("failed", 0.0),
        ("running", None),
    ],
)
def test_status_and_score_must_fit(ledger: Ledger, status: str, score: float | None) -> None:
    ledger.propose(0, 0, ACTIONS, PROGRAMS)
    ledger.start_trial("t", program="g1")
    with pytest.raises(ValueError, match="must be"):
        ledger.settle(0, 0, 0, identity="t", status=status, score=score)
    with pytest.raises(ValueError, match="must be"):
        ledger.finish_trial("t", status=status, score=score)
    assert ledger.trial("t")["status"] == "running"
    assert ledger.proposals()[0]["status"] == "proposed"


def test_test_scores_are_in_finals_alone(ledger: Ledger) -> None:
    ledger.propose(0, 0, ACTIONS, PROGRAMS)
    ledger.start_trial("t", program="g1")
    ledger.finish_trial("t", status="scored", score=0.5, result={"steps": 1})
    assert ledger.record_final(["g1", "g1+g2"], 3, test=0.123456, validation=0.5, policy="p") is False
    assert ledger.record_final(["g1", "g1+g2"], 4, test=0.2) is False
    assert ledger.record_final(["g1", "g1+g2"], 3, test=0.3, result={"n": 5}) is True
    finals = ledger.finals()
    assert [(f["seed"], f["test"], f["again"]) for f in finals] == [
        (3, 0.123456, False),
        (4, 0.2, False),
        (3, 0.3, True),
    ]
    assert (finals[0]["programs"], finals[0]["validation"], finals[2]["result"]) == (["g1", "g1+g2"], 0.5, {"n": 5})
    elsewhere = json.dumps([ledger.proposals(), ledger.trials(), ledger.episodes(), ledger.config])
    assert "0.123456" not in elsewhere
    with pytest.raises(ValueError, match="must be in"):
        ledger.record_final(["g1"], 3, test=float("nan"))


def test_checkpoints(ledger: Ledger) -> None:
    assert ledger.last_checkpoint(0) is None
    for step in range(3):
        with ledger.new_checkpoint(0, step) as folder:
            (folder / "deep").mkdir()
            (folder / "deep" / "state").write_text(f"step {step}")
    with ledger.new_checkpoint(1, 0) as folder:
        (folder / "state").write_text("other episode")
    step, folder = ledger.last_checkpoint(0)
    assert (step, (folder / "deep" / "state").read_text()) == (2, "step 2")
    assert ledger.last_checkpoint(1)[0] == 0
    assert len(list((ledger.run_dir / "checkpoints").iterdir())) == 2, "older ones are gone"


def test_checkpoint_of_the_same_step_takes_the_place_of_the_first(ledger: Ledger) -> None:
    for text in "abc":
        with ledger.new_checkpoint(0, 0) as folder:
            (folder / "state").write_text(text)
        assert (ledger.last_checkpoint(0)[1] / "state").read_text() == text
    assert len(list((ledger.run_dir / "checkpoints").iterdir())) == 1


def test_checkpoints_can_all_be_kept(ledger: Ledger) -> None:
    for step in range(3):
        with ledger.new_checkpoint(0, step, keep=None):
            pass
    assert len(list((ledger.run_dir / "checkpoints").iterdir())) == 3


def test_failed_checkpoint_leaves_the_last_one(ledger: Ledger) -> None:
    with ledger.new_checkpoint(0, 0):
        pass
    with pytest.raises(KeyboardInterrupt), ledger.new_checkpoint(0, 1) as folder:
        (folder / "half").touch()
        raise KeyboardInterrupt
    assert ledger.last_checkpoint(0)[0] == 0
    assert len(list((ledger.run_dir / "checkpoints").iterdir())) == 1


def test_checkpoint_whose_folder_is_gone_is_an_error(ledger: Ledger) -> None:
    with ledger.new_checkpoint(0, 4):
        pass
    ledger.last_checkpoint(0)[1].rmdir()
    with pytest.raises(LedgerError, match="episode 0, step 4 is recorded, but .* is gone"):
        ledger.last_checkpoint(0)


def test_reading_while_another_writes(ledger: Ledger) -> None:
    ledger.start_trial("t", program="g1")
    with Ledger(ledger.run_dir, readonly=True) as reader:
        assert reader.trial("t")["status"] == "running", "a reader interrupts nothing"
        ledger.finish_trial("t", status="scored", score=0.5)
        assert reader.trial("t")["score"] == 0.5
        for write in (
            lambda: reader.start_trial("u", program="g1"),
            lambda: reader.begin_episode(3, 0),
            lambda: reader.new_checkpoint(0, 0).__enter__(),
        ):
            with pytest.raises(LedgerError, match="open for reading only"):
                write()
    assert ledger.trial("t")["score"] == 0.5


def test_what_stands_beside_other_trials_is_found_by_an_index(ledger: Ledger) -> None:
    """Opening a ledger, and a step of the search, must not read all that came before."""
    with sqlite3.connect(ledger.path) as db:
        for query in (
            "UPDATE trials SET status = 'interrupted' WHERE status = 'running'",
            "SELECT * FROM trials WHERE identity = 't'",
            "SELECT seconds FROM proposer WHERE episode = 0 AND step = 0",
        ):
            plan = " ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {query}"))
            assert "SEARCH" in plan and "SCAN" not in plan, query


def test_clock_set_back_changes_nothing(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(f"20{year}-01-01T00:00:00.000+00:00" for year in range(60, 10, -1))
    monkeypatch.setattr(ledger_module, "now", lambda: next(clock))
    for name in "cab":
        ledger.start_trial(name, program="g1")
        ledger.finish_trial(name, status="scored", score=0.5)
    for step in range(3):
        ledger.propose(0, step, ACTIONS, PROGRAMS)
        with ledger.new_checkpoint(0, step):
            pass
    assert [trial["identity"] for trial in ledger.trials()] == ["c", "a", "b"]
    assert [row["step"] for row in ledger.proposals()] == [0, 0, 1, 1, 2, 2]
    assert ledger.last_checkpoint(0)[0] == 2


def test_places_are_indexed(ledger: Ledger) -> None:
    with sqlite3.connect(ledger.path) as db:
        query = "EXPLAIN QUERY PLAN SELECT * FROM proposals WHERE episode = 0 AND step = 0 AND slot = 0"
        plan = " ".join(row[3] for row in db.execute(query))
    assert "SEARCH" in plan and "INDEX" in plan


def test_a_time_limit_may_change_and_a_base_policy_may_not(tmp_path: Path) -> None:
    first = {"inner": {"steps": 2, "timeout": 5.0}, "inner_config": {"timeout": 5.0}, "final_inner": {"timeout": 9.0}}
    later = {"inner": {"steps": 2}, "inner_config": {"timeout": None}, "final_inner": {}}
    Ledger(tmp_path / "old", first).close()
    with Ledger(tmp_path / "old", later | {"base_policy": "a"}) as ledger:
        assert ledger.config == first, "what it was made with stays recorded; it never said what the base policy was"
    with pytest.raises(RunDirectoryMismatch, match=r"inner.steps: 2 there, 3 now") as refused:
        Ledger(tmp_path / "old", later | {"inner": {"steps": 3, "timeout": 7.0}})
    assert "timeout" not in str(refused.value)
    Ledger(tmp_path / "new", first | {"base_policy": "a"}).close()
    Ledger(tmp_path / "new", later | {"base_policy": "a"}).close()
    for other, said in (
        ({"base_policy": "b"}, "base_policy: 'a' there, 'b' now"),
        ({}, r"'a' there, '\(absent\)' now"),
    ):
        with pytest.raises(RunDirectoryMismatch, match=said):
            Ledger(tmp_path / "new", later | other)


def test_a_settled_proposal_keeps_its_trial(tmp_path: Path) -> None:
    with Ledger(tmp_path, {}) as ledger:
        ledger.begin_episode(0, 1)
        ledger.propose(0, 0, np.array([[1], [2]]), ["g1", "g2"])
        for identity, policy in (("t", "one"), ("u", "two"), ("v", "one")):
            ledger.start_trial(identity, program="g1", key="k", seed=1, policy=policy)
        ledger.settle(0, 0, 0, identity="t", status="scored", score=0.5)
        for identity, cause in (
            ("u", "the policy that training starts from: one there, two now. Put"),
            ("v", "the data, the task or the settings"),
            (None, "the data, the task or the settings"),
        ):
            with pytest.raises(ReplayMismatch, match=cause):
                ledger.settle(0, 0, 0, identity=identity, status="scored", score=0.5)
        assert ledger.proposals()[0]["identity"] == "t"
        ledger.settle(0, 0, 1, identity="t", status="failed", score=None)
        ledger.settle(0, 0, 1, identity="u", status="scored", score=0.5)
        assert ledger.proposals()[1]["identity"] == "u", "a failed one may be answered by another"
