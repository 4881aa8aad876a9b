"""Models by hub name where there is no network: from the cache at once, or not at all.

The hub's client would retry for a minute per model before it looks into its cache.
"""

from __future__ import annotations

import socket
import urllib.parse
import urllib.request
from pathlib import Path


def use_cache_without_network(model: str, patience: float = 10.0) -> None:
    """Put the hub's client of this process into offline mode when a model is a hub name and nobody answers there.

    Args:
        model: Hub name or folder.
        patience: Seconds that the hub may take to accept a connection.
    """
    if Path(model).is_dir():
        return
    from huggingface_hub import constants

    hub = urllib.parse.urlsplit(constants.ENDPOINT)
    if hub.hostname is None or urllib.request.getproxies().get(hub.scheme):
        return  # the proxy knows the way, not we
    port = hub.port or {"http": 80}.get(hub.scheme, 443)
    try:
        socket.create_connection((hub.hostname, port), timeout=patience).close()
    except OSError:
        constants.HF_HUB_OFFLINE = True
