"""What all subcommands share: the base class, KEY=VALUE arguments and the environment's settings as flags."""

from __future__ import annotations

import abc
import ast
import dataclasses
import datetime
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import gymnasium as gym
import tyro
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

import derl_gym  # noqa: F401  (registers the ids)
from derl_gym.envs.settings import make_settings
from derl_gym.secrets import refuse_secrets

INNER_RUN = ("torch", "transformers", "trl", "accelerate", "datasets", "safetensors", "peft", "math_verify")
"""Packages of the extra ``train``, by their import names."""


class Failed(Exception):
    """Something failed that was no mistake of the user's: exit code 1."""


@dataclasses.dataclass(kw_only=True)
class Command(abc.ABC):
    """A subcommand. Its fields are its arguments."""

    debug: tyro.conf.FlagCreatePairsOff[bool] = False
    """Show the traceback of an error."""

    resumable: ClassVar[Path | None] = None
    """Folder that ``derl-gym resume`` can take up, once there is one."""

    @abc.abstractmethod
    def run(self) -> int:
        """Do it. Returns the exit code."""


EnvironmentId = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
Folder = Annotated[Path | None, tyro.conf.arg(metavar="DIR")]
_Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")]


@dataclasses.dataclass
class RunSettings:
    """The environment's settings that bear on single inner runs; what is left out is as the id says."""

    preset: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Settings for a machine of some size, such as paper, single-gpu or smoke; other flags outrank it."""
    workers: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    """Inner runs at a time."""
    pool: Literal["processes", "ray"] | None = None
    """Where inner runs go: processes of this machine, or a Ray cluster (of RAY_ADDRESS, or one that runs here)."""
    inner: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE ...")] = ()
    """Settings of the inner runs as KEY=VALUE: --inner steps=16 learning_rate=2e-3."""
    variant: Literal["base", "full"] | None = None
    """"full": the best policy of each outer step starts the next one."""
    primitives: _Names = ()
    """Primitives that programs may use; without it, all."""
    flip: _Names = ()
    """Primitives whose sign is turned round."""
    mask: Literal["grammar", "charset"] | None = None
    """Legal next tokens: the grammar's, or any of the alphabet as in the paper."""
    cache_dir: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of scores shared between run directories."""
    data_dir: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Local data, for tasks that read some."""
    task_options: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE ...")] = ()
    """Options of the task as KEY=VALUE: --task-options check_data=False."""
    keep_policies: tyro.conf.FlagCreatePairsOff[bool] = False
    """Keep every trained inner policy."""
    on_infrastructure_failure: Literal["raise", "zero"] | None = None
    """What a run that failed for good does: stop the search, or count as 0."""

    def to_dict(self) -> dict[str, Any]:
        """Keyword arguments of ``gym.make``: what was given."""
        fields = dataclasses.fields(self)
        given = {field.name: value for field in fields if (value := getattr(self, field.name)) != field.default}
        for name in ("inner", "task_options"):
            if name in given:
                given[name] = pairs(given[name], f"--{name.replace('_', '-')}")
        for name in ("primitives", "flip"):
            if name in given:
                given[name] = list(given[name])
        return given


@dataclasses.dataclass
class Settings(RunSettings):
    """All settings of the environment."""

    outer_steps: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Outer steps of a search."""
    group_size: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Programs per outer step."""
    cache: Literal["equivalent", "exact", "off", "bundled"] | None = None
    """One inner run per class of equal programs, per text, or for every proposal; or trials measured beforehand."""
    on_miss: Literal["run", "error"] | None = None
    """What --cache bundled does with a program that was not measured."""
    max_program_length: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Longest program in tokens, in the place of the task's."""
    max_digits: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Most digits of a number before the point, and after it."""
    halving: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Halve the group N times while it trains: the worse half of an outer step's programs stops early each time."""


def pairs(texts: Iterable[str], flag: str) -> dict[str, Any]:
    """Read KEY=VALUE arguments. A value is JSON or a Python literal; anything else is a string.

    Raises:
        ValueError: for an argument that is no pair, a key that comes twice, or a secret: settings are written down.
    """
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ValueError(f"{flag} expects KEY=VALUE, not {text!r}")
        if key in found:
            raise ValueError(f"{flag} got {key} twice")
        found[key] = _value(value)
    refuse_secrets(found, flag)
    return found


def _value(text: str) -> Any:
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return text


def make_envs(environment: str, settings: dict[str, Any], run_dir: Path, **fixed: Any) -> VectorEnv:
    """The vector environment of an id.

    Raises:
        ImportError: when a package that inner runs need is missing.
        ValueError: for an id that is not registered, or settings that are out of range.
    """
    spec = find_spec(environment)
    named = (settings.get("inner", {}).get("backend"), settings.get("pool"))
    check_packages(*(name for name in ("vllm", "ray") if name in named))
    settings = settings | fixed | {"run_dir": str(run_dir)}
    if "task_options" in settings:
        settings["task_options"] = (spec.kwargs.get("task_options") or {}) | settings["task_options"]
    size = make_settings(spec.kwargs | settings).group_size
    settings.pop("group_size", None)
    return gym.make_vec(spec.id, num_envs=size, **settings)


def check_packages(*more: str) -> None:
    """Say at once that inner runs cannot start here, instead of after the first proposals.

    Args:
        *more: Packages that are needed besides those of the extra ``train``, each with an extra of its name.

    Raises:
        ImportError: when one is missing.
    """
    if missing := [name for name in (*INNER_RUN, *more) if importlib.util.find_spec(name) is None]:
        extra = missing[0] if missing[0] in more else "train"
        raise ImportError(f"inner runs need {', '.join(missing)}: pip install 'derl-gym[{extra}]'")


def find_spec(environment: str) -> EnvSpec:
    """The registration of an id, after an import of the module before its colon, if there is one.

    Raises:
        ImportError: when the module is not found here or on the path.
        ValueError: for an id that is not registered, or another package's environment.
    """
    module, _, name = environment.rpartition(":")
    if module:
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())  # as `python -m` does; a script's path has the script's folder instead
        importlib.import_module(module)
    try:
        spec = gym.spec(name)
    except gym.error.Error as error:
        known = ", ".join(derl_gym.ENVIRONMENTS)
        hint = "" if module else "; an id of your own package is written my_package:ID"
        raise ValueError(f"{str(error).rstrip('.')}; derl_gym has {known}, and what you register{hint}") from error
    if "task" not in spec.kwargs:
        raise ValueError(f"{name} is no environment of derl_gym: its registration names no task")
    return spec


def new_folder(environment: str, what: str) -> Path:
    """Where results go when ``--out`` is not given."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / environment.rpartition(":")[2] / f"{what}-{stamp}"
