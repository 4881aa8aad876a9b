r"""GSM8K and MATH: the paper's mathematical tasks (sections 4.1 to 4.4) with its primitives and settings.

Three tasks: trained and tested on GSM8K, trained on MATH, trained on both; the last two are tested on both, as in the
paper's Table 2. How an answer is found and compared is in answers.py, where the data comes from in data.py.
"""

from __future__ import annotations

import re
from typing import ClassVar

from derl_gym.inner.config import InnerConfig
from derl_gym.tasks.answers import boxed, equal, final_answer, mentions
from derl_gym.tasks.base import SPLITS, Example, Preset, Primitive, Split, Task
from derl_gym.tasks.data import Row, Source, load_rows, origin, split_rows

SOURCES: dict[str, Source] = {
    "gsm8k": Source(
        "gsm8k",
        hub=("openai/gsm8k", "main"),
        fields=("question", "answer"),
        rows={"train": 7473, "test": 1319},
        sha256={
            "train": "0f5caed26820a3ce924bf9ba1c777ca0b8a76dde1b825ad1269bb244c76653d1",
            "test": "ae6a977c3224d773ee7384cbf8d047eca5ac483cc88a182edc96fa2a90c2c31e",
        },
    ),
    "math": Source(
        "math",
        hub=("DigitalLearningGmbH/MATH-lighteval", "default"),
        fields=("problem", "solution"),
        rows={"train": 7500, "test": 5000},
        sha256={
            "train": "3ba548d0865bcc6f1793a9e4a2ae92e033e2dac1d9b5574e82c82a867336d47c",
            "test": "9f86c4b91416dd25b9b18daee043ddcfa38eb5926e6eb44a8d3f989e8b6ad81f",
        },
    ),
}
"""Benchmark -> its original training and test set. The hashes are those of openai/grade-school-math@3101c7d and
hendrycks/math."""

REQUEST = "Think step by step, and give the final answer in \\boxed{}."
_STEP = re.compile(r"\bstep\s*[0-9]", re.IGNORECASE)
_NUMBERED = [re.compile(rf"^[ \t>*#-]*{n}[.)]\s", re.MULTILINE) for n in (1, 2)]
_CALCULATION = re.compile(r"<<[^<>]*>>")


def has_steps(completion: str) -> bool:
    """Whether step markers appear: "Step 1", or lines numbered 1. and 2."""
    return _STEP.search(completion) is not None or all(line.search(completion) for line in _NUMBERED)


def solves(completion: str, truth: str) -> bool:
    r"""Whether the answer that the output commits to, in ``\boxed{}`` or after ``####``, equals the truth."""
    answer = final_answer(completion)
    return answer is not None and equal(answer, truth)


PRIMITIVES = (
    Primitive(
        "g1",
        "1 if the final answer (in \\boxed{} or after ####) equals the ground truth, else 0 (the outcome)",
        lambda completion, example: float(solves(completion, example["answer"])),
    ),
    Primitive(
        "g2",
        "1 if an answer is enclosed in \\boxed{}, else 0",
        lambda completion, example: float(boxed(completion) is not None),
    ),
    Primitive(
        "g3",
        "1 if the output has step markers such as 'Step 1', else 0",
        lambda completion, example: float(has_steps(completion)),
    ),
    Primitive(
        "g4",
        "1 if the ground truth appears anywhere in the output as a whole number or token, else 0",
        lambda completion, example: float(mentions(completion, example["answer"])),
    ),
)

SMOKE = {
    "policy": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "epochs": None,
    "steps": 2,
    "batch_size": 8,
    "num_generations": 4,
    "micro_batch_size": 4,
    "updates_per_generation": 1,
    "max_prompt_length": 512,
    "max_completion_length": 32,
    "eval_max_completion_length": 32,
    "eval_examples": 16,
    "eval_batch_size": 16,
    "gradient_checkpointing": False,
    "vllm_sleep": False,
    "learning_rate": 1e-5,
}
SINGLE_GPU = {
    "policy": "Qwen/Qwen2.5-1.5B-Instruct",
    "epochs": 1.0,
    "lora_rank": 32,
    "lora_alpha": 64.0,
    "dtype": "bfloat16",
    "learning_rate": 2e-5,
    "updates_per_generation": 2,
    "max_seconds": 3600.0,
}


