"""One inner run as two processes (gloo on the CPU): same steps, one policy, and a fault on one rank hangs no other."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

import pytest

from derl_gym.inner.config import InnerConfig
from derl_gym.tasks import load_task
from derl_gym.trials.pool import Job, LocalPool

train = pytest.importorskip("derl_gym.inner.train")

from derl_gym.inner import ranks  # noqa: E402

TWO = InnerConfig(steps=3, batch_size=16, max_completion_length=6, gpus=2)


def payload(config: InnerConfig = TWO, task: str = "toy_tasks:Digits", **changes: Any) -> dict[str, Any]:
    return {
        "task": task,
        "program": "g1+0.5*g2",
        "policy": load_task("toy_tasks:Digits").base_policy,
        "config": dataclasses.asdict(config),
        "seed": 5,
        "train_split": "train",
        "eval_split": "validation",
        "save_policy": False,
    } | changes


def on_pool(folder: Path, payload: dict[str, Any]) -> Any:
    job = Job(id="two", target="derl_gym.inner.train:run", payload=payload, folder=folder, timeout=120)
    with LocalPool(attempts=1) as pool:
        return next(iter(pool.run([job])))


def test_two_ranks_train_together(tmp_path: Path) -> None:
    outcome = on_pool(tmp_path, payload(save_policy=True))
    assert outcome.failure is None, outcome.failure
    result = outcome.result
    assert result["status"] == "scored" and result["steps"] == 3 and len(result["curve"]) == 3
    assert result["n_evaluated"] == 24 and 0 <= result["score"] <= 1
    assert 3 * 16 < result["tokens"] <= 3 * 16 * (6 + 6), "both ranks' tokens"
    assert result["peak_memory"] > 300e6, "both ranks' memory"
    assert result["policy"] == str(tmp_path / "policy") and (tmp_path / "policy" / "model.safetensors").is_file()
    alone = train.run(payload(TWO.override(gpus=1)), tmp_path / "alone")
    assert result["curve"] != alone["curve"], "the ranks draw with seeds of their own"
    again = on_pool(tmp_path / "again", payload()).result
    for clock in ("train_seconds", "eval_seconds", "peak_memory", "policy"):
        del again[clock], result[clock]
    assert again == result


def test_a_greedy_score_does_not_depend_on_how_many_ranks_evaluate(tmp_path: Path) -> None:
    """A constant reward trains nothing: both evaluate the base policy, 23 prompts on two ranks."""
    config = TWO.override(steps=1, eval_temperature=0.0, eval_examples=23)
    scores = [
        on_pool(tmp_path / str(gpus), payload(config.override(gpus=gpus), program="3+0*g1")).result for gpus in (1, 2)
    ]
    for name in ("score", "standard_error", "primitive_means", "n_evaluated"):
        assert scores[0][name] == scores[1][name], name


def test_an_undefined_reward_on_one_rank_ends_the_run_as_invalid(tmp_path: Path) -> None:
    faulty = payload(task="rank_tasks:FaultOnRank1", task_options={"fault": "zero"}, program="g1/g2")
    outcome = on_pool(tmp_path, faulty)
    assert outcome.failure is None, outcome.failure
    assert outcome.result["status"] == "invalid" and outcome.result["score"] == 0.0
    assert "undefined reward at step 1: division by zero" in outcome.result["reason"]


@pytest.mark.parametrize(
    ("fault", "message"),
    [("crash", "rank 1 of 2: LookupError: rank 1 lost its way"), ("kill", "rank 1 of 2 was killed by SIGKILL")],
)
def test_a_rank_that_goes_fails_the_run_with_its_own_message(tmp_path: Path, fault: str, message: str) -> None:
    started = time.monotonic()
    outcome = on_pool(tmp_path, payload(task="rank_tasks:FaultOnRank1", task_options={"fault": fault}))
    assert outcome.result is None and message in outcome.failure
    assert time.monotonic() - started < 60, "nobody waits for a rank that is gone"
    assert not _running(outcome.pid), "nothing of the run is left"


def _running(group: int) -> list[str]:
    """Processes of a group that still run, by their /proc entries."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _read(entry / "stat")):
            fields = stat.rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(entry.name)
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def test_a_cap_in_seconds_stops_both_ranks_at_the_same_step(tmp_path: Path) -> None:
    outcome = on_pool(tmp_path, payload(TWO.override(steps=50, max_seconds=1e-6)))
    assert outcome.failure is None and outcome.result["steps"] == 1
    assert "by the cap of 1e-06 seconds" in outcome.result["reason"]


@pytest.mark.slow
def test_a_training_that_has_paused_goes_on(tmp_path: Path) -> None:
    """On the third permutation of 8 examples, with every rank's own random states."""
    given = payload(TWO.override(steps=10), task_options={"size": 8})
    whole = on_pool(tmp_path / "whole", given)
    assert whole.failure is None, whole.failure
    first = on_pool(tmp_path / "first", given | {"until": 0.9, "eval_split": None})
    assert first.failure is None, first.failure
    assert (first.result["steps"], first.result["of_steps"]) == (9, 10)
    rest = on_pool(tmp_path / "rest", given | {"continues": str(tmp_path / "first")})
    assert rest.failure is None, rest.failure
    for name in ("score", "primitive_means", "curve", "tokens", "flops", "steps"):
        assert rest.result[name] == whole.result[name], name


def test_a_run_sees_as_many_gpus_as_it_has_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    ranks.keep_gpus(4)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
    ranks.keep_gpus(2)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,5"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    ranks.keep_gpus(1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
    with pytest.raises(RuntimeError, match="inner.gpus is 8, but this inner run may use 4"):
        ranks.keep_gpus(8)


def test_shares_are_equally_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def shares(items: list[int], count: int) -> list[list[int]]:
        parts = []
        for rank in range(count):
            monkeypatch.setattr(ranks, "world", lambda rank=rank: (rank, count))
            parts.append(ranks.share(items))
        return parts

    assert shares([1, 2, 3, 4, 5], 2) == [[1, 2, 3], [4, 5, 1]]
    assert shares([1, 2], 4) == [[1], [2], [1], [1]]
    assert shares([], 2) == [[], []]
