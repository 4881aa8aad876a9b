"""GSM8K and MATH: prompts, truths, splits, and the four primitives on outputs of every kind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from derl_gym.tasks import Split, load_task
from derl_gym.tasks.mathematics import GSM8K, MATH, PRIMITIVES, MATHAndGSM8K, has_steps, truth
from derl_gym.testing import check_task

STAR = {
    "question": "Two and two?",
    "answer": "Two and two is 2+2=<<2+2=4>>4.\nTimes 300 is <<4*300=1200>>1200.\n#### 1,200",
}
HALF = {"problem": "What is one over two?", "solution": "It is $\\boxed{\\frac{1}{2}}$."}


@pytest.fixture
def own_data(tmp_path: Path) -> str:
    """Ten problems of each kind, written here."""
    for name, row in (("gsm8k", STAR), ("math", HALF)):
        (tmp_path / name).mkdir()
        field = next(iter(row))
        for split in ("train", "test"):
            rows = [{**row, field: f"{row[field]} ({split} {n})"} for n in range(10)]
            (tmp_path / name / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return str(tmp_path)


def test_an_example_of_each_kind(own_data: str) -> None:
    request = "Think step by step, and give the final answer in \\boxed{}."
    gsm8k = GSM8K(own_data, check_data=False).load("test")[0]
    assert gsm8k == {
        "prompt": f"Problem: Two and two? (test 0)\n{request}\nSolution:",
        "messages": [{"role": "user", "content": f"Two and two? (test 0)\n{request}"}],
        "answer": "1200",
        "solution": "Two and two is 2+2=4.\nTimes 300 is 1200.",
        "benchmark": "gsm8k",
    }
    math = MATH(own_data, check_data=False).load("test")[0]
    assert math["answer"] == "\\frac{1}{2}" and math["benchmark"] == "math"


def test_splits_and_what_each_task_is_tested_on(own_data: str) -> None:
    for kind, size, tested in ((GSM8K, 10, 10), (MATH, 10, 20), (MATHAndGSM8K, 20, 20)):
        task = kind(own_data, check_data=False)
        parts = {split: [e["prompt"] for e in task.load(split)] for split in ("train", "validation", "full")}
        assert (len(parts["train"]), len(parts["validation"])) == (size * 8 // 10, size * 2 // 10)
        assert parts["full"] == parts["train"] + parts["validation"] and len(set(parts["full"])) == size
        assert len(task.load("test")) == tested
    assert [e["benchmark"] for e in MATH(own_data, check_data=False).load("test")] == ["math"] * 10 + ["gsm8k"] * 10
    with pytest.raises(ValueError, match="split must be one of train, validation, full, test, not 'dev'"):
        GSM8K(own_data, check_data=False).load("dev")  # type: ignore[arg-type]


def test_a_problem_whose_box_is_empty_is_left_out(own_data: str) -> None:
    path = Path(own_data, "math", "train.jsonl")
    path.write_text(path.read_text() + json.dumps({**HALF, "solution": "So there are $\\boxed{}$ of them."}) + "\n")
    assert len(MATH(own_data, check_data=False).load("full")) == 10


def test_the_split_seed_changes_the_split_and_nothing_else(own_data: str) -> None:
    one, two = (GSM8K(own_data, split_seed=seed, check_data=False) for seed in (0, 1))
    assert one.load("validation") != two.load("validation")
    assert sorted(e["prompt"] for e in one.load("full")) == sorted(e["prompt"] for e in two.load("full"))


def test_training_never_opens_the_test_file(own_data: str) -> None:
    for name in ("gsm8k", "math"):
        Path(own_data, name, "test.jsonl").unlink()
    task = MATHAndGSM8K(own_data, check_data=False)
    assert len(task.load("full")) == 20 and task.record("train")["examples"] == 16
    with pytest.raises(FileNotFoundError, match="no math data"):
        task.load("test")


def test_a_row_without_a_truth_is_named() -> None:
    with pytest.raises(ValueError, match="a gsm8k problem has no ground truth: 'Two and two"):
        truth("gsm8k", {**STAR, "answer": "It is four."})
    with pytest.raises(ValueError, match="a math problem has no ground truth"):
        truth("math", {**HALF, "solution": "It is one half."})
    assert truth("gsm8k", STAR) == "1200"


@pytest.mark.parametrize(
    "completion, expected",
    [
        ("", (0, 0, 0, 0)),
        ("I do not know.", (0, 0, 0, 0)),
        ("\\boxed{18}", (1, 1, 0, 1)),
        ("\\boxed{18.0}", (1, 1, 0, 1)),
        ("Step 1: nine twice.\n\\boxed{18}", (1, 1, 1, 1)),
        ("#### 18", (1, 0, 0, 1)),
        ("####18.", (1, 0, 0, 1)),
        ("#### 18 ... wait no \\boxed{20}", (0, 1, 0, 1)),
        ("\\boxed{20}, no:\n#### 18", (1, 1, 0, 1)),
        ("The answer is 18.", (0, 0, 0, 1)),
        ("118 items, or 1.18, or 18,000", (0, 0, 0, 0)),
        ("\\boxed{\\$18}", (1, 1, 0, 1)),
        ("\\boxed{18 \\text{ apples}}", (1, 1, 0, 1)),
        ("1. Take nine.\n2. Double it.", (0, 0, 1, 0)),
        ("1. Take nine and double it.", (0, 0, 0, 0)),
        ("STEP 2", (0, 0, 1, 0)),
        ("footstep 1", (0, 0, 0, 0)),
        ("\\boxed{}", (0, 0, 0, 0)),
        ("\\boxed{18", (0, 0, 0, 1)),
    ],
)
def test_primitives_on_whole_numbers(completion: str, expected: tuple[int, ...]) -> None:
    example = {"answer": "18"}
    assert tuple(p.function(completion, example) for p in PRIMITIVES) == expected
    assert GSM8K().correct(completion, example) == bool(expected[0])


def test_primitives_on_expressions() -> None:
    example = {"answer": "\\frac{1}{2}"}
    values = {
        "So \\boxed{\\frac12}": (1, 1, 0, 0),
        "So \\boxed{0.5}": (1, 1, 0, 0),
        "It is \\frac{1}{2}": (0, 0, 0, 1),
        "It is \\frac{1}{2}, so \\boxed{\\dfrac{1}{2}}": (1, 1, 0, 1),
        "\\boxed{\\frac{1}{3}}": (0, 1, 0, 0),
    }
    for completion, expected in values.items():
        assert tuple(p.function(completion, example) for p in PRIMITIVES) == expected, completion


def test_step_markers() -> None:
    assert has_steps("**Step 3.** then") and has_steps("- 1. a\n- 2. b") and has_steps("1) a\n 2) b")
    assert not has_steps("We have 1. 5 and 2. 5 apples") and not has_steps("stepwise 1")


def test_a_flipped_primitive_does_not_change_the_verdict() -> None:
    task = load_task("derl_gym.tasks.mathematics:GSM8K", flip=["g1", "g2"])
    assert task.correct("\\boxed{18}", {"answer": "18"})
    assert task.primitive_values(["\\boxed{18}"], [{"answer": "18"}]) == [[-1.0, -1.0, 0.0, 1.0]]


def test_the_paper_s_settings() -> None:
    for kind, policy in ((GSM8K, "Qwen/Qwen2.5-1.5B"), (MATH, "Qwen/Qwen2.5-3B"), (MATHAndGSM8K, "Qwen/Qwen2.5-3B")):
        task = kind()
        assert task.base_policy == policy and task.inner.policy == ""
        assert (task.inner.epochs, task.inner.num_generations, task.inner.max_flops_ratio) == (10, 8, 1.3)
        assert task.inner.max_seconds == 12_600 and task.final_inner["epochs"] == 15
        paper = task.presets["paper"]
        assert (paper.outer_steps, paper.full_outer_steps, paper.group_size) == (8, 7, 8)
        assert paper.full_inner == {"epochs": 2} and paper.proposer == "Qwen/Qwen2.5-0.5B-Instruct"
        assert task.presets["smoke"].full_outer_steps == 2, "a policy is handed on from the first step to the second"
        for preset in task.presets.values():  # every one of them makes a valid configuration
            inner = task.inner.override(**preset.inner)
            inner.override(**preset.full_inner)
            inner.override(**{**task.final_inner, **preset.final_inner})


@pytest.mark.parametrize("kind", [GSM8K, MATH])
def test_the_real_data_satisfy_the_self_check(kind: type, data_dir: Path) -> None:
    task = kind(str(data_dir))
    report = check_task(task)
    assert report.problems == []
    sizes = {"gsm8k": (5978, 1495), "math": (5998, 1500)}[kind.name]
    assert report.lines[:2] == [f"train: {sizes[0]} examples", f"validation: {sizes[1]} examples"]


def test_records_are_the_same_from_a_shuffled_file(data_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(data_dir / "gsm8k", tmp_path / "gsm8k")
    path = tmp_path / "gsm8k" / "train.jsonl"
    path.chmod(0o644)
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    splits: tuple[Split, ...] = ("train", "validation")
    assert [GSM8K(str(tmp_path)).record(s) for s in splits] == [GSM8K(str(data_dir)).record(s) for s in splits]
