"""Successive halving: who goes on; whole runs are those of a search without it; a kill changes nothing."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import derl_gym  # noqa: F401
from derl_gym import protocol
from derl_gym.envs.halving import Halving, _ordinal, at_rung, ranking, shares
from derl_gym.envs.inner_runs import InnerRuns, Trial
from derl_gym.inner.result import InnerResult
from derl_gym.report import summary_table, write_report
from derl_gym.report.runs import load_runs
from derl_gym.report.summary import summarise
from derl_gym.trials.ledger import Ledger, RunDirectoryMismatch

SUPPORT = Path(__file__).parents[1] / "support"
INNER = {"steps": 8, "learning_rate": 0.003}
GROUPS = [
    ["g1", "g2", "g1+g2", "g1/(g2-g2)", "g1-g2", "g1"],
    ["g1-g2", "g2-g1", "g1", "3*g1-g2*g2", "g1+", "g2+3*g1"],
]


def search(run_dir: Path, groups: list[list[str]] = GROUPS, steps: int = 3, **given: Any) -> list[dict[str, Any]]:
    """The infos of a search that proposes these groups."""
    told = {"task": "toy_tasks:Tested", "outer_steps": steps, "run_dir": str(run_dir), "inner": INNER} | given
    envs = gym.make_vec("DERL-Arithmetic-v0", num_envs=len(groups[0]), **told)
    try:
        programs = envs.unwrapped.programs  # type: ignore[attr-defined]
        envs.reset(seed=1)
        infos = []
        for group in groups:
            _, scores, *_, info = envs.step(np.stack([programs.encode(text) for text in group]))
            infos.append(info | {"score": scores})
        return infos
    finally:
        envs.close()


def recorded(run_dir: Path) -> tuple[list[tuple], list[tuple]]:
    """Everything but clocks, processes and attempts."""
    with Ledger(run_dir, readonly=True) as ledger:
        places = ("step", "slot", "program", "status", "score", "reason", "identity", "cached")
        runs = ("identity", "program", "seed", "status", "score", "reason", "tokens", "flops")
        proposals = [tuple(row[name] for name in places) for row in ledger.proposals()]
        return proposals, sorted(tuple(row[name] for name in runs) for row in ledger.trials())


# -- who goes on --------------------------------------------------------------------------------------------


def test_rungs_ranks_and_words() -> None:
    assert shares(1) == [0.5] and shares(3) == [0.125, 0.25, 0.5]
    rows = [("scored", 0.2), ("invalid", 0.0), ("scored", 0.5), ("failed", None), ("scored", 0.2), ("scored", 0.0)]
    assert ranking([{"status": status, "score": score} for status, score in rows]) == [2, 0, 4, 5, 1, 3]
    trial = Trial("whole", "g1", "key", 1, 0, "policy")
    rungs = [at_rung(trial, share) for share in shares(3)]
    assert len({"whole", *(rung.identity for rung in rungs)}) == 4
    assert {dataclasses.replace(rung, identity="whole") for rung in rungs} == {trial}
    assert [_ordinal(n) for n in (1, 2, 3, 4, 11, 12, 21)] == ["1st", "2nd", "3rd", "4th", "11th", "12th", "21st"]


class Killed(Exception):
    pass


class Scripted(InnerRuns):
    """Runs that end as a table says, instead of training: the contest alone is looked at. Killed after some of them."""

    cache = table = None  # type: ignore[assignment]

    def __init__(self, script: dict[str, dict[float, Any]], patience: int = 100) -> None:
        self.script, self.patience = script, patience

    def train(
        self, ledger: Ledger, trials: dict[str, Trial], payloads: dict[str, dict[str, Any]]
    ) -> Generator[dict[str, Any], None, None]:
        for identity, trial in trials.items():
            if not self.patience:
                raise Killed
            self.patience -= 1
            share = payloads[identity]["until"]
            score = self.script[trial.program][share]
            result = InnerResult("scored", score, "paused", steps=int(share * 8), of_steps=8)
            if score is None:
                result = InnerResult("invalid", 0.0, "undefined")
            elif score == "failed":
                result = InnerResult("failed", None, "out of memory")
            self.adopt(ledger, trial, result.to_dict())
            row = ledger.trial(identity)
            assert row is not None
            yield row


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_contest_that_is_killed_decides_as_one_that_is_not(data: st.DataObject, tmp_path_factory) -> None:
    names = [f"g{i}" for i in range(data.draw(st.integers(1, 7)))]
    score = st.sampled_from([None, 0.0, 0.25, 0.5])
    table = {name: {share: data.draw(score) for share in shares(2)} for name in names}
    trials = [Trial(name, name, name, 1, 0, "") for name in names]

    def contest(folder: Path, kills: list[int]) -> dict[str, tuple[str, str]]:
        settled: dict[str, str] = {}
        outcomes: dict[str, tuple[str, str]] = {}
        for patience in [*kills, 100]:
            with Ledger(folder, config={}) as ledger:
                halving = Halving(ledger, Scripted(table, patience), 2, lambda trial: {})
                try:
                    for one in halving.run(trials, settled, raises=True):
                        settled[one.identity] = one.trial.identity
                        assert outcomes.setdefault(one.identity, (one.trial.identity, one.row["reason"])) == (
                            one.trial.identity,
                            one.row["reason"],
                        )
                except Killed:
                    continue
        return outcomes

    folder = tmp_path_factory.mktemp("contest")
    whole = contest(folder / "whole", [])
    assert contest(folder / "killed", data.draw(st.lists(st.integers(0, 6), max_size=4))) == whole
    # By hand: half of the entrants, rounded up, go on; an invalid one stays where it is.
    going = list(names)
    for share in shares(2):
        order = sorted(going, key=lambda name: (table[name][share] is None, -(table[name][share] or 0.0)))
        going = [n for n in going if n in order[: (len(going) + 1) // 2] and table[n][share] is not None]
    assert set(names) - set(whole) == set(going)
    assert all(whole[name][0] == name for name in whole if table[name][0.25] is None), "invalid all the way"


def test_a_failure_at_a_rung(tmp_path: Path) -> None:
    """It decides nothing where it is raised; else it is the last of its group."""
    scores = {"g1": 0.1, "g2": "failed", "g3": 0.3, "g4": 0.2}
    table = {name: dict.fromkeys(shares(1), score) for name, score in scores.items()}
    trials = [Trial(name, name, name, 1, 0, "") for name in scores]
    for raises in (True, False):
        with Ledger(tmp_path / str(raises), config={}) as ledger:
            contest = Halving(ledger, Scripted(table), 1, lambda trial: {}).run(trials, {}, raises)
            ended = [(one.identity, one.row["status"], one.row["reason"]) for one in contest]
        stopped = [("g1", "scored", "stopped at step 4 of 8: 3rd of 4 at the rung")]
        assert ended == [("g2", "failed", "out of memory"), *([] if raises else stopped)]


def test_what_was_settled_before_a_retry_stays(tmp_path: Path) -> None:
    """A failed run that succeeds when it is tried again takes nobody's place who has gone on, or was stopped."""
    table = {name: {0.5: score} for name, score in (("g1", 0.1), ("g2", 0.9), ("g3", 0.3), ("g4", 0.2))}
    trials = [Trial(name, name, name, 1, 0, "") for name in table]
    rungs = {trial.identity: at_rung(trial, 0.5).identity for trial in trials}
    with Ledger(tmp_path, config={}) as ledger:
        contest = Halving(ledger, Scripted(table), 1, lambda trial: {})
        settled = {"g1": rungs["g1"], "g4": "g4"}
        ended = [(one.identity, one.row["reason"][:30]) for one in contest.run(trials, settled, raises=False)]
    assert ended == [("g1", "stopped at step 4 of 8: 4th of")]


