"""A hub name without a network is no minute of retries."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from derl_gym.hub import hub_answers, use_cache_without_network, where

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
    assert not constants.HF_HUB_OFFLINE and hub_answers()


def test_a_hub_that_does_not_is_left_alone(listening) -> None:
    use_cache_without_network("some/model")
    assert constants.HF_HUB_OFFLINE and not hub_answers()


def test_folders_and_proxies_need_no_answer(listening, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_cache_without_network(str(tmp_path))
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"http": "http://proxy"})
    use_cache_without_network("some/model")
    assert not constants.HF_HUB_OFFLINE


def test_where_a_model_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = tmp_path / "hub" / "models--some--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    assert where(str(tmp_path)) == "folder"
    assert where("some/model") == where("no/model") == where("../odd//name") == ""
    (snapshot / "config.json").touch()
    assert where("some/model") == "", "a configuration alone is no model"
    (snapshot / "model.safetensors.index.json").touch()
    assert where("some/model") == "cache"
