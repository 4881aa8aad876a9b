"""A hub name without a network is no minute of retries."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from derl_gym.hub import use_cache_without_network

constants = pytest.importorskip("huggingface_hub.constants")


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        yield server.listen


def test_a_hub_that_answers_is_asked(listening) -> None:
    listening()
    use_cache_without_network("some/model")
    assert not constants.HF_HUB_OFFLINE


def test_a_hub_that_does_not_is_left_alone(listening) -> None:
    use_cache_without_network("some/model")
    assert constants.HF_HUB_OFFLINE


def test_folders_and_proxies_need_no_answer(listening, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_cache_without_network(str(tmp_path))
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"http": "http://proxy"})
    use_cache_without_network("some/model")
    assert not constants.HF_HUB_OFFLINE
