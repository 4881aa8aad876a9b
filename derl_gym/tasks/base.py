"""What a task is: data, a prompt, primitives, a verdict.

A task is one small object. The environment reads its primitives and instruction, the inner run its
examples and base policy. This file holds no task and imports nothing heavier than numpy.
"""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from derl_gym.inner.config import InnerConfig
from derl_gym.programs import states_of
from derl_gym.references import find_class

Example = dict[str, Any]
"""One problem: JSON-able, with a ``"prompt"`` (text, or a list of chat messages) and what the verdict needs.

``"messages"``, where it is there, is what a chat model reads instead. ``"benchmark"`` names the data set that it is
from, where a task has several.
"""

Split = Literal["train", "validation", "full", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "full", "test")


@dataclasses.dataclass(frozen=True)
class Primitive:
    """One executable signal g_i of the reward vocabulary (paper section 4.3).

    Attributes:
        name: ``"g1"`` .. ``"gk"``. g1 is always the outcome.
        description: One line that a proposer reads.
        function: ``function(completion, example) -> float``.
        values: The values that it can take, ``(0.0, 1.0)`` when binary; ``None`` when any value between
            ``low`` and ``high`` can come.
        low: Smallest value.
        high: Largest value.
    """

    name: str
    description: str
    function: Callable[[str, Example], float] = dataclasses.field(compare=False)
    values: tuple[float, ...] | None = (0.0, 1.0)
    low: float = 0.0
    high: float = 1.0

    def flipped(self) -> Primitive:
        """The primitive with its sign turned round: the paper's "flip" ablation (section 5.3)."""
        function = self.function
        return dataclasses.replace(
            self,
            description=f"minus ({self.description})",
            function=lambda completion, example: -function(completion, example),
            values=None if self.values is None else tuple(sorted(0.0 - v for v in self.values)),
            low=-self.high,
            high=-self.low,
        )


@dataclasses.dataclass(frozen=True)
class Preset:
    """Settings of a search that fit a machine; what a preset leaves out is as the task has it.

    Attributes:
        description: For whom it is, in one line.
        inner: Overrides of ``Task.inner``.
        final_inner: What is different in the final training, besides ``Task.final_inner``.
        full_inner: What is different in an inner run of variant "full".
        outer_steps: Outer steps of a search.
        full_outer_steps: The same in variant "full"; ``None``: as many.
        group_size: Programs per outer step.
        proposer: Model of a proposer that is a language model: ``"small"`` (built in), a hub name or a folder.
        gpu_memory: GiB on one GPU that an inner run is planned for; 0: it needs no GPU.
    """

    description: str
    inner: dict[str, Any] = dataclasses.field(default_factory=dict)
    final_inner: dict[str, Any] = dataclasses.field(default_factory=dict)
    full_inner: dict[str, Any] = dataclasses.field(default_factory=dict)
    outer_steps: int = 10
    full_outer_steps: int | None = None
    group_size: int = 8
    proposer: str = "small"
    gpu_memory: int = 0