class Mathematics(Task):
    """What the mathematical tasks share: primitives, prompt, verdict, the paper's settings.

    The settings are those of the paper (section 4.1 and appendices C and H), and of its released code where the paper
    is silent: 64 prompts of eight rollouts per optimiser step, 1,024 prompts per generation phase, learning rate 1e-6,
    KL weight 0.001, prompts and completions of 512 tokens, greedy evaluation with 1,024.

    Args:
        data_dir: Folder of local data; see :func:`derl_gym.tasks.data.load_rows`.
        split_seed: Seed of the 8:2 split of the original training set.
        check_data: Refuse data that are not the published ones.
    """

    version = "1"
    primitives = PRIMITIVES
    max_program_length = 64
    trained_on: ClassVar[tuple[str, ...]]
    tested_on: ClassVar[tuple[str, ...]]
    policy: ClassVar[str]

    inner = InnerConfig(
        epochs=10,
        batch_size=512,
        num_generations=8,
        micro_batch_size=8,
        updates_per_generation=16,
        max_prompt_length=512,
        max_completion_length=512,
        eval_max_completion_length=1024,
        learning_rate=1e-6,
        beta=0.001,
        eval_temperature=0.0,
        eval_batch_size=64,
        gradient_checkpointing=True,
        vllm_sleep=True,
        max_seconds=3.5 * 3600,
        max_flops_ratio=1.3,
        timeout=8 * 3600.0,
    )
    final_inner: ClassVar[dict] = {"epochs": 15, "max_seconds": None, "timeout": 72 * 3600.0}
    presets: ClassVar[dict[str, Preset]] = {
        "paper": Preset(
            "the paper's settings; every inner run on an 80 GB GPU of its own",
            full_inner={"epochs": 2},
            outer_steps=8,
            full_outer_steps=7,
            proposer="Qwen/Qwen2.5-0.5B-Instruct",
            gpu_memory=80,
        ),
        "single-gpu": Preset(
            "a search in about a day on one 80 GB GPU: adapters on a 1.5B policy, one epoch per inner run",
            inner=SINGLE_GPU,
            final_inner={"epochs": 3},
            full_inner={"epochs": 0.5},
            outer_steps=5,
            group_size=4,
            proposer="Qwen/Qwen2.5-0.5B-Instruct",
            gpu_memory=80,
        ),
        "smoke": Preset(
            "two steps of a 135M policy on two CPU cores: every code path in minutes, no result",
            inner=SMOKE,
            final_inner={"epochs": None, "steps": 2, "eval_examples": 32, "timeout": 3600.0},
            full_inner={"steps": 1, "epochs": None},
            outer_steps=1,
            full_outer_steps=2,
            group_size=2,
        ),
    }

    def __init__(self, data_dir: str | None = None, split_seed: int = 0, check_data: bool = True) -> None:
        super().__init__(data_dir)
        self.split_seed = split_seed
        self.check_data = check_data
        self._loaded: dict[str, list[Example]] = {}

    def load(self, split: Split) -> list[Example]:
        """See :meth:`Task.load`.

        An example has ``prompt``, ``messages``, ``answer`` (the ground truth), ``solution`` and ``benchmark``.
        """
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
        if split == "test":
            return [_example(benchmark, row) for benchmark in self.tested_on for row in self._rows(benchmark, "test")]
        if split == "full":
            return self.load("train") + self.load("validation")
        if not self._loaded:
            parts: dict[str, list[Example]] = {"train": [], "validation": []}
            for benchmark in self.trained_on:
                halves = split_rows(self._rows(benchmark, "train"), SOURCES[benchmark].fields[0], self.split_seed)
                for part, half in zip(parts.values(), halves, strict=True):
                    part += [_example(benchmark, row) for row in half]
            self._loaded = parts
        return list(self._loaded[split])

    def origins(self) -> list[str]:
        """See :meth:`Task.origins`."""
        return [origin(SOURCES[benchmark], "train", self.data_dir) for benchmark in self.trained_on]

    def _rows(self, benchmark: str, split: str) -> list[Row]:
        r"""Without MATH's two training problems whose ``\boxed{}`` is empty: they have no ground truth."""
        rows = load_rows(SOURCES[benchmark], split, self.data_dir, self.check_data)
        return [row for row in rows if "\\boxed{}" not in row.get("solution", "")]

    def correct(self, completion: str, example: Example) -> bool:
        """The verdict is g1 as it is, flipped or not: exact match of the final answer."""
        return solves(completion, example["answer"])

    def gold(self, example: Example) -> str:
        """The data set's own solution, with its steps marked and its answer boxed."""
        lines = [line for line in example["solution"].splitlines() if line.strip()]
        steps = [f"Step {i}: {line}" for i, line in enumerate(lines, start=1)]
        return "\n".join([*steps, f"The answer is $\\boxed{{{example['answer']}}}$."])

    @property
    def base_policy(self) -> str:
        """The paper's inner policy."""
        return self.policy


