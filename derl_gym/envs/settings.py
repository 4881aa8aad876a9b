"""What goes into a search and what comes out of each proposal: the environments' arguments and infos."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from derl_gym.fields import check_fields

MACHINE = ("run_dir", "workers", "pool", "cache_dir", "on_infrastructure_failure")
"""Settings that say how a search is run and not which: they may change when it is taken up again."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The keyword arguments of every environment id; all JSON-able. See :class:`RewardDesignEnv`."""

    task: str
    task_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    variant: Literal["base", "full"] = "base"
    outer_steps: int = 10
    group_size: int = 8
    inner: dict[str, Any] = dataclasses.field(default_factory=dict)
    primitives: Sequence[str] | None = None
    flip: Sequence[str] = ()
    mask: Literal["grammar", "charset"] = "grammar"
    pool: Literal["processes"] = "processes"
    workers: int = 1
    run_dir: str | None = None
    cache: Literal["equivalent", "exact", "off"] = "equivalent"
    cache_dir: str | None = None
    data_dir: str | None = None
    keep_policies: bool = False
    on_infrastructure_failure: Literal["raise", "zero"] = "raise"

    def __post_init__(self) -> None:
        if self.pool != "processes":
            raise ValueError(f"pool must be 'processes', not {self.pool!r} (a Ray pool isn't part of this version)")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.integer):
                object.__setattr__(self, field.name, int(value))
            elif isinstance(value, os.PathLike):
                object.__setattr__(self, field.name, os.fspath(value))
        check_fields(self, at_least=dict.fromkeys(("outer_steps", "group_size", "workers"), 1))
        try:
            json.dumps(dataclasses.asdict(self))
        except (TypeError, ValueError) as error:
            raise ValueError(f"settings must be JSON-able: {error}") from error
        if self.cache_dir is not None and self.variant == "full":
            raise ValueError("cache_dir shares scores, not policies; variant='full' needs the policies")


def make_settings(given: dict[str, Any]) -> Settings:
    """The settings among keyword arguments.

    Raises:
        TypeError: for a name that is no setting.
        ValueError: for a value that is out of range.
    """
    known = [field.name for field in dataclasses.fields(Settings)]
    if unknown := sorted(set(given) - set(known)):
        raise TypeError(f"unknown setting {', '.join(unknown)}; expected some of {', '.join(sorted(known))}")
    return Settings(**given)


@dataclasses.dataclass(frozen=True)
class Scored:
    """One proposal's outcome, as the environments' infos show it.

    Attributes:
        program: The program's text.
        status: ``"scored"``, ``"invalid"`` or ``"failed"``.
        score: Validation score in [0, 1]; 0.0 unless scored.
        reason: Why not scored, or which cap ended the training; else empty.
        structure: ``"stable"``, ``"unstable"`` or ``"invalid"`` (paper section 5.4).
        key: The program's equivalence class; empty where it does not parse.
        trial: Identity of the trial in the ledger; empty where it does not parse.
        seed: The inner run's seed; -1 where there is no trial.
        repeated: Whether this episode had proposed the class before.
        tokens: Tokens of the inner run's training.
        flops: Its estimated floating point operations.
    """

    program: str
    status: str
    score: float
    reason: str = ""
    structure: str = "invalid"
    key: str = ""
    trial: str = ""
    seed: int = -1
    repeated: bool = False
    tokens: int = 0
    flops: float = 0.0

    def info(self) -> dict[str, Any]:
        """All but the score, which is the environment's reward."""
        info = dataclasses.asdict(self)
        del info["score"]
        return info
