r"""What is found in an output: boxes, the final answer, a mention of the truth."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from derl_gym.tasks.answers import boxed, final_answer, mentions


@pytest.mark.parametrize(
    ("text", "content"),
    [
        pytest.param(r"so \boxed{\frac{1}{2}} it is", r"\frac{1}{2}", id="nested braces"),
        pytest.param(r"\boxed{19} no, \boxed{18}", "18", id="the last of two"),
        pytest.param(r"\fbox{18}", "18", id="fbox"),
        pytest.param(r"\boxed {18}", "18", id="a blank before the brace"),
        pytest.param(r"\boxed{ 18 }", "18", id="blanks inside"),
        pytest.param(r"\boxed{\boxed{18}}", "18", id="box in a box"),
        pytest.param(r"\boxed{\{1,2\}}", r"\{1,2\}", id="escaped braces"),
        pytest.param(r"\boxed{\left\{x\right.}", r"\left\{x\right.", id="one escaped brace"),
        pytest.param(r"\\boxed{18}", "18", id="escaped twice"),
        pytest.param(r"x \\{\boxed{18}}", "18", id="a line break before a brace"),
        pytest.param(r"\boxed 2.", "2", id="no braces, one sign"),
        pytest.param(r"\boxed{18} or \boxed{19", "18", id="the last one is not closed"),
        pytest.param(r"} \boxed{18}", "18", id="closing brace before"),
        pytest.param(r"\boxed{18}\boxed{}", None, id="the last one is empty"),
        pytest.param(r"\boxed{ }", None, id="blank"),
        pytest.param(r"\boxed{18", None, id="not closed"),
        pytest.param(r"\boxed{{18}", None, id="braces not balanced"),
        pytest.param(r"boxed{18}", None, id="no backslash"),
        pytest.param(r"\boxed 12", None, id="no braces, two signs"),
        pytest.param("18", None, id="no box"),
        pytest.param("", None, id="empty"),
    ],
)
def test_boxed(text: str, content: str | None):
    assert boxed(text) == content


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        pytest.param("#### 18 ... wait no \\boxed{20}", "20", id="hashes, then a box: the later one"),
        pytest.param("\\boxed{20}\n#### 18", "18", id="a box, then hashes: the later one"),
        pytest.param("#### 18\nno\n#### 20\n", "20", id="hashes twice"),
        pytest.param("####18", "18", id="no blank"),
        pytest.param("#### 18.", "18.", id="a full stop"),
        pytest.param("#### 1,234\nThat is all.", "1,234", id="the rest of that line only"),
        pytest.param("#### **18**", "18", id="bold"),
        pytest.param("#### $\\boxed{18}$", "18", id="a box behind hashes"),
        pytest.param("#### 18\n####", "18", id="empty hashes at the end"),
        pytest.param("\\boxed{18}\n#### Explanation", "18", id="a heading is no answer"),
        pytest.param("#### even", "even", id="a word, where there is nothing else"),
        pytest.param("### 18", None, id="three hashes"),
        pytest.param("The answer is 18.", None, id="a bare number does not count"),
    ],
)
def test_final_answer(text: str, answer: str | None):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        pytest.param("16 - 3 = <<16-3=13>>13\nA: 18", "18", id="after A:"),
        pytest.param("A: 18\nThat was 3 + 15.", "18", id="after A:, though other numbers follow"),
        pytest.param("The answer is 18 since 3 + 15 is.", "18", id="after the word answer"),
        pytest.param("answer 17, no, the answer is -1,234.50.", "-1,234.50", id="after the last such word"),
        pytest.param("First 5, then 7.", "7", id="the last number"),
        pytest.param("It is .5", ".5", id="no digit before the point"),
        pytest.param("5 - -7", "-7", id="negative"),
        pytest.param("A: nobody knows\n3", "3", id="no number after A:"),
        pytest.param("\\boxed{3} A: 4", "3", id="a box has precedence"),
        pytest.param("nothing", None, id="no number"),
    ],
)
def test_plain_answers(text: str, answer: str | None):
    assert final_answer(text, plain=True) == answer


@pytest.mark.parametrize(
    "text",
    ["118 items", "1.18", "18,000", "-18", "\u221218", "18.5", "x18", "181", "1,018", ".18", "3.18", "", "Step18"],
)
def test_no_eighteen_is_mentioned(text: str):
    assert not mentions(text, "18")


@pytest.mark.parametrize(
    "text",
    [
        "It is 18.",
        "$18",
        r"\$18",
        "18 apples",
        "018",
        "18.0",
        "25-18=7",
        "18%",
        r"\boxed{18}",
        "18,19",
        "18...",
        "**18**",
    ]
    + [r"3\times18", "18cm", "(18)", "18-year-old", "18\u202f", "18, 000"],
)
def test_eighteen_is_mentioned(text: str):
    assert mentions(text, "18")


@pytest.mark.parametrize(
    ("text", "truth", "there"),
    [
        ("1,234 of them", "1234", True),
        ("1234 of them", "1,234", True),
        ("1{,}234", r"1,\!234", True),
        ("234 of them", "1,234", False),
        (r"-\$0.50", r"-\$0.50", True),
        ("it is -5.", "-5", True),
        ("3-5", "-5", False),
        ("18 feet", r"18 \text{ inches}", True),
        (r"so \dfrac {1}{2}.", r"\frac{1}{2}", True),
        (r"so \frac{1}{2} of it", r"\frac{1}{2}", True),
        (r"3\frac{1}{2}", r"\frac{1}{2}", False),
        (r"\frac{1}{2}x", r"\frac{1}{2}", False),
        (r"-\frac{1}{2}", r"\frac{1}{2}", False),
        ("y = x + 1.", "x+1", True),
        (r"\boxed{x+1}", "x+1", True),
        ("2x+1", "x+1", False),
        ("x+10", "x+1", False),
        ("x+1+y", "x+1", False),
        ("x+1^2", "x+1", False),
        ("It is Even.", r"\text{even}", True),
        ("evening", r"\text{even}", False),
        ("52_{8}", "52_8", True),
        ("52", "52_8", False),
        ("anything", "", False),
        ("", "x+1", False),
    ],
)
def test_truths_are_mentioned_as_a_whole(text: str, truth: str, there: bool):
    assert mentions(text, truth) == there


@given(st.text(max_size=40), st.lists(st.integers(0, 9999), min_size=1, max_size=4))
@settings(max_examples=200, deadline=None)
def test_the_last_box_is_found_behind_any_text(text: str, numbers: list[int]):
    output = text + " ".join(f"\\boxed{{{n}}}" for n in numbers)
    assert boxed(output) == str(numbers[-1])
