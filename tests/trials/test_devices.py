from __future__ import annotations

import pytest

from derl_gym.trials.devices import leases, visible_devices


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
