r"""What equals the truth, and what does not: trap by trap, each by its name."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from derl_gym.tasks.answers import equal, final_answer, mentions
from derl_gym.tasks.answers.arithmetic import number
from derl_gym.tasks.answers.notation import items, named, normal_form
from derl_gym.tasks.answers.units import without_unit

EQUAL = {
    "thousands comma": ("1,234", "1234"),
    "LaTeX thousands comma": (r"1,\!234", "1{,}234"),
    "thousands blank": ("1 000", "1000"),
    "thin space": (r"1\,000", "1000"),
    "full stop": ("18.", "18"),
    "point zero": ("18.0", "18"),
    "leading zeros": ("0018", "18"),
    "no zero before the point": (".5", "0.5"),
    "dollar": (r"\$18", "18"),
    "formula border": ("$18$", "18"),
    "label": (r"18 \text{ apples}", "18"),
    "label as plain text": ("18 apples", "18"),
    "label of several words": (r"14 \text{ right triangles}", "14 triangles"),
    "short fraction": (r"\frac12", "0.5"),
    "half short fraction": (r"\frac{270}7", r"\frac{270}{7}"),
    "other fractions": (r"\dfrac{1}{2}", r"\tfrac{1}{2}"),
    "slash": ("1/2", r"\frac{1}{2}"),
    "mixed number": ("1 1/2", "1.5"),
    "LaTeX mixed number": (r"6\frac{1}{6}", "37/6"),
    "negative mixed number": (r"-1\frac{1}{2}", "-1.5"),
    "scientific notation": (r"3\times10^{-2}", "0.03"),
    "power": ("5^{12}", "244140625"),
    "minus of a power": ("-2^2", "-4"),
    "factorial": ("5!", "120"),
    "decimal comma": ("1,22", "1.22"),
    "rounded to six places": ("0.333333", r"\frac{1}{3}"),
    "unicode minus": ("\u22125", "-5"),
    "percent left out": ("10", r"10\%"),
    "percent in words": ("10 percent", r"10\%"),
    "degrees left out": ("60", r"60^\circ"),
    "unit left out": ("10", "10 cm^2"),
    "unit spelled out": ("10 square centimeters", r"10 \text{ cm}^2"),
    "bare list in another order": ("1,-2", "-2, 1"),
    "set in another order": (r"\{2,1\}", r"\{1,2\}"),
    "bare list and set": (r"1, 2", r"\{2,1\}"),
    "and, or": (r"2, 3, \text{ and } 4", "4 or 3 or 2"),
    "semicolons": ("1;2", "1,2"),
    "list of roots in another order": (r"2-\sqrt2, 2+\sqrt2", r"\sqrt{2}+2, -\sqrt{2}+2"),
    "plus-minus": (r"1\pm\sqrt2", r"1+\sqrt{2}, 1-\sqrt{2}"),
    "tuple with decimals": ("(1, 4.5)", r"\left(1,\frac92\right)"),
    "named values": ("4, 5", "AB=4, CD=5"),
    "named tuple": ("(1,2)", "x=1, y=2"),
    "name left out": ("5", "x = 5"),
    "chain of equations": ("3 + 15 = 18", "18"),
    "the same equation": ("y=2x+3", "y-2x=3"),
    "base spelled with braces": ("52_{8}", "52_8"),
    "base ten": ("24", "24_{10}"),
    "time": ("8:34 PM", r"8\!:\!34 \text{ p.m.}"),
    "time on 24 hours": ("20:34:00", "8:34 p.m."),
    "choice": (r"\text{(C)}", "C"),
    "word in another case": ("Even", r"\text{even}"),
    "parentheses": ("(18)", "18"),
    "escaped twice": (r"\\frac{1}{2}", r"\frac12"),
    "expression": ("1+x", "x+1"),
    "a half of x": ("1/2 x", r"\frac{x}{2}"),
    "decimal factor": (r"0.1\pi", r"\frac{\pi}{10}"),
    "factored": ("(x-1)(x+1)", "x^2-1"),
    "root": (r"\sqrt{12}", r"2\sqrt3"),
    "flipped inequality": ("5 < x", "x > 5"),
    "matrix": (r"\begin{pmatrix}0.5\\1\end{pmatrix}", r"\begin{pmatrix}1/2\\1\end{pmatrix}"),
}
DIFFERENT = {
    "118 and 18": ("118", "18"),
    "off in the last place": ("0.5000001", "0.5"),
    "rounded to four places": ("0.3333", r"\frac{1}{3}"),
    "base left out": ("52", "52_8"),
    "the value of a numeral": ("42", "52_8"),
    "another base": ("52_9", "52_8"),
    "base where there is none": ("52_8", "52"),
    "percent as a fraction": ("0.1", r"10\%"),
    "a fraction as percent": (r"10\%", "0.1"),
    "another unit": (r"10 \text{ m}", r"10 \text{ cm}"),
    "area and length": ("10 cm", "10 cm^2"),
    "tuple in another order": ("(2,1)", "(1,2)"),
    "tuple as a bare list": ("1,2", "(1,2)"),
    "tuple as a set": (r"\{1,3\}", "(3,1)"),
    "open and closed": ("[2,5)", "(2,5)"),
    "a member too many": ("18, 19", "18"),
    "two answers": ("18 or 19", "18"),
    "a member twice": ("1,1,2", "1,2,2"),
    "names exchanged": ("x=2, y=1", "x=1, y=2"),
    "another name": ("y=5", "x=5"),
    "one of plus-minus": ("3", r"\pm 3"),
    "tiny numbers": (r"\frac{1}{2^{98}}", r"\frac{1}{2^{99}}"),
    "tiny multiples of pi": (r"10^{-20}\pi", r"2\cdot10^{-20}\pi"),
    "a variable that is a unit's name": ("5t", "5"),
    "letters in another order": (r"\text{seat}", r"\text{east}"),
    "choices": ("(B)", r"\text{C}"),
    "morning and evening": ("8:34 a.m.", "8:34 p.m."),
    "ratio": ("3:5", "5:3"),
    "relation": ("x<5", "x>5"),
    "equation and value": ("1", "2x+z=1"),
    "sign": (r"1+\frac{1}{\mathrm{e}}", r"1-\frac{1}{\mathrm{e}}"),
    "infinities": (r"-\infty", r"\infty"),
    "two numbers are no sum": ("1 2", "3"),
    "a foreign sign is not skipped": ("18 @ 3", "18"),
    "a part that can be read": (r"18 + \foo{", "18"),
    "division by zero": ("1/0", "0"),
    "unicode digits": ("\u0663", "3"),
    "nothing": ("", "0"),
}


@pytest.mark.parametrize(("answer", "truth"), EQUAL.values(), ids=EQUAL)
def test_equal(answer: str, truth: str):
    assert equal(answer, truth)


@pytest.mark.parametrize(("answer", "truth"), DIFFERENT.values(), ids=DIFFERENT)
def test_different(answer: str, truth: str):
    assert not equal(answer, truth)


@pytest.mark.parametrize(
    "output",
    [
        r"\boxed{1,234}",
        "#### 1234.",
        r"\boxed{1234.0}",
        r"\boxed{\$1234}",
        r"\boxed{1234 \text{ apples}}",
        "####1234",
        r"#### 9 ... wait no \boxed{1234}",
    ],
)
def test_an_output_is_right_whatever_its_notation(output: str):
    answer = final_answer(output)
    assert answer is not None and equal(answer, "1234")


def test_normal_form_keeps_words_apart_from_products():
    assert normal_form(r"12\,\text{cm}") == '12 "cm"'
    assert normal_form(r"\text{A, B and C}") == normal_form(r"\text{A}, \text{B}, \text{C}") == '"A" , "B" , "C"'
    assert normal_form(r"\left( \dfrac12 \right).") == r"( \frac{1}{2})"


def test_lists_names_and_units_are_taken_apart():
    assert items("(1,2],3") == ("", ["(1,2]", "3"])
    assert items("[1,(2,3))") == ("[)", ["1", "(2,3)"])
    assert items("a,b;c,d") == ("", ["a,b", "c,d"])
    assert items(r"\{1,2\}") == ("{}", ["1", "2"])
    assert named("x_1 = 5+6 = 11") == ("x_1", "11")
    assert named(r"\sum_{k=1}^n k") == ("", r"\sum_{k=1}^n k")
    assert named("2x+z = 1") == ("", "2x+z = 1")
    assert without_unit('10 "square cm"') == ("10", "cm^2")
    assert without_unit("10 weeks") == ("10", "week")
    assert without_unit("2 xy") == ("2 xy", "")
    assert without_unit("3 sin") == ("3 sin", "")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234.5", Fraction(2469, 2)),
        ("2-3*4/6", Fraction(0)),
        ("2^3^2", Fraction(512)),
        (r"\frac{1+2}{-3}", Fraction(-1)),
        ("3!^2", Fraction(36)),
        ("1,23", None),
        ("1 2", None),
        ("2(3)", None),
        ("2^0.5", None),
        ("1/0", None),
        ("9^9^9^9", None),
        ("2^{100000}", None),
        ("9!!!!", None),
        ("(" * 300, None),
        ("", None),
    ],
)
def test_arithmetic_is_exact_or_declined(text: str, value: Fraction | None):
    assert number(text) == value


@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
@settings(max_examples=200, deadline=None)
def test_whole_numbers_are_compared_exactly(a: int, b: int):
    assert equal(str(a), str(b)) == (a == b)
    for text in (f"{a:,}", f"{a}.0", f"${a}$", f"{a} apples", f"x = {a}", f"{a:,}".replace(",", r",\!")):
        assert equal(text, str(a)) and not equal(text, str(a + 1))
        assert mentions(f"so it is {text}.", str(a)) and not mentions(f"so it is {text}.", str(a + 1))


@given(st.integers(-999, 999), st.integers(1, 999), st.integers(-999, 999), st.integers(1, 999))
@settings(max_examples=200, deadline=None)
def test_fractions_are_compared_exactly(a: int, b: int, c: int, d: int):
    assert equal(rf"\frac{{{a}}}{{{b}}}", f"{c}/{d}") == (Fraction(a, b) == Fraction(c, d))
