"""Tasks by reference, and what is said of one that cannot be built."""

from __future__ import annotations

import pytest
from toy_tasks import Digits

from derl_gym.tasks import load_task


class Nameless(Digits):
    base_policy = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    "reference, message",
    [
        (
            "toy_tasks:Nothing",
            "no task at 'toy_tasks:Nothing' .expected 'package.module:Class'.: module 'toy_tasks' has",
        ),
        ("no_such_module:Task", "no task at 'no_such_module:Task'.*No module named"),
        ("", "no task at ''"),
        ("pathlib:Path", "'pathlib:Path' is <class 'pathlib.Path'>, not a subclass of derl_gym.tasks.base.Task"),
        (f"{__name__}:Nameless", "Nameless names no base_policy: the hub name or folder"),
    ],
)
def test_a_task_that_cannot_be_built_says_why(reference: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_task(reference)


def test_flips_are_checked() -> None:
    with pytest.raises(ValueError, match="cannot flip g9: task digits has g1, g2"):
        load_task("toy_tasks:Digits", flip=["g9"])