# -- real inner runs ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Path, list[dict[str, Any]]]]:
    """The same search without halving, and with two rungs and a shared cache."""
    folder = tmp_path_factory.mktemp("halving")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return {
            0: (folder / "0", search(folder / "0")),
            2: (folder / "2", search(folder / "2", halving=2, cache_dir=str(folder / "cache"))),
        }


@pytest.mark.slow
def test_whole_runs_are_those_of_a_search_without_halving(both) -> None:
    (plain_dir, plain), (halved_dir, halved) = both[0], both[2]
    for before, now in zip(plain, halved, strict=True):
        for i, stopped in enumerate(now["stopped"]):
            assert stopped == now["reason"][i].startswith("stopped at step")
            assert stopped != (now["trial"][i] == before["trial"][i])
            if not stopped:
                assert now["score"][i] == before["score"][i] and now["reason"][i] == before["reason"][i]
    with Ledger(plain_dir, readonly=True) as there, Ledger(halved_dir, readonly=True) as here:
        assert "halving" not in there.config and here.config["halving"] == 2
        answers = {row["identity"] for row in here.proposals()}
        whole = {row["identity"]: row for row in here.trials() if row["identity"] in answers}
        whole = {name: row for name, row in whole.items() if not row["result"]["of_steps"]}
        assert len(whole) == 4
        for identity, row in whole.items():
            same = there.trial(identity)
            assert same is not None
            for name in ("curve", "tokens", "flops", "primitive_means"):
                assert row["result"][name] == same["result"][name], name
            paid = [r for r in here.trials() if r["program"] == row["program"]]
            assert sum(r["tokens"] for r in paid) == same["tokens"], "each part is paid once"
        stopped = [row for row in here.proposals() if row["reason"].startswith("stopped")]
        assert len(stopped) >= 3 and {row["status"] for row in stopped} == {"scored"}
        assert any(row["reason"].startswith("stopped at step 2 of 8: 5th of 5 at the rung") for row in stopped)
        assert [row["cached"] for row in here.proposals()] == [row["cached"] for row in there.proposals()]
    assert not list(halved_dir.glob("trials/*/trainer")), "nothing goes on from them any more"