class GSM8K(Mathematics):
    """Grade-school word problems with whole numbers as answers (Cobbe et al., 2021), the paper's section 5 studies."""

    name = "gsm8k"
    description = (
        "Solve a grade-school mathematics word problem, step by step, and give the final answer in \\boxed{}. Every "
        "answer is a whole number."
    )
    trained_on = tested_on = headline = ("gsm8k",)
    policy = "Qwen/Qwen2.5-1.5B"


class MATH(Mathematics):
    """Competition mathematics (Hendrycks et al., 2021); tested on GSM8K as well, where the headline is MATH."""

    name = "math"
    description = (
        "Solve a problem of competition mathematics, step by step, and give the final answer in \\boxed{}. Answers are "
        "numbers or expressions in LaTeX."
    )
    trained_on = headline = ("math",)
    tested_on = ("math", "gsm8k")
    policy = "Qwen/Qwen2.5-3B"


class MATHAndGSM8K(Mathematics):
    """Both together (the paper's Table 2, second half). The score is the mean of the two accuracies."""

    name = "math-gsm8k"
    description = (
        "Solve a mathematical problem, from grade-school word problems to competition mathematics, step by step, and "
        "give the final answer in \\boxed{}."
    )
    trained_on = tested_on = headline = ("math", "gsm8k")
    policy = "Qwen/Qwen2.5-3B"


def truth(benchmark: str, row: Row) -> str:
    r"""The ground truth of a row: what follows ``####`` in GSM8K, the last ``\boxed{}`` in MATH.

    Raises:
        ValueError: when the row names none.
    """
    if benchmark == "gsm8k":
        _, mark, answer = row["answer"].rpartition("####")
        found = answer.strip().replace(",", "") if mark else None
    else:
        found = boxed(row["solution"])
    if not found:
        raise ValueError(f"a {benchmark} problem has no ground truth: {next(iter(row.values()))[:100]!r}")
    return found


def _example(benchmark: str, row: Row) -> Example:
    problem, solution = row.values()
    if benchmark == "gsm8k":
        solution = _CALCULATION.sub("", solution.rpartition("####")[0])
    return {
        "prompt": f"Problem: {problem}\n{REQUEST}\nSolution:",
        "messages": [{"role": "user", "content": f"{problem}\n{REQUEST}"}],
        "answer": truth(benchmark, row),
        "solution": solution.strip(),
        "benchmark": benchmark,
    }
