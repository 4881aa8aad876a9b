"""What counts as a secret, and in which spellings it is found."""

from __future__ import annotations

import os
import urllib.parse
from pathlib import Path

import pytest

from derl_gym.secrets import redact_file, redacted, refuse_secrets


@pytest.fixture(autouse=True)
def no_other_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if any(word in name.upper() for word in ("KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL")):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    "name",
    [
        "OPENAI_API_KEY",
        "HF_TOKEN",
        "WANDB_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "hf_token",
        "MY_KEY_2",
        "PGPASSWORD",
    ],
)
def test_variables_that_hold_a_secret(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "abcdefgh")
    assert redacted("say abcdefgh twice: abcdefgh.") == "say *** twice: ***."


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "KEYBOARD", "MONKEY", "SECRETARY", "HF_TOKEN_PATH", "KEY_DIR"]
)
def test_variables_that_hold_none(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "abcdefgh")
    assert redacted("abcdefgh") == "abcdefgh"


def test_short_values_are_no_secrets_unless_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "g1")
    assert redacted("g1+g2") == "g1+g2"
    assert redacted("g1+g2", "g1", "") == "***+g2"


def test_a_secret_in_a_secret_leaves_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "abcdefgh")
    monkeypatch.setenv("B_KEY", "abcdefgh-ijklmnop")
    assert redacted("abcdefgh-ijklmnop") == "***"


def test_other_spellings(monkeypatch: pytest.MonkeyPatch) -> None:
    key = 'a/b"c\\d+efgh'
    monkeypatch.setenv("API_KEY", key)
    for text in (key, 'a/b\\"c\\\\d+efgh', urllib.parse.quote(key, safe="")):
        assert redacted(f"<{text}>") == "<***>"
    assert redacted(f"error: {key!r}") == "error: '***'"


def test_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(b"one\xff abcdefgh\nabcdefghabcdefgh")
    before = path.stat().st_ino
    redact_file(path)
    assert path.stat().st_ino == before, "nothing to hide, nothing written"
    monkeypatch.setenv("API_KEY", "abcdefgh")
    path.chmod(0o600)
    redact_file(path)
    assert path.read_bytes() == b"one\xff ***\n******" and path.stat().st_mode & 0o777 == 0o600
    redact_file(tmp_path / "none")
    assert [p.name for p in tmp_path.iterdir()] == ["log.txt"]


@pytest.mark.parametrize(
    "settings",
    [
        {"api_key": "x"},
        {"inner": {"trl": {"hub_token": "x"}}},
        {"derl.token": "x"},
        {"list": [{"password": "x"}]},
        {"secret": "x"},
        {"url": "http://host?key=abcdefgh"},
    ],
)
def test_settings_with_a_secret(monkeypatch: pytest.MonkeyPatch, settings: dict) -> None:
    monkeypatch.setenv("API_KEY", "abcdefgh")
    with pytest.raises(ValueError, match="in the settings holds a secret") as caught:
        refuse_secrets(settings, "the settings")
    assert "abcdefgh" not in str(caught.value)


def test_settings_without_one() -> None:
    refuse_secrets({"max_tokens": 5, "eos_token": "<end>", "api_key_env": "MY_KEY", "api_key": None, "token": ""}, "")
