"""A training that is stopped and goes on is the training that was never stopped."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from derl_gym.inner.config import InnerConfig
from derl_gym.inner.marks import FOLDER, MARK, marks, training_hash
from derl_gym.tasks import load_task

train = pytest.importorskip("derl_gym.inner.train")

CONFIG = InnerConfig(batch_size=16, max_completion_length=6, lr_scheduler="linear", learning_rate=3e-3)
CASES: dict[str, tuple[dict[str, Any], float, int]] = {
    # 8 examples, 2 of them a step: 4 steps an epoch, so that 2/3 of 12 steps end the second and 0.8 are in the third.
    "the middle of an epoch": ({"epochs": 3.0, "micro_batch_size": 8, "beta": 0.05}, 0.8, 10),
    "the end of an epoch": ({"epochs": 3.0}, 2 / 3, 8),
    "a phase of several steps": ({"updates_per_generation": 2, "steps": 8, "trl": {"num_iterations": 2}}, 0.1, 4),
    "adapters": ({"lora_rank": 4, "steps": 3}, 0.5, 2),
}
"""Settings, the share of the training after which it pauses, and the step at which that is."""


def payload(config: InnerConfig, **changes: Any) -> dict[str, Any]:
    return {
        "task": "toy_tasks:Tested",
        "task_options": {"size": 8},
        "program": "g1+0.5*g2",
        "policy": load_task("toy_tasks:Digits").base_policy,
        "config": dataclasses.asdict(config),
        "seed": 5,
        "train_split": "train",
        "eval_split": "validation",
        "save_policy": True,
    } | changes


def alike(result: dict[str, Any]) -> dict[str, Any]:
    """All but what a clock, another process in memory or another folder can change; the weights as bytes."""
    clocks = ("train_seconds", "eval_seconds", "peak_memory", "policy", "before")
    weights = (Path(result["policy"]) / "model.safetensors").read_bytes()
    return {key: value for key, value in result.items() if key not in clocks} | {"weights": weights}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_training_that_has_paused_goes_on(name: str, tmp_path: Path) -> None:
    changes, share, step = CASES[name]
    given = payload(CONFIG.override(**changes))
    whole = train.run(given, tmp_path / "whole")
    assert whole["of_steps"] == 0 and not marks(tmp_path / "whole")
    first = train.run(given | {"until": share, "save_policy": False}, tmp_path / "first")
    assert (first["steps"], first["of_steps"]) == (step, whole["steps"])
    assert first["reason"] == f"paused at step {step} of {whole['steps']}" and first["tokens"] < whole["tokens"]
    assert first["curve"] == whole["curve"][: len(first["curve"])]
    rest = train.run(given | {"continues": str(tmp_path / "first")}, tmp_path / "rest")
    assert alike(rest) == alike(whole)
    assert rest["train_seconds"] > rest["before"]["train_seconds"] > 0 and whole["before"] == first["before"] == {}
    assert rest["before"]["tokens"] == first["tokens"]
    assert rest["before"]["flops"] == first["flops"] - first["eval_flops"]


def test_a_half_written_checkpoint_and_one_of_another_training_are_not_used(tmp_path: Path) -> None:
    given = payload(CONFIG.override(steps=3, checkpoint_seconds=0.0))
    whole = train.run(given, tmp_path)
    (last,) = marks(tmp_path)
    assert last.name == "checkpoint-2", "after the last step the training is over, and the earlier ones are removed"
    half = shutil.copytree(last, last.with_name("checkpoint-3"))
    (half / MARK).unlink()
    (half / "optimizer.pt").write_bytes(b"torn")
    other = shutil.copytree(last, last.with_name("checkpoint-5"))
    mark = json.loads((last / MARK).read_text())
    (other / MARK).write_text(json.dumps(mark | {"step": 5, "made_for": "something else"}))
    paused = shutil.copytree(last, last.with_name("checkpoint-6"))  # its evaluation was never done
    (paused / MARK).write_text(json.dumps(mark | {"step": 6, "of_steps": 9}))
    # Only the checkpoint can have brought this row.
    mark["rows"][0]["g1"] = 0.123
    (last / MARK).write_text(json.dumps(mark))
    again = train.run(given, tmp_path)
    assert alike(again)["weights"] == alike(whole)["weights"] and again["curve"][0]["g1"] == 0.123
    assert again["curve"][1:] == whole["curve"][1:]
    assert [path.name for path in (tmp_path / FOLDER).glob("checkpoint-*")] == ["checkpoint-2"]


def test_what_makes_it_another_training() -> None:
    same = [
        {"until": 0.5, "continues": "/there", "save_policy": False, "eval_split": None},
        {"config": dataclasses.asdict(CONFIG.override(timeout=1.0, checkpoint_seconds=None))},
        {"task_options": {"size": 8, "data_dir": "/elsewhere"}},
    ]
    others = [
        {"seed": 6},
        {"program": "g1"},
        {"policy": "elsewhere"},
        {"task_options": {}},
        {"data": {"train": "abc"}},
        {"config": dataclasses.asdict(CONFIG.override(steps=33))},
    ]
    hashes = [training_hash(payload(CONFIG) | changes) for changes in [{}, *same, *others]]
    assert len(set(hashes[: len(same) + 1])) == 1 and len(set(hashes)) == len(others) + 1