@pytest.mark.slow
def test_a_search_without_halving_takes_no_rungs_score(both, tmp_path: Path) -> None:
    """It shares the cache of the one with: whole runs are found there, stopped programs are trained."""
    halved_dir, infos = both[2]
    search(tmp_path, GROUPS[:1], cache_dir=str(halved_dir.parent / "cache"))
    assert recorded(tmp_path)[0][:6] != recorded(halved_dir)[0][:6]
    with Ledger(tmp_path, readonly=True) as ledger:
        trained = {row["program"] for row in ledger.trials() if row["seconds"]}
    assert trained == {text for text, stopped in zip(GROUPS[0], infos[0]["stopped"], strict=True) if stopped}
    with pytest.raises(RunDirectoryMismatch, match="halving"):
        search(tmp_path, GROUPS[:1], halving=1)


@pytest.mark.slow
def test_what_was_stopped_and_saved_is_in_the_report(both, tmp_path: Path) -> None:
    halved_dir, _ = both[2]
    summary = summarise("halved", load_runs([halved_dir]))
    halved = summary.halved
    assert halved is not None and set(halved.stopped) == {(2, 8), (4, 8)} and 0 < halved.saved < halved.full
    with Ledger(halved_dir, readonly=True) as ledger:
        rows = ledger.proposals()
        best = max(row["score"] for row in rows if row["status"] == "scored" and "stopped" not in row["reason"])
    assert sum(halved.stopped.values()) == sum("stopped" in row["reason"] for row in rows)
    assert summary.best == best
    assert summary.training.flops == pytest.approx(halved.full - halved.saved)
    assert summarise("plain", load_runs([both[0][0]])).halved is None
    columns = summary_table([halved_dir]).columns
    said = dict(zip(columns[0].cells, columns[1].cells, strict=True))
    assert "at step 2 of 8" in str(said["stopped early"]) and "% of the training FLOPs" in str(said["saved by that"])
    page = write_report([halved_dir], tmp_path / "report.html").read_text()
    assert f"successive halving stopped inner runs early, {halved}. It saved {halved.saving}." in page


