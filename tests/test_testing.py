"""The self-check of a task: what it accepts, and that each broken promise is named."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from derl_gym.tasks import Example, InnerConfig, Primitive, Split, Task
from derl_gym.tasks.arithmetic import Arithmetic
from derl_gym.testing import check_task


class Good(Task):
    """Write the number."""

    name, version, description = "good", "1", "Write the number."
    inner = InnerConfig()
    base_policy = "nowhere"
    primitives = (
        Primitive("g1", "right", lambda text, example: float(text == str(example["answer"]))),
        Primitive("g2", "short", lambda text, example: float(len(text) < 5)),
    )

    def load(self, split: Split) -> list[Example]:
        numbers = {"train": range(8), "validation": range(8, 10)}[split]
        return [{"prompt": f"{n}?", "answer": n} for n in numbers]

    def correct(self, completion: str, example: Example) -> bool:
        return completion == str(example["answer"])

    def gold(self, example: Example) -> str | None:
        return str(example["answer"])


def test_good_tasks_pass() -> None:
    report = check_task(Good())
    assert report.problems == []
    assert report.lines == [
        "train: 8 examples",
        "validation: 2 examples",
        "train: 8 gold solutions, 8 of them correct; mean primitives g1 1, g2 1",
        "validation: 2 gold solutions, 2 of them correct; mean primitives g1 1, g2 1",
    ]
    assert check_task(Arithmetic()).problems == []


COUNT = itertools.count()


def broken(**parts: Any) -> Task:
    return type("Broken", (Good,), parts)()


@pytest.mark.parametrize(
    "task, problem",
    [
        (broken(load=lambda self, split: []), "train is empty"),
        (broken(load=lambda self, split: 1 / 0), "load('train') fails: ZeroDivisionError"),
        (
            broken(load=lambda self, split: [{"prompt": "1?", "answer": 1}]),
            "1 examples are both in train and validation",
        ),
        (broken(load=lambda self, split: [{"prompt": split, "answer": {1}}]), "train is not JSON-able"),
        (broken(load=lambda self, split: [{"answer": split}]), "need a prompt"),
        (
            broken(load=lambda self, split: [{"prompt": f"{split} {next(COUNT)}", "answer": 1}]),
            "another order, the second time",
        ),
        (broken(correct=lambda self, text, example: True), "the output '' counts as correct"),
        (broken(correct=lambda self, text, example: text[0] == "7"), "on the output '' it fails: IndexError"),
        (
            broken(correct=lambda self, text, example: False),
            "the gold solutions of 8 examples of train are not correct",
        ),
        (broken(gold=lambda self, example: "123456"), "g2 is not 1 on the gold solutions of 8 train examples"),
        (
            broken(primitives=(Primitive("g1", "length", lambda text, example: float(len(text))),)),
            "g1 is 5000.0 on the output '}}}}}}}}}...', which it does not declare",
        ),
        (
            broken(primitives=(Primitive("g1", "nan", lambda text, example: float("nan")),)),
            "g1 is nan on the output ''",
        ),
        (broken(primitives=(Primitive("right", "x", lambda text, example: 1.0),)), "named g1..gk in order, not right"),
    ],
)
def test_a_broken_promise_is_named(task: Task, problem: str) -> None:
    assert any(problem in found for found in check_task(task).problems), check_task(task).problems


def test_a_task_without_gold_solutions_says_so() -> None:
    report = check_task(broken(gold=lambda self, example: None))
    assert report.problems == [] and "knows no gold solutions" in report.lines[-1]
