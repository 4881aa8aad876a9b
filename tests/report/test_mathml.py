from xml.etree import ElementTree

import numpy as np
import pytest

from derl_gym.programs import Grammar, RewardProgram
from derl_gym.report.mathml import mathml


def text_of(program):
    """What a reader sees, with fractions as (a)/(b) and powers as (a)^(b)."""

    def read(element):
        parts = [read(child) for child in element]
        if element.tag == "mfrac":
            return f"({parts[0]})/({parts[1]})"
        if element.tag == "msup":
            return f"{parts[0]}^({parts[1]})"
        return (element.text or "") + "".join(parts)

    markup = mathml(RewardProgram.parse(program)).replace("&minus;", "-").replace("&sdot;", "*")
    return read(ElementTree.fromstring(markup)).removeprefix("R=")


@pytest.mark.parametrize(
    ("program", "seen"),
    [
        ("g1+(g2*(g3/2))-(g4/3)", "g1+g2*(g3)/(2)-(g4)/(3)"),
        ("g1-(g2-g3)", "g1-(g2-g3)"),
        ("(g1-g2)-g3", "g1-g2-g3"),
        ("-(g1+0.5*g2)", "-(g1+0.5*g2)"),
        ("(-g1)**2", "(-g1)^(2)"),
        ("-g1**2", "-g1^(2)"),
        ("(g1/g2)**2", "((g1)/(g2))^(2)"),
        ("(g1+g2)*g3", "(g1+g2)*g3"),
        ("g1*(-g2)", "g1*(-g2)"),
    ],
)
def test_parentheses_stand_where_precedence_needs_them(program, seen):
    assert text_of(program) == seen


def test_what_is_drawn_is_the_program():
    """Read the drawing back and compare values on random states."""
    grammar, rng = Grammar(k=4), np.random.default_rng(0)
    states = rng.uniform(0.5, 1.5, (16, 4))
    for _ in range(300):
        program = RewardProgram.parse(grammar.sample(rng))
        drawn = RewardProgram.parse(text_of(program.text).replace("^", "**"))
        np.testing.assert_allclose(drawn(states), program(states), rtol=1e-12)
