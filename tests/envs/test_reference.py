"""inner.max_flops_ratio: the reference run, the caps that come of it, and that it is trained once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import derl_gym  # noqa: F401
from derl_gym import protocol
from derl_gym.envs.identity import trial_seed
from derl_gym.envs.outer_loop import InfrastructureFailure
from derl_gym.trials.ledger import Ledger

TESTED = "toy_tasks:Tested"
RATIO = {"max_flops_ratio": 1.5, "steps": 4}


def make_vec(run_dir: Path, num_envs: int = 3, **settings):
    given = {"task": TESTED, "outer_steps": 2, "run_dir": str(run_dir), "inner": RATIO} | settings
    return gym.make_vec("DERL-Arithmetic-v0", num_envs=num_envs, **given)


def encode(envs, *texts: str) -> np.ndarray:
    return np.stack([envs.unwrapped.programs.encode(text) for text in texts])


def step(run_dir: Path, *texts: str, **settings) -> dict:
    with contextlib.closing(make_vec(run_dir, len(texts), **settings)) as envs:
        envs.reset(seed=1)
        *_, infos = envs.step(encode(envs, *texts))
    return infos


def ledger_of(run_dir: Path) -> tuple[list[dict], str]:
    """The trials in their order, and the first episode's reference."""
    with Ledger(run_dir, readonly=True) as ledger:
        return ledger.trials(), ledger.episodes()[0]["reference"]


def training(trial: dict) -> float:
    return trial["result"]["flops"] - trial["result"]["eval_flops"]


def test_the_cap_is_the_ratio_times_the_training_of_the_outcome(tmp_path: Path) -> None:
    infos = step(tmp_path / "one", "g2", "g1+g2", inner=RATIO | {"max_flops_ratio": 0.4})
    (reference, *others), identity = ledger_of(tmp_path / "one")
    assert (reference["program"], reference["identity"], reference["seed"]) == ("g1", identity, trial_seed(1, 0))
    assert reference["result"]["steps"] == 4 and reference["reason"] == "", "it runs without a cap"
    assert infos["trial"].tolist() == [trial["identity"] for trial in others]
    cap = 0.4 * training(reference)
    for trial in others:
        # Training stops after the first step at which the cap is reached, and the policy is evaluated as it is.
        assert trial["result"]["steps"] == 2 and trial["status"] == "scored"
        assert trial["reason"] == f"stopped after 2 steps by the cap of {cap:g} FLOPs"
        assert training(trial) >= cap
    # The same with the cap given outright are the same trials.
    infos = step(tmp_path / "two", "g2", "g1+g2", inner={"steps": 4, "max_flops": cap})
    assert infos["trial"].tolist() == [trial["identity"] for trial in others]


def test_the_smaller_of_two_caps_holds(tmp_path: Path) -> None:
    step(tmp_path, "g2", inner=RATIO | {"max_flops": 1.0})
    (reference, other), _ = ledger_of(tmp_path)
    assert (reference["result"]["steps"], other["result"]["steps"]) == (4, 1)


@pytest.mark.parametrize(("cache", "trained"), [("equivalent", ["g1", "g2"]), ("exact", ["g1", "2*g1+1", "g2"])])
def test_a_program_of_its_class_is_the_reference_run(tmp_path: Path, cache: str, trained: list[str]) -> None:
    infos = step(tmp_path, "2*g1+1", "g2", "g1", cache=cache)
    trials, reference = ledger_of(tmp_path)
    assert [trial["program"] for trial in trials] == trained
    assert infos["trial"][2] == reference
    assert (infos["trial"][0] == reference) == (cache == "equivalent")
    with Ledger(tmp_path, readonly=True) as ledger:
        assert ledger.proposals()[2]["cached"], "no inner run was made for the proposal"


def test_repetitions_with_other_seeds_are_capped_runs(tmp_path: Path) -> None:
    infos = step(tmp_path, "g1", "g1", cache="off")
    trials, reference = ledger_of(tmp_path)
    assert len(trials) == 2 and infos["trial"][0] == reference != infos["trial"][1]


def test_the_cap_is_part_of_the_identity(tmp_path: Path) -> None:
    first = step(tmp_path / "a", "g2", inner=RATIO)
    other = step(tmp_path / "b", "g2", inner=RATIO | {"max_flops_ratio": 3.0})
    without = step(tmp_path / "c", "g2", inner={"steps": 4})
    assert len({first["trial"][0], other["trial"][0], without["trial"][0]}) == 3
    # The reference run itself knows no cap: it is one trial for all of them.
    assert (
        ledger_of(tmp_path / "a")[1]
        == ledger_of(tmp_path / "b")[1]
        == step(tmp_path / "d", "g1", inner={"steps": 4})["trial"][0]
    )


