r"""DERL-Arithmetic: the splits, the primitives on outputs that set traps, and the policy that is shipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from derl_gym.tasks import SPLITS, load_task
from derl_gym.tasks.arithmetic import Arithmetic, boxed, mentions, pairs

TASK = Arithmetic()


def values(completion: str, answer: int) -> list[float]:
    return TASK.primitive_values([completion], [{"prompt": "", "answer": answer}])[0]


# --- splits


def test_splits_have_their_sizes_and_share_nothing():
    by_split = {split: {e["prompt"] for e in TASK.load(split)} for split in SPLITS}
    assert {split: len(prompts) for split, prompts in by_split.items()} == {
        "train": 1651,
        "validation": 385,
        "full": 2036,
        "test": 464,
    }
    assert by_split["train"] | by_split["validation"] == by_split["full"]
    assert not by_split["train"] & by_split["validation"]
    assert not by_split["full"] & by_split["test"]
    assert len(by_split["full"] | by_split["test"]) == 50 * 50


def test_a_sum_and_its_mirror_share_a_split():
    for split in ("train", "validation", "test"):
        of_split = set(pairs(split))
        assert {(b, a) for a, b in of_split} == of_split


def test_examples_are_right_and_always_in_the_same_order():
    first, again = TASK.load("train"), Arithmetic().load("train")
    assert first == again
    for example in first:
        a, b = example["prompt"].removesuffix("=").split("+")
        assert (len(a), len(b)) == (2, 2)
        assert int(a) + int(b) == example["answer"]
    assert json.loads(json.dumps(first)) == first


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match="split must be one of train, validation, full, test, not 'dev'"):
        TASK.load("dev")  # type: ignore[arg-type]


# --- primitives


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        pytest.param(r"\boxed{18}", [1, 1, 0, 1], id="right, in a box"),
        pytest.param(r"\boxed{ 018 }", [1, 1, 0, 1], id="blanks and leading zeros"),
        pytest.param(r"Step 1: \boxed{18}", [1, 1, 1, 1], id="everything"),
        pytest.param(r"\boxed{19}", [0, 1, 0, 0], id="wrong, in a box"),
        pytest.param("18", [0, 0, 0, 1], id="right, no box"),
        pytest.param("Step 1: 18", [0, 0, 1, 1], id="right after a step"),
        pytest.param("", [0, 0, 0, 0], id="empty output"),
        pytest.param(r"\boxed{}", [0, 0, 0, 0], id="empty box"),
        pytest.param(r"\boxed{  }", [0, 0, 0, 0], id="blank box"),
        pytest.param(r"\boxed{18", [0, 0, 0, 1], id="box not closed"),
        pytest.param(r"\boxed{{18}", [0, 0, 0, 1], id="braces not balanced"),
        pytest.param(r"boxed{18}", [0, 0, 0, 1], id="no backslash"),
        pytest.param(r"\boxed{18}\boxed{19}", [0, 1, 0, 1], id="two boxes, the last one wrong"),
        pytest.param(r"\boxed{19}\boxed{18}", [1, 1, 0, 1], id="two boxes, the last one right"),
        pytest.param(r"\boxed{18 or 19}", [0, 1, 0, 1], id="two answers in one box"),
        pytest.param(r"\boxed{118}", [0, 1, 0, 0], id="118 holds no 18, in a box"),
        pytest.param(r"\boxed{-18}", [0, 1, 0, 0], id="minus 18"),
        pytest.param(r"18\boxed{19}", [0, 1, 0, 1], id="right outside of a wrong box"),
        pytest.param("18" * 3000, [0, 0, 0, 0], id="a number of 6,000 digits"),
        pytest.param("{" * 5000 + r"\boxed{" * 500, [0, 0, 0, 0], id="thousands of braces"),
    ],
)
def test_primitives(completion: str, expected: list[float]):
    assert values(completion, 18) == expected
    assert TASK.correct(completion, {"answer": 18}) is bool(expected[0])


@pytest.mark.parametrize("text", ["18", "018", "so 18.", "17,18,19", "(18)", "x=18", "18%", "1 18 1", "18-7"])
def test_a_whole_number_is_found(text: str):
    assert mentions(text, 18)


@pytest.mark.parametrize("text", ["118", "180", "1.18", "18.5", "1,018", "18,000", "-18", "1 8", "١٨", "eighteen"])
def test_part_of_another_number_is_not(text: str):
    assert not mentions(text, 18)


@pytest.mark.parametrize("zero", ["0", "00", r"\boxed{0}", r"\boxed{00}"])
def test_zero_is_a_number_too(zero: str):
    assert mentions(zero, 0)
    assert not mentions("10", 0)


@pytest.mark.parametrize(
    ("completion", "marked"),
    [("Step 1", 1), ("step 2:", 1), ("Step1", 1), ("Step", 0), ("Steps 1", 0), ("footstep 1", 0), ("Step one", 0)],
)
def test_step_markers(completion: str, marked: float):
    assert values(completion, 18)[2] == marked


def test_nested_braces_belong_to_the_box():
    assert boxed(r"so \boxed{\frac{1}{2}} it is") == r"\frac{1}{2}"


def test_gold_solutions_satisfy_what_they_should():
    for split in ("full", "test"):
        for example in TASK.load(split):
            gold = f"{example['answer']:02d}"
            assert values(f"\\boxed{{{gold}}}", example["answer"]) == [1, 1, 0, 1]
            assert values(f"Step 1: {gold}", example["answer"]) == [0, 0, 1, 1]
            assert values(gold, example["answer"]) == [0, 0, 0, 1]
            assert values(f"\\boxed{{{example['answer'] + 1}}}", example["answer"]) == [0, 1, 0, 0]


# --- the base policy


@pytest.fixture(scope="module")
def policy() -> tuple[Any, Any]:
    transformers = pytest.importorskip("transformers")
    return (
        transformers.AutoModelForCausalLM.from_pretrained(TASK.base_policy),
        transformers.AutoTokenizer.from_pretrained(TASK.base_policy),
    )


def test_base_policy_is_small_and_complete():
    sizes = {path.name: path.stat().st_size for path in Path(TASK.base_policy).iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= set(sizes)
    assert sum(sizes.values()) <= 1_000_000


def test_vllm_can_take_its_head_dimension():
    config = json.loads((Path(TASK.base_policy) / "config.json").read_text())
    assert config["head_dim"] in (32, 64)


@pytest.mark.parametrize("text", ["07+35=", r"\boxed{42}", "Step 1: 42"])
def test_text_survives_the_tokenizer(policy: tuple[Any, Any], text: str):
    """Some architectures make transformers put a tokenizer of its own in the place of the one that is stored."""
    _, tokenizer = policy
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.unk_token_id not in ids


def test_a_completion_has_room_for_a_box_or_a_step_but_not_for_both(policy: tuple[Any, Any]):
    _, tokenizer = policy
    room = TASK.inner.max_completion_length
    assert len(tokenizer.encode(r"\boxed{42}")) < room  # the end takes one token
    assert len(tokenizer.encode("Step 1: 42")) <= room
    assert len(tokenizer.encode(r"Step 1: \boxed{42}")) > room


def test_base_policy_boxes_seldom_and_is_mostly_wrong(policy: tuple[Any, Any]):
    """The rates that the landscape rests on, from 3,850 samples; the standard error of 3.6 % is 0.3 points."""
    pytest.importorskip("trl")
    import torch

    from derl_gym.inner.generate import transformers_generate

    torch.manual_seed(0)
    model, tokenizer = policy
    examples = TASK.load("validation") * 10
    completions, _ = transformers_generate(model, tokenizer, TASK.inner)([e["prompt"] for e in examples])
    g1, g2, g3, g4 = np.mean(TASK.primitive_values(completions, examples), axis=0)
    assert 0.004 < g1 < 0.014
    assert 0.025 < g2 < 0.05
    assert 0.09 < g3 < 0.14
    assert 0.20 < g4 < 0.27


@settings(max_examples=300, deadline=None)
@given(
    st.text(alphabet="0123456789 :{}+=.,-", max_size=12),
    st.sampled_from(["", "\\boxed{", "Step 1: "]),
    st.integers(0, 98),
)
def test_no_output_is_in_a_state_that_the_task_leaves_out(text: str, start: str, answer: int) -> None:
    reachable = {tuple(state) for state in TASK.states().tolist()}
    assert len(reachable) == 10
    for completion in (
        start + text,
        f"{text}\\boxed{{{answer:02d}}}",
        f"\\boxed{{ {answer} }}{text}",
        start + f"0{answer}" + text,
    ):
        assert tuple(values(completion, answer)) in reachable


def test_flipping_a_primitive_keeps_the_states_apart():
    flipped = load_task("derl_gym.tasks.arithmetic:Arithmetic", flip=["g2"]).states()
    assert {tuple(state) for state in (flipped * [1, -1, 1, 1]).tolist()} == {tuple(s) for s in TASK.states().tolist()}
