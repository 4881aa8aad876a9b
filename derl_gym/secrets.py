"""Keys and passwords out of what is written down: ledgers, results, logs, reports and messages.

A secret is known by its name: the value of an environment variable such as OPENAI_API_KEY, HF_TOKEN or WANDB_API_KEY,
or a setting called api_key, token, secret or password. What no such name points to is not found.
"""

from __future__ import annotations

import functools
import json
import os
import re
import tempfile
import urllib.parse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

MASK = "***"
SHORTEST = 8
"""Characters of a value below which it is no key: replacing "1" or "false" everywhere would spoil what is written."""
_VARIABLE = re.compile(r"(^|_)((API)?KEY|TOKEN|SECRET|\w*PASSWORD|PASSWD|CREDENTIALS?)(_|$)", re.IGNORECASE)
_PLACE = re.compile(r"_(FILE|PATH|DIR|HOME)$", re.IGNORECASE)
"""Where a key lies is no key, and redacted paths in a ledger would lead nowhere."""
_SETTING = re.compile(
    r"(^|_)(api_?key|access_?key|secret(_?key)?|password|passwd|credentials?|(hub|auth|access|api|bearer|hf)_token)$|^token$",
    re.IGNORECASE,
)


def redacted(text: str, *more: str) -> str:
    """The text with every secret of the environment replaced by ``***``.

    Secrets quoted as Python, JSON or an address would quote them are found as well.

    Args:
        text: Any text.
        *more: Further secrets, however short; empty ones are ignored.
    """
    return _without(text, _secrets(*more))


def redacted_values(values: Iterable[Any]) -> list[Any]:
    """Those values that are texts redacted, the others as they are."""
    secrets = _secrets()
    return [_without(value, secrets) if isinstance(value, str) else value for value in values]


def redact_file(path: Path) -> None:
    """Redact a file of text line by line; nothing is written where there is nothing to hide."""
    secrets = [secret.encode() for secret in _secrets()]
    if not secrets or not path.is_file():
        return
    with path.open("rb") as file:
        if not any(secret in line for line in file for secret in secrets):
            return
    with path.open("rb") as file, tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as aside:
        for line in file:
            for secret in secrets:
                line = line.replace(secret, MASK.encode())
            aside.write(line)
    os.replace(aside.name, path)


def refuse_secrets(settings: Any, what: str, name: str = "") -> None:
    """Refuse settings that would be written to a run directory with a secret in them.

    Args:
        settings: JSON-able.
        what: How the message calls them: ``"the agent's options"``.
        name: Of this part of them.

    Raises:
        ValueError: names the setting, never its value.
    """
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            refuse_secrets(value, what, f"{name}.{key}" if name else str(key))
    elif isinstance(settings, list | tuple):
        for value in settings:
            refuse_secrets(value, what, name)
    elif isinstance(settings, str) and settings:
        named = _SETTING.search(name.rpartition(".")[2]) is not None
        if named or redacted(settings) != settings:
            raise ValueError(
                f"{name} in {what} holds a secret, which would be written to the run directory: put it into an "
                "environment variable"
            )


def _without(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        if secret in text:
            text = text.replace(secret, MASK)
    return text


def _secrets(*more: str) -> list[str]:
    """The longest first, since one may be part of another. Read anew each time: a variable may be set late."""
    found = {value for value in more if value}
    named = (os.environ.get(name, "") for name in os.environ if _names_secret(name))
    found |= {value for value in named if len(value) >= SHORTEST}
    found |= {repr(value)[1:-1] for value in found}
    found |= {json.dumps(value)[1:-1] for value in found} | {urllib.parse.quote(value, safe="") for value in found}
    return sorted(found, key=len, reverse=True)


@functools.lru_cache(maxsize=4096)
def _names_secret(variable: str) -> bool:
    return _VARIABLE.search(variable) is not None and _PLACE.search(variable) is None