def test_runs_share_the_reference_through_the_cache(tmp_path: Path) -> None:
    for name in "ab":
        step(tmp_path / name, "g2", cache_dir=str(tmp_path / "shared"))
    (here, *_), _ = ledger_of(tmp_path / "a")
    (there, *_), reference = ledger_of(tmp_path / "b")
    assert here["pid"] and there["pid"] is None and there["identity"] == reference
    assert here["result"] == there["result"]


def test_every_episode_has_a_reference_of_its_own_seed(tmp_path: Path) -> None:
    with contextlib.closing(make_vec(tmp_path, 1, outer_steps=1)) as envs:
        envs.reset(seed=1)
        envs.step(encode(envs, "g2"))
        envs.step(encode(envs, "g2"))
    with Ledger(tmp_path, readonly=True) as ledger:
        references = [ledger.trial(row["reference"]) for row in ledger.episodes()]
    assert references[0]["seed"] != references[1]["seed"]
    assert [trial["program"] for trial in references] == ["g1", "g1"]


def test_a_search_that_may_not_use_the_outcome_is_capped_by_it_all_the_same(tmp_path: Path) -> None:
    step(tmp_path / "a", "g2", primitives=["g2"])
    assert ledger_of(tmp_path / "a")[0][0]["program"] == "g1"
    step(tmp_path / "b", "g2", flip=["g1"])
    assert ledger_of(tmp_path / "b")[0][0]["program"] == "-g1", "the outcome itself, whose sign is turned round"


def test_one_program_at_a_time(tmp_path: Path) -> None:
    settings = {"task": TESTED, "group_size": 2, "outer_steps": 1, "inner": RATIO, "run_dir": str(tmp_path)}
    env = gym.make("DERL-Arithmetic-v0", **settings)
    news: list[str] = []
    env.unwrapped.loop.on_news = news.append
    env.reset(seed=1)
    for text in ("g2", "g1"):
        env.step(env.unwrapped.programs.encode(text))
    env.close()
    assert [trial["program"] for trial in ledger_of(tmp_path)[0]] == ["g1", "g2"]
    assert news == ["reference run with g1: 1.5 x its FLOPs cap the other inner runs"]


@pytest.mark.slow
def test_derl_full_measures_once_from_the_base_policy(tmp_path: Path) -> None:
    with contextlib.closing(make_vec(tmp_path, 2, variant="full", outer_steps=2)) as envs:
        envs.reset(seed=1)
        _, scores, *_, infos = envs.step(encode(envs, "g2", "g2-g1"))
        best = infos["trial"][scores.argmax()]
        kept = [path.parent.name for path in tmp_path.glob("trials/*/policy")]
        assert kept == [best], "neither the loser's policy nor the reference run's is kept"
        envs.step(encode(envs, "g1", "g2"))
    trials, reference = ledger_of(tmp_path)
    assert [trial["program"] for trial in trials].count("g1") == 2
    assert trials[0]["identity"] == reference != trials[3]["identity"], "from another policy it is another run"
    assert trials[0]["policy"] == trials[1]["policy"] != trials[3]["policy"] == f"trial:{best}"


@pytest.mark.slow
def test_derl_full_goes_on_from_the_reference_run_where_it_is_the_best(tmp_path: Path) -> None:
    def search() -> list[float]:
        with contextlib.closing(make_vec(tmp_path, 1, variant="full", outer_steps=3)) as envs:
            envs.reset(seed=1)
            return [float(envs.step(encode(envs, text))[1][0]) for text in ("g1", "g2", "g1+g2")]

    first = search()
    trials, reference = ledger_of(tmp_path)
    assert len(trials) == 3 and trials[1]["policy"] == f"trial:{reference}"
    assert search() == first and len(ledger_of(tmp_path)[0]) == 3, "and a replay finds its policy"


