"""Inner runs in worlds, from the search to the tested policy: a toy world, ALFWorld, ScienceWorld; with vLLM too."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import toy_agents
import toy_ids  # noqa: F401
import world_policies

from derl_gym.protocol import train_final
from derl_gym.tasks import load_task
from derl_gym.tasks.agent import AgentTask
from derl_gym.tasks.expert import Experts
from derl_gym.trials.ledger import Ledger
from derl_gym.trials.pool import Job, LocalPool

train = pytest.importorskip("derl_gym.inner.train")

from derl_gym.inner.warmstart import WarmStart  # noqa: E402
from derl_gym.inner.warmstart import train as warm_start  # noqa: E402

SMALL = {
    "steps": 2,
    "batch_size": 8,
    "num_generations": 4,
    "micro_batch_size": 4,
    "gradient_checkpointing": False,
    "max_completion_length": 40,
    "max_episode_tokens": 4000,
    "learning_rate": 1e-3,
    "temperature": 0.3,
    "world_workers": 2,
    "backend": "transformers",
    "timeout": 600.0,
}


def taught(folder: Path, task: AgentTask, epochs: int, episodes: int = 12, longest: int = 12, **policy: Any) -> str:
    """A small policy of the task's own words that has seen some expert episodes."""
    with task.open_pool(1) as pool:
        experts = Experts(task, pool, longest).episodes(task.load("train"))
        rows = [row for _, row in zip(range(episodes), experts, strict=False)]
    texts = [message["content"] for row in rows for message in row["messages"]]
    start = world_policies.make_policy(folder / "start", texts, **policy)
    how = WarmStart(epochs=epochs, batch_size=2, micro_batch_size=2, learning_rate=2e-3)
    warm_start(start, rows, folder / "taught", how, task.inner.override(**SMALL))
    return str(folder / "taught")


def job(folder: Path, task: AgentTask, options: dict[str, Any], policy: str, **changes: Any) -> dict[str, Any]:
    """The result of an inner run in a process of its own."""
    kind = type(task)
    payload = {
        "task": f"{kind.__module__}:{kind.__name__}",
        "task_options": options,
        "program": "g1+0.2*g2",
        "policy": policy,
        "config": dataclasses.asdict(task.inner.override(**SMALL | changes)),
        "data": {split: task.record(split)["sha256"] for split in ("train", "validation")},  # type: ignore[arg-type]
        "seed": 3,
        "train_split": "train",
        "eval_split": "validation",
        "save_policy": True,
    }
    with LocalPool(attempts=1) as pool:
        outcome = next(iter(pool.run([Job(folder.name, "derl_gym.inner.train:run", payload, folder, 600)])))
    assert outcome.result is not None, outcome.failure
    result = outcome.result
    assert result["status"] == "scored" and result["steps"] == len(result["curve"]) and result["n_too_long"] == 0
    assert (Path(result["policy"]) / "model.safetensors").is_file()
    return result


def in_tags(result: dict[str, Any]) -> bool:
    """Whether some steps scored: the policy has learned the format, and the world's answers are read."""
    return any(row[name] > 0 for row in result["curve"] for name in ("g2", "g3", "g4"))


def test_from_the_search_to_the_tested_policy(tmp_path: Path) -> None:
    policy = toy_agents.make_policy(tmp_path / "start")
    envs = gym.make_vec(
        "DERL-Coins-v0",
        num_envs=2,
        run_dir=str(tmp_path / "run"),
        variant="full",
        outer_steps=1,
        inner={"policy": policy, "steps": 1, "eval_examples": 1},
    )
    world: Any = envs.unwrapped
    envs.reset(seed=1)
    programs = ["g1+0.2*g2", "(g1+g2+g3+g4)/4"]
    _, scores, *_, infos = envs.step(np.stack([world.programs.encode(program) for program in programs]))
    envs.close()
    assert infos["final_info"]["status"].tolist() == ["scored"] * 2
    with Ledger(tmp_path / "run") as ledger:
        results = [trial["result"] for trial in ledger.trials()]
        assert [result["score"] for result in results] == list(scores)
        assert all(result["n_evaluated"] == 2 and set(result["scores"]) == {"left", "right"} for result in results)
        assert ledger.config["data"]["train"]["examples"] == 21
        (final,) = train_final(ledger, programs[:1], seeds=[0])
    assert final.result["n_evaluated"] == 14 and 0 <= final.test <= 1
    assert set(final.scores) == {"left", "right"}


