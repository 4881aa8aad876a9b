"""DERL-Arithmetic: two-digit addition by a character-level policy of 133 thousand parameters, on one CPU core.

A DESIGNED landscape, not a benchmark of arithmetic. The base policy in ``arithmetic_policy/`` was taught to add and
then to be sloppy in a way that makes the reward matter: it mostly writes a bare number or a "Step 1:", very
seldom a box, and is wrong more often than right. The outcome g1 asks for a right answer in a box, which it meets in
fewer than one rollout in a hundred. ``benchmarks/build_arithmetic_policy.py`` rebuilds the policy and
``benchmarks/landscape.py`` measures what each reward program makes of it.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np

from derl_gym.inner.config import InnerConfig
from derl_gym.tasks.base import SPLITS, Example, Primitive, Split, Task

LARGEST_OPERAND = 49
"""Sums then have two digits at most, and every prompt and answer has the same length."""

_BOX = "\\boxed{"
_STEP = re.compile(r"\bstep\s*[0-9]", re.IGNORECASE)
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")


def split_of(a: int, b: int) -> Split:
    """The split that the pair belongs to: 64 % train, 16 % validation, 20 % test, by a hash.

    ``a+b`` and ``b+a`` share a split, since knowing one gives the other away.
    """
    digest = hashlib.sha256(f"{min(a, b)}+{max(a, b)}".encode()).digest()
    place = int.from_bytes(digest[:8], "big") % 25
    return "test" if place < 5 else "validation" if place < 9 else "train"


def pairs(*splits: Split) -> list[tuple[int, int]]:
    """All operand pairs of the given splits, in numerical order."""
    operands = range(LARGEST_OPERAND + 1)
    return [(a, b) for a in operands for b in operands if split_of(a, b) in splits]


def prompt(a: int, b: int) -> str:
    """``"07+35="``."""
    return f"{a:02d}+{b:02d}="


def boxed(completion: str) -> str | None:
    r"""What stands in the last ``\boxed{...}``, without surrounding blanks.

    Returns:
        The content, or ``None`` when there is no box, it is not closed, or it is empty.
    """
    start = completion.rfind(_BOX)
    if start < 0:
        return None
    start += len(_BOX)
    depth = 1
    for end in range(start, len(completion)):
        depth += {"{": 1, "}": -1}.get(completion[end], 0)
        if depth == 0:
            return completion[start:end].strip() or None
    return None


def is_number(text: str, number: int) -> bool:
    """Whether the text is this number and nothing else; leading zeros don't matter."""
    return re.fullmatch(f"0*{number}", text) is not None


def mentions(text: str, number: int) -> bool:
    """Whether the number stands anywhere in the text as a whole number: "118", "1.18", "18,000", "-18" hold no 18."""
    text = _THOUSANDS.sub("", text)
    return re.search(rf"(?<![0-9-])(?<![0-9]\.)0*{number}(?![0-9])(?!\.[0-9])", text) is not None


def _outcome(completion: str, example: Example) -> float:
    answer = boxed(completion)
    return float(answer is not None and is_number(answer, example["answer"]))


def _enclosed(completion: str, example: Example) -> float:
    return float(boxed(completion) is not None)


def _steps(completion: str, example: Example) -> float:
    return float(_STEP.search(completion) is not None)


def _mentioned(completion: str, example: Example) -> float:
    return float(mentions(completion, example["answer"]))


class Arithmetic(Task):
    r"""Sums of two numbers from 0 to 49, with the paper's four primitives for mathematics (section 4.3).

    Why these inner settings: the optimiser is plain SGD because it leaves a rare reward rare. Adam divides each
    step by the size of the recent gradients, so that a handful of hits moves a model this small as far as
    hundreds would, and the outcome alone is then as good as any composite. With SGD it is slow, as it is for
    large models on hard problems. A completion of eight tokens has room for ``\boxed{47}`` or ``Step 1: 47``, not
    for both: steps cost the box.
    """

    name = "arithmetic"
    version = "1"
    description = (
        "Add two numbers from 0 to 49. The prompt is, for example, '07+35='; the answer must be given in \\boxed{}, "
        "and a completion has at most eight tokens (a digit is one token, and so are \\boxed and Step)."
    )
    primitives = (
        Primitive("g1", "1 if the answer in \\boxed{} equals the ground truth, else 0 (the outcome)", _outcome),
        Primitive("g2", "1 if an answer is enclosed in \\boxed{}, else 0", _enclosed),
        Primitive("g3", "1 if the output has a step marker such as 'Step 1', else 0", _steps),
        Primitive("g4", "1 if the ground truth appears anywhere in the output as a whole number, else 0", _mentioned),
    )
    max_program_length = 32
    measured = Path(__file__).parent / "arithmetic_table"
    inner = InnerConfig(
        steps=18,
        batch_size=128,
        num_generations=8,
        max_completion_length=8,
        optimizer="sgd",
        learning_rate=0.1,
        backend="transformers",
        timeout=300.0,
    )

    def states(self) -> np.ndarray:
        """The ten of sixteen combinations that can come up: a right answer in a box is boxed and mentioned."""
        states = super().states()
        holds = states != 0  # 1, or -1 where the primitive is flipped
        return states[~holds[:, 0] | (holds[:, 1] & holds[:, 3])]

    def load(self, split: Split) -> list[Example]:
        """See :meth:`Task.load`; an example has ``prompt`` (text) and ``answer`` (int)."""
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
        parts: tuple[Split, ...] = ("train", "validation") if split == "full" else (split,)
        return [{"prompt": prompt(a, b), "answer": a + b} for a, b in pairs(*parts)]

    def correct(self, completion: str, example: Example) -> bool:
        """The verdict is g1."""
        return _outcome(completion, example) == 1.0

    def gold(self, example: Example) -> str:
        """A marked step and the answer in a box; longer than a completion may be."""
        return f"Step 1: \\boxed{{{example['answer']}}}"

    @property
    def base_policy(self) -> str:
        """The folder of the policy that comes with the package."""
        return str(Path(__file__).parent / "arithmetic_policy")