def test_a_failed_reference_run_is_a_failure_and_is_tried_again(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    dying = {"task": "toy_tasks:Dying", "inner": RATIO, "on_infrastructure_failure": "zero"}
    with contextlib.closing(make_vec(tmp_path / "run", 1, task_options={"once": str(mark)}, **dying)) as envs:
        envs.reset(seed=1)
        *_, infos = envs.step(encode(envs, "g2"))
    assert infos["status"].tolist() == ["scored"] and ledger_of(tmp_path / "run")[0][0]["attempts"] == 2

    with contextlib.closing(make_vec(tmp_path / "always", 1, **dying)) as envs:
        envs.reset(seed=1)
        for _ in range(2):
            with pytest.raises(InfrastructureFailure, match="the reference run with g1, .* failed for good: killed by"):
                envs.step(encode(envs, "g2"))
    (trial,), reference = ledger_of(tmp_path / "always")
    assert (trial["identity"], trial["status"], trial["score"]) == (reference, "failed", None)
    with Ledger(tmp_path / "always", readonly=True) as ledger:
        assert [row["status"] for row in ledger.proposals()] == ["proposed"], "nobody's program is to blame"


def test_an_invalid_reference_run_is_said(tmp_path: Path) -> None:
    with contextlib.closing(make_vec(tmp_path, 1, task="toy_tasks:Boundless")) as envs:
        envs.reset(seed=1)
        with pytest.raises(
            ValueError, match=r"reference run with g1, .* is invalid \(undefined reward .* beyond 1e\+15"
        ):
            envs.step(encode(envs, "g2"))


def test_the_final_training_is_not_capped(tmp_path: Path) -> None:
    step(tmp_path, "g2", inner=RATIO | {"max_flops_ratio": 0.01}, outer_steps=1)
    with Ledger(tmp_path) as ledger:
        assert [trial["result"]["steps"] for trial in ledger.trials()] == [4, 1]
        (final,) = protocol.train_final(ledger, ["g2"], [0])
    assert final.result["steps"] == 4 and final.result["reason"] == ""


KILLED = """
import os, sys
import gymnasium as gym, numpy as np
import derl_gym
from derl_gym.envs import inner_runs

moment, run_dir = sys.argv[1:]
finish = inner_runs._finish
started = 0

def dying(*arguments, **named):
    if moment == "before":  # the reference run has ended, its result is not recorded yet
        os.kill(os.getpid(), 9)
    finish(*arguments, **named)
    if moment == "after":
        os.kill(os.getpid(), 9)

if moment != "never":
    inner_runs._finish = dying
envs = gym.make_vec("DERL-Arithmetic-v0", num_envs=2, task="toy_tasks:Tested", outer_steps=1, run_dir=run_dir,
                    inner={"max_flops_ratio": 1.5, "steps": 4})
envs.reset(seed=1)
envs.step(np.stack([envs.unwrapped.programs.encode(text) for text in ("g2", "g1+g2")]))
envs.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "attempts"), [("before", 2), ("after", 1)])
def test_a_kill_between_the_reference_run_and_the_rest(tmp_path: Path, moment: str, attempts: int) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def run(moment: str, folder: Path) -> int:
        command = [sys.executable, "-c", KILLED, moment, str(folder)]
        return subprocess.run(command, env=environment, timeout=120).returncode

    def recorded(folder: Path) -> tuple:
        """Everything but clocks, processes and attempts."""
        with Ledger(folder, readonly=True) as ledger:
            names = ("identity", "program", "key", "seed", "status", "score", "tokens", "flops", "policy")
            trials = [tuple(trial[name] for name in names) for trial in ledger.trials()]
            names = ("step", "slot", "actions", "program", "identity", "status", "score", "cached")
            rows = [tuple(row[name] for name in names) for row in ledger.proposals()]
            return trials, rows, [row["reference"] for row in ledger.episodes()]

    assert run("never", tmp_path / "whole") == 0
    assert run(moment, tmp_path / "broken") == -signal.SIGKILL
    (trial,), _ = ledger_of(tmp_path / "broken")
    assert trial["program"] == "g1" and trial["status"] == ("scored" if moment == "after" else "running")
    ended = trial["ended_at"]
    assert run("never", tmp_path / "broken") == 0
    assert recorded(tmp_path / "broken") == recorded(tmp_path / "whole")
    if moment == "after":
        assert ledger_of(tmp_path / "broken")[0][0]["ended_at"] == ended, "it was not trained twice"


def test_the_proposers_seconds_are_those_between_scores_and_programs(tmp_path: Path) -> None:
    def search(*pauses: float) -> dict[tuple[int, int], float]:
        with contextlib.closing(make_vec(tmp_path, 1, inner={"steps": 1})) as envs:
            envs.reset(seed=1)
            for pause in pauses:
                time.sleep(pause)
                envs.step(encode(envs, "g1"))
            return {place: round(s, 1) for place, s in envs.unwrapped.loop.ledger.proposer_seconds().items()}

    assert search(0.3) == {(0, 0): 0.3}
    assert search(0.7, 0.5) == {(0, 0): 0.3, (0, 1): 0.5}, "a replay is not lived through again"