KILLED = """
import sys
sys.path[:0] = sys.argv[2:]
import test_halving
from pathlib import Path
if __name__ == "__main__":
    test_halving.search(Path(sys.argv[1]), halving=2)
"""


@pytest.mark.slow
def test_a_search_that_is_killed_at_its_rungs_ends_as_one_that_is_not(both, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "killed"), str(Path(__file__).parent), str(SUPPORT)]
    for runs in (3, 7, 9):  # in the first rung, in the second, in the whole runs
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while process.poll() is None and len(list((tmp_path / "killed").glob("trials/*/result.json"))) < runs:
            time.sleep(0.01)
        process.kill()
        assert process.wait() == -9, "it was killed in the middle"
    search(tmp_path / "killed", halving=2)
    assert recorded(tmp_path / "killed") == recorded(both[2][0])
    before = recorded(tmp_path / "killed")
    search(tmp_path / "killed", halving=2)
    assert recorded(tmp_path / "killed") == before, "and gives its results back"


@pytest.mark.slow
def test_derl_full_goes_on_from_a_policy_that_was_trained_to_the_end(tmp_path: Path) -> None:
    groups = [["g2", "g1", "g1+g2", "g1-g2"], ["g2+1*g1", "g1", "g2", "g1-2*g2"]]
    infos = search(tmp_path, groups, variant="full", halving=1)
    with Ledger(tmp_path, readonly=True) as ledger:
        selected = protocol.select(ledger)
        policies = {row["policy"] for row in ledger.trials() if row["policy"].startswith("trial:")}
    for info, group, program in zip(infos, groups, selected, strict=True):
        whole = [i for i in range(4) if not info["stopped"][i]]
        assert len(whole) == 2 and program == group[max(whole, key=lambda i: info["score"][i])]
    best = groups[0].index(selected[0])
    assert policies == {f"trial:{infos[0]['trial'][best]}"}


@pytest.mark.slow
def test_a_training_that_a_cap_ends_before_the_rung_is_whole(tmp_path: Path) -> None:
    capped = INNER | {"max_tokens": 1}
    (plain,) = search(tmp_path / "0", [["g1", "g2"]], inner=capped)
    (info,) = search(tmp_path / "1", [["g1", "g2"]], halving=1, inner=capped)
    assert info["trial"].tolist() == plain["trial"].tolist() and not info["stopped"].any()
    assert info["score"].tolist() == plain["score"].tolist() and "by the cap of 1 tokens" in info["reason"][0]


@pytest.mark.slow
def test_the_reference_run_that_caps_the_others_is_not_halved(tmp_path: Path) -> None:
    """Its program is answered by it; the others' whole trainings have the cap that they have without halving."""
    groups, ratio = [["g1", "g2", "g1-g2", "g1+g2"]], INNER | {"max_flops_ratio": 1.5}
    (plain,) = search(tmp_path / "0", groups, inner=ratio)
    (info,) = search(tmp_path / "1", groups, halving=1, inner=ratio)
    assert info["stopped"].sum() == 1 and not info["stopped"][0], "two of three go on, besides g1"
    for i in np.flatnonzero(~info["stopped"]):
        assert (info["trial"][i], info["score"][i]) == (plain["trial"][i], plain["score"][i])


def test_a_group_that_comes_in_parts_is_refused(tmp_path: Path) -> None:
    env = gym.make("DERL-Arithmetic-v0", task="toy_tasks:Digits", halving=1, group_size=4, run_dir=str(tmp_path / "a"))
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"compares the 4 programs of an outer step, but 1 came: .*num_envs=4"):
        env.step(env.unwrapped.programs.encode("g1"))  # type: ignore[attr-defined]
    env.close()
    assert not (tmp_path / "a").exists()
