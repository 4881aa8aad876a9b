r"""Answers that look right and are not, and their honest neighbours, kind by kind."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from derl_gym.tasks.answers import equal, final_answer, mentions

DIFFERENT = {
    "a spoilt label, a root of a part": [
        (r"17\text{\left}", "18"),
        ("√16", "6"),
    ],
    "named members in another order": [
        ("y=1,x=2", "(1,2)"),
        ("q=3,p=4,r=5", "(3,4,5)"),
    ],
    "an equation is no value": [
        ("2x=72", "72"),
        ("x+1=72", "72"),
        ("x^2=72", "72"),
        ("1/x=72", "72"),
        ("-x=72", "72"),
        ("73=72", "72"),
        ("xy=72", "72"),
        (r"\cos(x)=72", "72"),
        ("x<72", "72"),
        ("72=73", "72"),
        ("2=5=18", "18"),
        ("x=2=5=18", "18"),
        ("3=7", "7"),
        ("1=1", "x=1"),
        ("2x=10", "x=5"),
    ],
    "a blank between digits": [
        ("3 5", "35"),
        (r"3\quad 5", "35"),
        (r"7\ 2", "72"),
        ("$7$2", "72"),
        ("7{2}", "72"),
        ("7{}2", "72"),
        ("7 {2}", "72"),
        (r"7\text{}2", "72"),
        ("{7}{2}", "72"),
        (r"7\left.2", "72"),
        ("$7$2", "7.2"),
        (r"7\displaystyle2", "72"),
        (r"7\mathrm{2}", "9"),
    ],
    "words that change the value": [
        ("18 million", "18"),
        ("18 thousand", "18"),
        ("18 dozen", "18"),
        ("18 squared", "18"),
        ("18 point five", "18"),
        ("18 over seven", "18"),
        ("18 wrong", "18"),
        ("18 i", "18"),
        ("18 billion dollars", "18"),
        (r"18 \text{ million}", "18"),
        (r"18 \text{ dozen}", "18"),
        (r"18 \text{ squared}", "18"),
        (r"18 \text{ point five}", "18"),
        (r"18 \text{ over seven}", "18"),
        (r"18 \text{ wrong}", "18"),
        (r"18 \text{ minus one}", "18"),
        (r"18 \text{ x}", "18"),
        (r"18 \text{ i}", "18"),
        (r"18 \text{ pi}", "18"),
        (r"18 \text{ e}", "18"),
        (r"18 \text{ over 7}", "18"),
        (r"18 \text{ negative}", "18"),
        (r"18 \text{ not}", "18"),
        ("3 sevenths", "3"),
        ("3 tenths", "3"),
    ],
    "two different units": [
        (r"3 \text{ radians}", "3 degrees"),
        ("60 miles per hour", "60 feet per second"),
        ("60 mi/hr", "60 km/hr"),
        ("5 euros", "5 dollars"),
        ("5 cents", "5 dollars"),
        ("5 cents", r"\$5"),
        ("€5", r"\$5"),
        ("5 nickels", "5 dimes"),
        ("60 degrees Celsius", "60 degrees Fahrenheit"),
        (r"60^\circ C", r"60^\circ F"),
        ("10 inches tall", "10 cm tall"),
        (r"45 \text{ units}^3", r"45 \text{ units}^2"),
    ],
    "a letter in another case": [
        ("x", "X"),
        ("x+1", "X+1"),
    ],
    "duplicates are no scalar": [
        ("1,1,1,1", "1"),
        ("2,2", "2"),
        (r"\{2,2\}", "2"),
    ],
    "scientific notation": [
        ("1e5", "5e"),
        ("0x10", "0"),
        ("1e5", "5"),
        ("5e", "1e5"),
    ],
    "a decimal is no irrational number": [
        ("3.141593", r"\pi"),
        ("3.1415926", r"\pi"),
        ("3.14159312", r"\pi"),
        ("0.000003", r"\frac{\pi}{1000000}"),
        ("3.14159", r"\pi"),
        ("1.414214", r"\sqrt{2}"),
    ],
    "choices, intervals, chains": [
        (r"\textbf{(A)}\ 5", "B"),
        ("1<x<2", "[1,2)"),
        ("0.56", r"0.56=57\%"),
        (r"1.56 = 56\%", r"0.56 = 56\%"),
        ("se at", r"\text{seat}"),
        (r"\$\dfrac23 \approx \$0.68", r"\$\dfrac23 \approx \$0.67"),
        (r"\text{3}5", "35x"),
        ("1,2", "[1,2]"),
        ("(1,2]", "x=1,y=2"),
    ],
}
EQUAL = [
    ("√16", "4"),
    ("√(1+8)", "3"),
    ("2√3", r"2\sqrt{3}"),
    ("x=1,y=2", "(1,2)"),
    ("y=2,x=1", "(1,2)"),
    ("(1,2)", "x=1,y=2"),
    ("36+36=72", "72"),
    ("x=72", "72"),
    ("f(2)=72", "72"),
    ("x=5+6=11", "11"),
    ("x = 5+5+1 = 7 =11", "x = 11"),
    ("1 000", "1000"),
    (r"1\,234\,567", "1234567"),
    ("18 million", "18000000"),
    (r"2 \text{ million}", "2000000"),
    ("2 million dollars", "2000000"),
    (r"\$2 \text{ million}", "2000000"),
    ("2 hundred thousand", "200000"),
    ("3 dozen", "36"),
    ("1.5 million", "1500000"),
    ("60 mph", "60 miles per hour"),
    (r"60 \text{ mi/hr}", "60 mph"),
    (r"9 \text{ m/s}^2", "9"),
    ("5 dollars", r"\$5"),
    ("10 centimeters squared", "10 cm^2"),
    ("1e5", "100000"),
    ("1.5e3", "1500"),
    ("1e-2", "0.01"),
    (r"2\times 10^3", "2000"),
    (r"0.\overline{3}", r"\frac13"),
    (r"1.2\overline{34}", "611/495"),
    (r"\boldsymbol{3}", "3"),
    (r"\underline{3}", "3"),
    (r"\mathbf{2340}", "2340"),
    ("½", "0.5"),
    ("3½", "3.5"),
    (r"\textbf{(B)}\ 5", "B"),
    (r"\textbf{(B)}\ 5", r"\text{(B)}"),
    ("1<x<2", "(1,2)"),
    (r"1<x\leq 2", "(1,2]"),
    ("2.5", r"\sqrt{6.25}"),
    ("60", r"60^\circ"),
    ("60 degrees", "60 degrees Celsius"),
    ("4, 5", "AB=4, CD=5"),
    ("3 points", "3"),
    ("1,234 cm", "1234"),
    ("1234", "1,234 cm"),
    ("y-2x=3", "y=2x+3"),
    ("AB=4", "4"),
    ("Area = 5", "5"),
    ("x^2+y^2=13", "y^2+x^2=13"),
    ("5 quarters", "5"),
]


@pytest.mark.parametrize(
    ("answer", "truth"), [pytest.param(*p, id=f"{k}: {p[0]}") for k, v in DIFFERENT.items() for p in v]
)
def test_what_only_looks_right_is_refused(answer: str, truth: str):
    assert not equal(answer, truth)


@pytest.mark.parametrize(("answer", "truth"), EQUAL)
def test_what_is_right_is_accepted(answer: str, truth: str):
    assert equal(answer, truth)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("\\boxed{18}\n#### ---", "18"),
        ("\\boxed{18}\n#### -", "18"),
        ("\\boxed{18}\n#### 2. Check", "18"),
        ("#### Answer: 18", "18"),
        ("#### The answer is 18", "18"),
        ("#### **Answer:** -18", "-18"),
        ("#### 2.5 cm", "2.5 cm"),
        ("#### ---", None),
    ],
)
def test_rulers_and_headings_are_no_answers(text: str, answer: str | None):
    assert final_answer(text) == answer


FRAGMENTS = st.lists(
    st.sampled_from(
        [
            r"\text{",
            r"\text{\left}",
            r"\mathrm{",
            r"\textbf{(B)}",
            r"\boxed{",
            "}",
            "{",
            r"\left",
            r"\right",
            r"\left(",
            ")",
        ]
        + [
            r"\Bigl",
            r"\Bigr.",
            r"\displaystyle",
            r"\frac",
            r"\sqrt",
            "√",
            "√(",
            r"\overline{3}",
            "0.",
            "1",
            "72",
            "1e5",
        ]
        + [
            "_8",
            "+",
            "-",
            r"\pm",
            "^",
            "=",
            "<",
            r"\leq",
            ",",
            ";",
            " ",
            r"\,",
            r"\quad",
            "$",
            r"\$",
            "€",
            "x",
            "X",
            "\\",
        ]
        + [
            "#### ",
            " cm",
            " million",
            " per ",
            "/",
            " degrees",
            r"^\circ",
            "C",
            " answer is ",
            "½",
            ":",
            " p.m.",
            "%",
            "\n",
        ]
    ),
    max_size=12,
).map("".join)


@given(FRAGMENTS, FRAGMENTS)
@settings(max_examples=300, deadline=None)
def test_no_text_of_fragments_raises(text: str, truth: str):
    assert equal(text, truth) in (True, False)
    assert equal("17" + text, "18" + truth) in (True, False)
    assert mentions(text, truth) in (True, False)
    answer = final_answer(text, plain=True)
    assert answer is None or answer == answer.strip()


@given(st.integers(0, 9999), st.integers(0, 9999), st.sampled_from([" ", r"\ ", "~", r"\quad ", "{}", "$", r"\left."]))
@settings(max_examples=200, deadline=None)
def test_two_numbers_are_not_one(a: int, b: int, between: str):
    grouped = between in (" ", r"\ ", "~", r"\left.") and 0 < a < 1000 and len(str(b)) == 3
    assert equal(f"{a}{between}{b}", f"{a}{b}") == grouped


@given(st.integers(1, 999), st.integers(0, 12))
@settings(max_examples=100, deadline=None)
def test_scientific_notation_is_exact(a: int, exponent: int):
    for text in (f"{a}e{exponent}", f"{a}E+{exponent}", rf"{a} \times 10^{{{exponent}}}"):
        assert equal(text, str(a * 10**exponent)) and not equal(text, str(a * 10**exponent + 1))
