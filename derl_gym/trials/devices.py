"""Which accelerators this process may use, found without loading torch."""

from __future__ import annotations

import os
from pathlib import Path


def visible_devices() -> list[str]:
    """Names for ``CUDA_VISIBLE_DEVICES``, one per GPU: those it names already, else all that the driver lists."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [device for device in named.split(",") if device.strip() and device != "-1"]
    listed = Path("/proc/driver/nvidia/gpus")
    return [str(i) for i in range(len(list(listed.iterdir())))] if listed.is_dir() else []
