"""What makes two trials the same trial: hashes of settings, of policies, and the seeds derived from an episode's."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def fingerprint(content: dict[str, Any]) -> str:
    """The first 24 hex digits of the SHA-256 of JSON-able content, independent of key order."""
    text = json.dumps(content, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def policy_folder(policy: str) -> Path | None:
    """The folder that a policy lies in; ``None`` for a hub model's name.

    Raises:
        FileNotFoundError: when ``policy`` looks like a folder but holds no model.
    """
    folder = Path(policy).expanduser()
    if not folder.is_dir():
        if policy.startswith((".", "/", "~")):
            raise FileNotFoundError(f"no such policy folder: {policy}")
        return None
    if not list(folder.glob("*.safetensors")) or not (folder / "config.json").exists():
        found = sorted(p.name for p in folder.iterdir())
        more = ", ..." if len(found) > 8 else ""
        raise FileNotFoundError(
            f"{folder} is no policy: expected config.json and *.safetensors, found "
            f"{', '.join(found[:8]) or 'nothing'}{more}"
        )
    return folder


def policy_fingerprint(policy: str) -> str:
    """A hub model's name, or a hash over the names and bytes of a folder's files; see :func:`policy_folder`."""
    if (folder := policy_folder(policy)) is None:
        return policy
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.suffix in (".safetensors", ".json")):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:24]


def trial_seed(episode_seed: int, replicate: int, stage: int = 0) -> int:
    """The inner run's seed: the same for every program of an episode, new for each repetition of a class.

    Common random numbers within an episode take the seeds' luck out of the comparison of programs. In DERL-full,
    where training goes on from stage to stage, every stage has seeds of its own.
    """
    digest = hashlib.sha256(f"{episode_seed}:{replicate}:{stage}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
