"""What goes into a search and what comes out of each proposal: the environments' arguments and infos."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from derl_gym.fields import check_fields
from derl_gym.inner.config import InnerConfig
from derl_gym.tasks.base import Preset, task_class
from derl_gym.trials.bundled import made as table_description

MACHINE = ("run_dir", "workers", "pool", "cache_dir", "on_infrastructure_failure")
"""Settings that say how a search is run and not which: they may change when it is taken up again."""
FROM_PRESET = ("outer_steps", "group_size", "proposer")
"""Settings that a preset brings, besides the inner ones."""
ADDED = {"halving": 0, "max_program_length": None, "max_digits": None, "on_miss": "run"}
"""Settings that early ledgers do not know, with what they stand for there."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The keyword arguments of every environment id; all JSON-able. See :class:`RewardDesignEnv`.

    Made by :func:`make_settings`, they hold what the preset says as plain values.
    """

    task: str
    preset: str | None = None
    task_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    variant: Literal["base", "full"] = "base"
    outer_steps: int = 10
    group_size: int = 8
    inner: dict[str, Any] = dataclasses.field(default_factory=dict)
    final_inner: dict[str, Any] = dataclasses.field(default_factory=dict)
    proposer: str = "small"
    primitives: Sequence[str] | None = None
    flip: Sequence[str] = ()
    mask: Literal["grammar", "charset"] = "grammar"
    max_program_length: int | None = None
    max_digits: int | None = None
    pool: Literal["processes", "ray"] = "processes"
    workers: int = 1
    run_dir: str | None = None
    cache: Literal["equivalent", "exact", "off", "bundled"] = "equivalent"
    on_miss: Literal["run", "error"] = "run"
    cache_dir: str | None = None
    data_dir: str | None = None
    keep_policies: bool = False
    halving: int = 0
    on_infrastructure_failure: Literal["raise", "zero"] = "raise"

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.integer):
                object.__setattr__(self, field.name, int(value))
            elif isinstance(value, os.PathLike):
                object.__setattr__(self, field.name, os.fspath(value))
        positive = ("outer_steps", "group_size", "workers", "max_program_length", "max_digits")
        check_fields(self, at_least=dict.fromkeys(positive, 1) | {"halving": 0})
        try:
            json.dumps(dataclasses.asdict(self))
        except (TypeError, ValueError) as error:
            raise ValueError(f"settings must be JSON-able: {error}") from error
        if self.cache_dir is not None and self.variant == "full":
            raise ValueError("cache_dir shares scores, not policies; variant='full' needs the policies")
        if self.cache == "bundled" and (self.variant == "full" or self.halving or self.keep_policies):
            raise ValueError(
                "cache='bundled' has the scores of whole trainings that start from the base policy, and no policies: "
                "variant='full', halving and keep_policies need inner runs"
            )
        if self.on_miss == "error" and self.cache != "bundled":
            raise ValueError(f"on_miss='error' is for cache='bundled', not for cache={self.cache!r}")


def make_settings(given: dict[str, Any]) -> Settings:
    """The settings among keyword arguments, with everything that the preset and the task say filled in.

    A ledger that records them can go on when a preset has changed. ``None`` stands for what the preset says.

    Raises:
        TypeError: for a name that is no setting.
        ValueError: for a value that is out of range, or a preset that the task has not.
    """
    known = [field.name for field in dataclasses.fields(Settings)]
    if unknown := sorted(set(given) - set(known)):
        raise TypeError(f"unknown setting {', '.join(unknown)}; expected some of {', '.join(sorted(known))}")
    given = {key: value for key, value in given.items() if value is not None or key not in FROM_PRESET}
    settings = Settings(**given)  # what is wrong with single values is said before the task is looked at
    task = task_class(settings.task)
    preset = preset_of(settings.task, settings.preset) or Preset("")
    full = settings.variant == "full"
    chosen: dict[str, Any] = {"group_size": preset.group_size, "outer_steps": preset.outer_steps}
    if full and preset.full_outer_steps is not None:
        chosen["outer_steps"] = preset.full_outer_steps
    chosen |= {"proposer": preset.proposer} | {key: given[key] for key in FROM_PRESET if key in given}
    if settings.cache == "bundled":
        if task.measured is None:
            raise ValueError(f"cache='bundled' needs a task with a table of measured trials; {settings.task} has none")
        language = table_description(task.measured)["language"]
        chosen |= {name: size for name, size in language.items() if getattr(settings, name) is None}
    return dataclasses.replace(
        settings,
        **chosen,
        inner=layered(task.inner, preset.inner, preset.full_inner if full else {}, settings.inner),
        final_inner=layered(task.inner, task.final_inner, preset.final_inner, settings.final_inner),
    )


def preset_of(task: str, name: str | None) -> Preset | None:
    """A task's preset by name.

    Raises:
        ValueError: when the task has none of this name; the message lists those it has.
    """
    presets = task_class(task).presets
    if name is None:
        return None
    if name not in presets:
        raise ValueError(f"there is no preset {name!r}: {task} has {', '.join(presets) or 'none'}")
    return presets[name]


def layered(base: InnerConfig, *layers: dict[str, Any]) -> dict[str, Any]:
    """Changes to inner settings laid over each other, the later ones on top.

    ``steps`` and ``epochs`` say the same thing: a layer that names ``steps`` alone takes back an ``epochs`` below it.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        if "steps" in layer and "epochs" not in layer and merged.get("epochs", base.epochs) is not None:
            merged["epochs"] = None
        merged |= layer
    return merged


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
        stopped: Whether successive halving ended its training early: the score is that of a rung.
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
    stopped: bool = False

    def info(self) -> dict[str, Any]:
        """All but the score, which is the environment's reward."""
        info = dataclasses.asdict(self)
        del info["score"]
        return info
