"""Tasks: one file each. ``base.py`` says what a task is."""

from derl_gym.inner.config import InnerConfig
from derl_gym.tasks.base import SPLITS, Example, Primitive, Split, Task, load_task

__all__ = ["SPLITS", "Example", "InnerConfig", "Primitive", "Split", "Task", "load_task"]
