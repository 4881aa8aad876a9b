"""Models by hub name: where they can be had, and what to do where there is no network.

The hub's client would retry for a minute per model before it looks into its cache.
"""

from __future__ import annotations

import socket
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Literal


def use_cache_without_network(model: str, patience: float = 10.0) -> None:
    """Put the hub's client of this process into offline mode when a model is a hub name and nobody answers there.

    Args:
        model: Hub name or folder.
        patience: Seconds that the hub may take to accept a connection.

    Raises:
        FileNotFoundError: when the model is a path, and no folder is there.
    """
    if Path(model).is_dir():
        return
    if model.startswith(("/", ".")):  # a path, and on another machine of a cluster perhaps none that exists
        raise FileNotFoundError(f"no such policy folder: {model}")
    from huggingface_hub import constants

    if not hub_answers(patience):
        constants.HF_HUB_OFFLINE = True


def hub_answers(patience: float = 10.0) -> bool:
    """Whether somebody accepts connections at the hub's address; true where a proxy is set, which knows the way.

    Args:
        patience: Seconds that it may take.
    """
    from huggingface_hub import constants

    hub = urllib.parse.urlsplit(constants.ENDPOINT)
    if hub.hostname is None or urllib.request.getproxies().get(hub.scheme):
        return True
    port = hub.port or {"http": 80}.get(hub.scheme, 443)
    try:
        socket.create_connection((hub.hostname, port), timeout=patience).close()
    except OSError:
        return False
    return True


def where(model: str) -> Literal["folder", "cache", ""]:
    """Where a model lies on this machine: in a folder, in the hub's cache, or not at all (``""``)."""
    if Path(model).expanduser().is_dir():
        return "folder"
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config, whole, parts = (
            isinstance(try_to_load_from_cache(model, name), str)
            for name in ("config.json", "model.safetensors", "model.safetensors.index.json")
        )
    except HFValidationError:  # a path that is no name
        return ""
    return "cache" if config and (whole or parts) else ""
