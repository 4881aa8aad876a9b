"""Tasks: one file each. ``base.py`` says what a task is."""

from derl_gym.inner.config import InnerConfig
from derl_gym.tasks.base import SPLITS, Example, Preset, Primitive, Split, Task, load_task

__all__ = ["SPLITS", "Example", "InnerConfig", "Preset", "Primitive", "Split", "Task", "load_task"]
