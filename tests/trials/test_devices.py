from __future__ import annotations

import pytest

from derl_gym.trials.devices import visible_devices


@pytest.mark.parametrize(("named", "devices"), [("0,3", ["0", "3"]), ("GPU-a", ["GPU-a"]), ("", []), ("-1", [])])
def test_named_devices(monkeypatch: pytest.MonkeyPatch, named: str, devices: list[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_devices() == devices
