"""``check_task``: does a task of your own keep what :class:`derl_gym.tasks.Task` promises?

The test split is not opened.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np

from derl_gym.tasks import Example, Primitive, Task
from derl_gym.tasks.agent import AgentTask
from derl_gym.tasks.worlds import WorldFailed
from derl_gym.testing.report import Report

ODD_TEXTS = ("", " ", "\x00", "\ud800", "\\boxed{", "}" * 5000, "{" * 5000, "9" * 5000, "-" * 5000, "\u0664\u0662")
"""Outputs that a policy may well write and a primitive must survive."""
SHOWN = 5
"""Examples named per problem."""


def check_task(task: Task, limit: int | None = None) -> Report:
    """Check a task on its training and validation examples.

    Examples must be JSON-able, have a prompt, come in the same order each time and be on one side of the split only.
    Primitives must be named g1..gk and give a declared value on every text, odd ones included; an empty output must
    not be correct; and a gold solution, where the task knows one, must be correct and have every primitive at its best.
    Of an agent task one game per split is begun, and won by its walkthrough where the world knows one.

    Args:
        task: The task.
        limit: Check the gold solutions of only so many examples per split.

    Returns:
        Everything that was found; nothing is raised for a faulty task.
    """
    report = Report()
    names = [primitive.name for primitive in task.primitives]
    if names != [f"g{i + 1}" for i in range(len(names))]:
        report.problems.append(f"primitives must be named g1..gk in order, not {', '.join(names)}")
    splits: dict[str, list[Example]] = {}
    for split in ("train", "validation"):
        try:
            splits[split] = task.load(split)
            again = task.load(split)
        except Exception as error:
            report.problems.append(f"load({split!r}) fails: {type(error).__name__}: {error}")
            return report
        report.lines.append(f"{split}: {len(splits[split])} examples")
        report.problems += _about_examples(split, splits[split], again)
    report.lines += [f"read from {origin}" for origin in task.origins()]
    if report.problems:
        return report
    both = {_identity(example) for example in splits["train"]} & {_identity(e) for e in splits["validation"]}
    if both:
        report.problems.append(f"{len(both)} examples are both in train and validation: {_few(sorted(both))}")
    if report.problems:
        return report
    report.problems += _about_odd_texts(task, splits["train"][0])
    for split, examples in splits.items():
        if isinstance(task, AgentTask):
            _about_game(task, split, examples[0], report)
        else:
            _about_gold(task, split, examples[:limit], report)
    return report


def _about_examples(split: str, examples: Sequence[Example], again: Sequence[Example]) -> list[str]:
    if not examples:
        return [f"{split} is empty"]
    try:
        texts = [json.dumps(example, sort_keys=True) for example in examples]
    except (TypeError, ValueError) as error:
        return [f"an example of {split} is not JSON-able: {error}"]
    problems = []
    if texts != [json.dumps(example, sort_keys=True) for example in again]:
        problems.append(f"load({split!r}) gives other examples, or another order, the second time")
    bare = [i for i, example in enumerate(examples) if not isinstance(example.get("prompt"), str | list)]
    if bare:
        problems.append(f"examples of {split} need a prompt (text, or a list of messages): {_few(bare)} have none")
    return problems


def _about_odd_texts(task: Task, example: Example) -> list[str]:
    problems = []
    for text in ODD_TEXTS:
        shown = repr(text if len(text) <= 12 else f"{text[:9]}...")
        try:
            values = task.primitive_values([text], [example])[0]
            solved = task.correct(text, example)
        except Exception as error:
            problems.append(f"on the output {shown} it fails: {type(error).__name__}: {error}")
            continue
        for primitive, value in zip(task.primitives, values, strict=True):
            if not _declared(primitive, value):
                problems.append(f"{primitive.name} is {value!r} on the output {shown}, which it does not declare")
        if solved and not text.strip():
            problems.append(f"the output {shown} counts as correct")
    return problems


def _about_game(task: AgentTask, split: str, example: Example, report: Report) -> None:
    """Begin a game, and play its walkthrough."""
    game = example["game"]
    try:
        with task.open_pool(1) as pool:
            turn = pool.reset_all({0: game})[0]
            if isinstance(turn, WorldFailed):
                raise turn
            task.opening(turn)
            try:
                commands = pool.walkthrough(game)
            except (NotImplementedError, ValueError) as error:
                report.lines.append(f"{split}: game {game} begins; no walkthrough was played: {error}")
                return
            turn = pool.reset_all({0: game})[0]
            for command in commands:
                if isinstance(turn, WorldFailed):
                    raise turn
                task.message(turn)
                if turn.over:
                    break
                turn = pool.step_all({0: command})[0]
    except Exception as error:
        report.problems.append(f"game {game} of {split} cannot be played: {type(error).__name__}: {error}")
        return
    if isinstance(turn, WorldFailed) or not turn.won:
        report.problems.append(f"the walkthrough of game {game} of {split} does not win it: {turn}")
    report.lines.append(f"{split}: game {game} was played by its walkthrough of {len(commands)} commands")


def _about_gold(task: Task, split: str, examples: Sequence[Example], report: Report) -> None:
    golds = [(example, text) for example in examples if (text := task.gold(example)) is not None]
    if not golds:
        report.lines.append(f"{split}: the task knows no gold solutions (Task.gold), so none was checked")
        return
    wrong = [_identity(example) for example, text in golds if not task.correct(text, example)]
    values = np.asarray(task.primitive_values([text for _, text in golds], [example for example, _ in golds]))
    for j, primitive in enumerate(task.primitives):
        best = primitive.low if primitive.low < 0 else primitive.high  # a flipped primitive is at its best where lowest
        off = [_identity(golds[i][0]) for i in np.flatnonzero(values[:, j] != best)]
        if off:
            report.problems.append(
                f"{primitive.name} is not {best:g} on the gold solutions of {len(off)} {split} examples: {_few(off)}"
            )
    if wrong:
        report.problems.append(f"the gold solutions of {len(wrong)} examples of {split} are not correct: {_few(wrong)}")
    report.lines.append(
        f"{split}: {len(golds)} gold solutions, {len(golds) - len(wrong)} of them correct; mean primitives "
        + ", ".join(f"{p.name} {mean:.4g}" for p, mean in zip(task.primitives, values.mean(axis=0), strict=True))
    )


def _declared(primitive: Primitive, value: float) -> bool:
    if not math.isfinite(value):
        return False
    return primitive.low <= value <= primitive.high if primitive.values is None else value in primitive.values


def _identity(example: Example) -> str:
    """The prompt: what makes two examples the same problem."""
    return json.dumps(example["prompt"])


def _few(names: Sequence[object]) -> str:
    shown = ", ".join(str(name)[:60] for name in names[:SHOWN])
    return shown + (", ..." if len(names) > SHOWN else "")
