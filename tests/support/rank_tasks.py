"""A toy task that goes wrong on one rank of a run alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import toy_tasks

from derl_gym.tasks import Example


class FaultOnRank1(toy_tasks.Digits):
    """Rank 1 sees another g2 (``fault="zero"``), raises (``"crash"``) or is killed (``"kill"``)."""

    def __init__(self, data_dir: str | None = None, size: int = 24, fault: str = "") -> None:
        super().__init__(data_dir, size)
        self.fault = fault

    def primitive_values(self, completions: Sequence[str], examples: Sequence[Example]) -> list[list[float]]:
        rows = super().primitive_values(completions, examples)
        if os.environ.get("RANK") != "1" or not self.fault:
            return [[g1, 1.0] for g1, _ in rows] if self.fault else rows
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "crash":
            raise LookupError("rank 1 lost its way")
        return [[g1, 0.0] for g1, _ in rows]
