"""Where an inner run was made, with which code and under which settings: what a result needs to be reproduced.

Light on purpose: the driver reads its own installation with it before a run has a result to say more.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import platform
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from derl_gym.inner.config import CLOCKWORK

LIBRARIES = ("torch", "transformers", "trl", "vllm")


def configuration_hash(payload: Mapping[str, Any]) -> str:
    """What an inner run was given besides program, seed and starting policy: equal for rows that may be compared.

    Args:
        payload: That of :func:`derl_gym.inner.train.run`: task, its options, flipped primitives, inner settings and the
            data's hashes are read. Where the data lie and how long a run may take change no score.

    Returns:
        24 hex digits of a SHA-256.
    """
    config = {key: value for key, value in payload["config"].items() if key not in (*CLOCKWORK, "policy")}
    options = {key: value for key, value in (payload.get("task_options") or {}).items() if key != "data_dir"}
    told = [payload["task"], options, sorted(payload.get("flip", ())), config, payload.get("data", {})]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:24]


@functools.cache
def code_version() -> str:
    """The version of derl_gym and, after a plus, 12 hex digits over its source files as they are now."""
    import derl_gym

    folder = Path(derl_gym.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return f"{derl_gym.__version__}+{digest.hexdigest()[:12]}"


@functools.cache
def _installed() -> tuple[tuple[str, str], ...]:
    found = [("python", platform.python_version())]
    for name in LIBRARIES:
        try:
            found.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return tuple(found)


def installation() -> dict[str, Any]:
    """``host``, ``code`` and ``versions`` (Python, and those of :data:`LIBRARIES` that are installed) here."""
    return {"host": socket.gethostname(), "code": code_version(), "versions": dict(_installed())}