def test_programs_of_one_class_are_told_apart_where_invalid_steps_count(tmp_path: Path) -> None:
    """g1 and 2*g1 give equal advantages under GRPO; beside the step credit of the baselines they do not."""
    for algorithm, equal in (("grpo", True), ("rlvmr", False)):
        env = gym.make("DERL-Coins-v0", run_dir=str(tmp_path / algorithm), inner={"algorithm": algorithm})
        loop = env.unwrapped.loop  # type: ignore[attr-defined]
        keys = set()
        for text in ("g1", "2*g1"):
            program = loop.parse(text)
            keys.add(loop.class_of(program, program.analyse(loop.task.primitives, states=loop.states)))
        assert (len(keys) == 1) is equal
        env.close()


def test_alfworld_on_made_games(tmp_path: Path, made_games: Path) -> None:
    options = {"data_dir": str(made_games), "check_data": False}
    task = load_task("derl_gym.tasks.alfworld:ALFWorldL0", options)
    assert isinstance(task, AgentTask)
    policy = taught(tmp_path, task, epochs=25)
    result = job(tmp_path / "run", task, options, policy, max_turns=5, world_workers=1)
    assert result["n_evaluated"] == 2 and 0 <= result["score"] <= 1 and result["prompt_style"] == "chat"
    assert in_tags(result)


@pytest.mark.slow
def test_alfworld_on_real_games(tmp_path: Path, alfworld: None, data_dir: Path) -> None:
    options = {"data_dir": str(data_dir), "only": ["pick", "look"]}
    task = load_task("derl_gym.tasks.alfworld:ALFWorldL0", options)
    assert isinstance(task, AgentTask)
    policy = taught(tmp_path, task, epochs=35)
    result = job(tmp_path / "run", task, options, policy, max_turns=5, eval_examples=4)
    assert result["n_evaluated"] == 8 and set(result["scores"]) == {"pick", "look"}
    assert all(0 <= row[name] <= 1 for row in result["curve"] for name in ("g1", "g2", "g3", "g4"))


@pytest.mark.slow
def test_three_tasks_of_scienceworld(tmp_path: Path, scienceworld: None) -> None:
    only = ["find-living-thing", "lifespan-longest-lived", "chemistry-mix-paint-secondary-color"]
    task = load_task("derl_gym.tasks.scienceworld:ScienceWorldL0", {"only": only})
    assert isinstance(task, AgentTask)
    policy = taught(tmp_path, task, epochs=40, episodes=6)
    changes = {"max_turns": 4, "eval_examples": 1, "max_completion_length": 100}
    result = job(tmp_path / "run", task, {"only": only}, policy, **changes)
    assert result["n_evaluated"] == 3 and set(result["scores"]) == set(only)
    assert all(0 <= row[name] <= 1 for row in result["curve"] for name in ("g1", "g2", "g3", "g4"))


@pytest.mark.vllm
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
@pytest.mark.parametrize("algorithm", ["grpo", "gigpo"])
def test_one_update_through_vllm(tmp_path: Path, algorithm: str) -> None:
    import vllm_on_cpu

    task = vllm_on_cpu.CoinsOnVllm()
    policy = taught(tmp_path, task, epochs=12, episodes=21, hidden=64)
    result = job(tmp_path / "run", task, {}, policy, steps=1, backend="vllm", max_turns=5, algorithm=algorithm)
    assert result["backend"] == "vllm" and result["n_evaluated"] == 7
    # The engine gave the log-probabilities of the policy's own tokens: the model agrees with it on each of them.
    assert 0 <= result["sampling_logp_difference"] < 1e-4
