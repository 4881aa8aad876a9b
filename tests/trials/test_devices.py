from __future__ import annotations

from pathlib import Path

import pytest

from derl_gym.trials.devices import leases, visible_devices
from derl_gym.trials.jobs import Job
from derl_gym.trials.pool import LocalPool
from derl_gym.trials.pools import open_pool


@pytest.mark.parametrize(("named", "devices"), [("0,3", ["0", "3"]), ("GPU-a", ["GPU-a"]), ("", []), ("-1", [])])
def test_named_devices(monkeypatch: pytest.MonkeyPatch, named: str, devices: list[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_devices() == devices


@pytest.mark.parametrize(
    ("named", "workers", "gpus", "expected"),
    [
        ("0,1,2,3", 2, 1, ["0", "1", "2", "3"]),
        ("0,1,2,3", 2, 2, ["0,1", "2,3"]),
        ("0,1,2", 1, 2, ["0,1"]),
        ("0,1,2,3", 3, 2, None),
        ("0", 2, 1, None),
        ("", 1, 1, None),
    ],
)
def test_leases(monkeypatch: pytest.MonkeyPatch, named: str, workers: int, gpus: int, expected: list | None) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert leases(workers, gpus) == expected


def run(folder: Path, workers: int, gpus: int, target: str, payload: dict, count: int, crashes: int = 0) -> list[dict]:
    """Results of equal jobs in the pool that a search opens, after some that crash."""
    with open_pool("processes", workers, gpus) as pool:
        assert isinstance(pool, LocalPool)
        pool.preload = ()
        jobs = [Job(f"crash{i}", "targets:kills_itself", {"signal": 9}, folder / f"crash{i}") for i in range(crashes)]
        jobs += [Job(str(i), f"targets:{target}", payload, folder / str(i)) for i in range(count)]
        outcomes = {outcome.id: outcome for outcome in pool.run(jobs)}
    assert all(outcomes[f"crash{i}"].attempts == 2 for i in range(crashes))
    return [outcome.result for outcome in outcomes.values() if outcome.result is not None]


def test_two_devices_are_leased_to_one_run_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    results = run(tmp_path, 2, 1, "begin_and_end", {"seconds": 0.2}, count=5, crashes=2)
    assert len(results) == 5 and {result["device"] for result in results} == {"0", "1"}
    for device in ("0", "1"):
        turns = sorted((result["begin"], result["end"]) for result in results if result["device"] == device)
        assert all(before[1] <= after[0] for before, after in zip(turns, turns[1:], strict=False))


@pytest.mark.parametrize(("workers", "gpus"), [(1, 2), (3, 1), (2, 2)])
def test_a_run_of_two_devices_has_both_and_too_many_workers_share(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, workers: int, gpus: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    results = run(tmp_path, workers, gpus, "begin_and_end", {"seconds": 0}, count=2)
    assert [result["device"] for result in results] == ["0,1", "0,1"]
