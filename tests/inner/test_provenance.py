"""What a result says of the settings, the code and the libraries that it comes from."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
from pathlib import Path
from typing import Any

import pytest

import derl_gym
from derl_gym.inner.config import InnerConfig
from derl_gym.inner.provenance import code_version, configuration_hash, installation

PAYLOAD: dict[str, Any] = {
    "task": "toy_tasks:Digits",
    "task_options": {"size": 24, "data_dir": "/here"},
    "flip": ["g2", "g1"],
    "program": "g1",
    "primitives": None,
    "policy": "one",
    "config": dataclasses.asdict(InnerConfig(steps=2)),
    "data": {"train": "ab", "validation": "cd"},
    "seed": 1,
    "train_split": "train",
    "eval_split": "validation",
    "save_policy": False,
}


@pytest.mark.parametrize(
    "change",
    [
        {"program": "g2", "seed": 2, "policy": "two", "save_policy": True, "primitives": ["g1"]},
        {"task_options": {"data_dir": "/there", "size": 24}},
        {"flip": ["g1", "g2"]},
        {"config": PAYLOAD["config"] | {"timeout": 9.0, "policy": "two"}},
    ],
)
def test_what_is_no_setting_changes_no_hash(change: dict[str, Any]) -> None:
    assert configuration_hash(PAYLOAD | change) == configuration_hash(PAYLOAD)


@pytest.mark.parametrize(
    "change",
    [
        {"task": "toy_tasks:Tested"},
        {"task_options": {"size": 25}},
        {"flip": ["g1"]},
        {"config": PAYLOAD["config"] | {"steps": 3}},
        {"data": {"train": "ab", "validation": "ce"}},
    ],
)
def test_every_setting_changes_the_hash(change: dict[str, Any]) -> None:
    assert configuration_hash(PAYLOAD | change) != configuration_hash(PAYLOAD)


def test_the_code_is_known_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "__init__.py").write_text("a")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.py").write_text("b")
    (tmp_path / "data.json").write_text("no code")
    monkeypatch.setattr(derl_gym, "__file__", str(tmp_path / "__init__.py"))
    expected = hashlib.sha256(b"__init__.py\0a\0deep/b.py\0b\0").hexdigest()[:12]
    assert code_version.__wrapped__() == f"{derl_gym.__version__}+{expected}"


def test_the_libraries_are_those_that_are_installed() -> None:
    versions = installation()["versions"]
    assert versions["torch"] == importlib.metadata.version("torch")
    assert "derl-none" not in versions and set(versions) <= {"python", "torch", "transformers", "trl", "vllm"}
