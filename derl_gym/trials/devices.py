"""Which accelerators this process may use, found without loading torch."""

from __future__ import annotations

import os
from pathlib import Path


def leases(workers: int, gpus: int = 1) -> list[str] | None:
    """What each of some workers gets as ``CUDA_VISIBLE_DEVICES``: GPUs of its own, ``"0,1"`` for instance.

    Args:
        workers: Jobs at a time.
        gpus: GPUs that a job needs.

    Returns:
        As many leases as there are GPUs for, at least one per worker; ``None`` where all see everything: no GPUs
        here, or more workers than GPUs, which then share them.
    """
    devices = visible_devices()
    groups = [",".join(devices[i : i + gpus]) for i in range(0, len(devices) - gpus + 1, gpus)]
    return groups if len(groups) >= workers else None


def visible_devices() -> list[str]:
    """Names for ``CUDA_VISIBLE_DEVICES``, one per GPU: those it names already, else all that the driver lists."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [device for device in named.split(",") if device.strip() and device != "-1"]
    listed = Path("/proc/driver/nvidia/gpus")
    return [str(i) for i in range(len(list(listed.iterdir())))] if listed.is_dir() else []