class Task(abc.ABC):
    """A problem set with a reward vocabulary.

    Subclasses set the class attributes and write :meth:`load` and :meth:`correct`; see
    ``derl_gym/tasks/arithmetic.py`` for the smallest complete one. A task must be constructible from
    JSON-able keyword arguments, since every inner run builds it anew in its own process.

    Attributes:
        name: Short name, as in the environment's id.
        version: Changes whenever a score could change; part of every trial's identity.
        description: What the inner policy is asked to do, for the proposer's instruction.
        primitives: g1..gk in order.
        max_program_length: Longest program, in tokens of the grammar's alphabet, END not counted.
        inner: Default settings of an inner run.
        final_inner: What is different in the final training: more steps, say.
        base_policy: Hub name or folder of the model that every inner run starts from.
        presets: Settings for machines of several sizes, by name.
        headline: Benchmarks whose unweighted mean accuracy is a policy's score; empty: all examples count alike.
        measured: Folder of a table of measured trials for ``cache="bundled"``; see :mod:`derl_gym.trials.bundled`.
    """

    name: ClassVar[str]
    version: ClassVar[str]
    description: ClassVar[str]
    primitives: tuple[Primitive, ...]
    max_program_length: ClassVar[int] = 32
    inner: ClassVar[InnerConfig]
    base_policy: str
    final_inner: ClassVar[dict[str, Any]] = {}
    presets: ClassVar[dict[str, Preset]] = {}
    headline: ClassVar[tuple[str, ...]] = ()
    measured: ClassVar[Path | None] = None

    def __init__(self, data_dir: str | None = None) -> None:
        self.data_dir = data_dir

    @abc.abstractmethod
    def load(self, split: Split) -> list[Example]:
        """The examples of a split, always in the same order.

        ``"train"`` and ``"validation"`` are the 8:2 parts of the original training set (paper section 4.2),
        ``"full"`` is their union, for the final policy, and ``"test"`` is opened only by the final evaluation.
        """

    @abc.abstractmethod
    def correct(self, completion: str, example: Example) -> bool:
        """The verdict: does this completion solve the example? Its mean is the validation score."""

    def gold(self, example: Example) -> str | None:
        """A completion that solves the example and to which every primitive agrees; ``None``: unknown.

        See :func:`derl_gym.testing.check_task`.
        """
        return None

    def origins(self) -> list[str]:
        """Where the training data are read from: files, or names on the hub; empty: the task doesn't say."""
        return []

    def missing(self) -> list[str]:
        """What this machine lacks to run the task, in words that say what to do; empty: nothing.

        The training data are loaded, which is the surest check. Where that takes long, a task looks at what it needs.

        Raises:
            FileNotFoundError: the data are not on this machine, and may still be fetched from the hub.
        """
        return [] if self.load("train") and self.load("validation") else ["its data are empty"]

    def record(self, split: Split) -> dict[str, Any]:
        """What a split holds, for the ledger: ``examples`` (how many) and ``sha256`` (of their content, in order)."""
        examples = self.load(split)
        digest = hashlib.sha256()
        for example in examples:
            digest.update(json.dumps(example, sort_keys=True).encode())
        return {"examples": len(examples), "sha256": digest.hexdigest()}

    def states(self) -> np.ndarray:
        """Float64 (S, k): the combinations of primitive values that can come up.

        Programs that agree on them up to a positive affine map are one trial. A task that knows some combination
        to be impossible leaves it out.
        """
        return states_of(self.primitives)

    def primitive_values(self, completions: Sequence[str], examples: Sequence[Example]) -> list[list[float]]:
        """Every primitive on every completion: N rows of k floats."""
        return [
            [float(p.function(completion, example)) for p in self.primitives]
            for completion, example in zip(completions, examples, strict=True)
        ]


def task_class(reference: str) -> type[Task]:
    """The class that ``"package.module:Class"`` names.

    Raises:
        ValueError: when there is no such task.
    """
    return find_class(reference, Task, "task")  # type: ignore[type-abstract]


def load_task(reference: str, options: dict[str, Any] | None = None, flip: Sequence[str] = ()) -> Task:
    """Build the task that ``"package.module:Class"`` names.

    Args:
        reference: Where the class is. A task must live in an importable module (not in ``__main__``), since
            inner runs build it in their own processes.
        options: JSON-able keyword arguments of the class.
        flip: Names of primitives whose sign is turned round (paper section 5.3).

    Raises:
        ValueError: when there is no such task, it has no such primitive, or it names no base policy.
    """
    task = task_class(reference)(**(options or {}))
    if not isinstance(getattr(task, "base_policy", None), str):
        raise ValueError(f"{reference} names no base_policy: the hub name or folder of the model that it starts from")
    names = [primitive.name for primitive in task.primitives]
    if unknown := sorted(set(flip) - set(names)):
        raise ValueError(f"cannot flip {', '.join(unknown)}: task {task.name} has {', '.join(names)}")
    task.primitives = tuple(p.flipped() if p.name in flip else p for p in task.primitives)
    return task
