r"""Texts that are made to hang, crash or fool a checker: each is refused in time."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from derl_gym.tasks.answers import boxed, checker, equal, final_answer, mentions, unfinished

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
import answers as benchmark  # noqa: E402

TEXTS = st.text(st.one_of(st.sampled_from("0123456789xy.,+-^_(){}[]\\$%#!:= \n"), st.characters()), max_size=40)
PIECES = st.lists(
    st.sampled_from(
        ["\\boxed{", "}", "{", "####", "\\frac", "1", "/2", "x", "^", "\\text{", " and ", ",", "\\pm", "A:"]
    ),
    max_size=30,
).map("".join)


@given(TEXTS | PIECES, TEXTS | PIECES)
@settings(max_examples=300, deadline=None)
def test_any_text_is_survived(text: str, truth: str):
    for plain in (False, True):
        answer = final_answer(text, plain)
        assert answer is None or (answer and answer == answer.strip())
    assert mentions(text, truth) in (True, False)
    assert equal(text, text)
    assert equal(text, truth) in (True, False)


@pytest.mark.parametrize(("answer", "truth"), benchmark.HOSTILE.values(), ids=benchmark.HOSTILE)
def test_hostile_answers_are_refused_in_time(answer: str, truth: str):
    start = time.monotonic()
    assert not equal(answer, truth)
    assert time.monotonic() - start < checker.WALL_SECONDS
    assert equal(answer, answer)


@pytest.mark.parametrize(
    "piece",
    [
        "\\boxed{",
        "{",
        "}",
        "\\boxed{}",
        "#",
        "#### ",
        "answer ",
        "A:\n",
        "1,234,",
        "1",
        "\\text{",
        "\\text{ a",
        " ",
        ",",
        "-",
    ]
    + ["\\", "\\!", "x+", "\n", "\\frac"],
)
def test_a_long_output_is_read_in_linear_time(piece: str):
    text = piece * (200_000 // len(piece))
    start = time.process_time()
    boxed(text)
    final_answer(text, plain=True)
    mentions(text, "18")
    mentions(text, "x+1")
    equal(text, "18")
    assert time.process_time() - start < 30  # a quadratic scan of so many characters takes minutes


def test_a_long_list_of_hard_answers_shares_one_time_limit():
    hard = ", ".join(rf"\int_0^{n} e^{{\sin x}}dx" for n in range(1, 12))
    other = ", ".join(rf"\int_0^{n} e^{{\cos x}}dx" for n in range(1, 12))
    before, start = unfinished(), time.monotonic()
    assert not equal(hard, other)
    assert unfinished() == before + 1
    assert time.monotonic() - start < checker.WALL_SECONDS


def test_importing_loads_no_library():
    code = (
        "import sys, derl_gym.tasks.answers as a; assert a.equal('1,234', '1234') and not a.equal('18', '20');"
        "heavy = {'sympy', 'torch', 'math_verify', 'transformers'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
