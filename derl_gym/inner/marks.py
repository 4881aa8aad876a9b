"""Which checkpoints of a training are whole, and what they were made for. Light: the driver reads it, too.

How they are written and gone on from is ``checkpoint.py``'s business.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from derl_gym.inner.config import CLOCKWORK

FOLDER = "trainer"
"""Where a run's checkpoints lie, in its folder."""
MARK = "derl_gym.json"
"""File in a checkpoint that is written last."""
_LEFT_OUT = ("until", "continues", "save_policy", "eval_split")


def training_hash(payload: Mapping[str, Any]) -> str:
    """Equal for payloads of :func:`derl_gym.inner.train.run` that train alike, however far and wherever they do."""
    told = {key: value for key, value in payload.items() if key not in _LEFT_OUT}
    told["config"] = {key: value for key, value in payload["config"].items() if key not in CLOCKWORK}
    told["task_options"] = {key: v for key, v in (payload.get("task_options") or {}).items() if key != "data_dir"}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def marks(folder: Path) -> dict[Path, dict[str, Any]]:
    """The whole checkpoints in a run's folder, and their marks.

    Returns:
        Folder -> ``made_for`` (a :func:`training_hash`), ``step``, ``of_steps`` (of the whole training where the run
        has paused there, else 0), ``seconds``, ``tokens`` and ``flops`` of training so far, those ``before`` this run,
        and the curve's ``rows``.
    """
    return {file.parent: json.loads(file.read_text()) for file in folder.glob(f"{FOLDER}/checkpoint-*/{MARK}")}


def remove_checkpoints(folder: Path) -> None:
    """Throw a run's checkpoints away: nothing goes on from them any more."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
