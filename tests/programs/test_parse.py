import pickle
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from derl_gym.programs import InvalidProgram, RewardProgram


@pytest.mark.parametrize(
    ("text", "reason", "column"),
    [
        ("9**9**9", "overflows", 1),
        ("(((((", "never closed", 5),
        ("1e400", "'e'", 2),
        ("007", "leading zeros", 1),
        ("g0", "'g0' is not a primitive", 1),
        ("g1+g9", "expected one of g1, g2, g3, g4", 4),
        ("g01", "'g01' is not a primitive", 1),
        ("g", "'g' is not a primitive", 1),
        ("g2g3", "'g2g3'", 1),
        ("2g1", "decimal literal", 1),
        ("g1 if g2 else 0", "'i'", 4),
        ("g1 + 9" + "9" * 10_000, "10006 characters", None),
        ("g1+\u0663", "'\u0663'", 4),
        ("g1\uff11", "alphabet", 3),
        ("", "empty", None),
        ("   ", "empty", None),
        ("1/0", "division by zero", 1),
        ("g1+0**-1", "division by zero", 4),
        ("(0-1)**0.5", "not real", 1),
        ("9" * 400, "too large", 1),
        ("9" * 400 + ".5", "too large", 1),
        ("g1//2", "floor division", 1),
        ("()", "empty pair", 1),
        ("g1(g2)", "write '*'", 1),
        ("g1.g2", "not allowed", 1),
        ("g1 2", "syntax", 4),
        ("g1* *2", "syntax", 5),
        ("g1+", "ends too early", 4),
        ("  g1 - ", "ends too early", 7),
        ("g1)*(g2", "without a '('", 3),
        (" g1 + g9", "'g9'", 7),
        ("g1\n+g2", "alphabet", 3),
        ("g1_0", "'_'", 3),
        ("(" * 65 + "g1" + ")" * 65, "nested deeper", 65),
    ],
)
def test_refused_with_what_and_where(text, reason, column):
    with pytest.raises(InvalidProgram) as caught:
        RewardProgram.parse(text, k=4)
    assert reason in caught.value.reason
    assert caught.value.column == column
    assert column is None or f"(column {column})" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "canonical", "names"),
    [
        ("g1", "g1", ("g1",)),
        (" g1 + 0.5 * g3 ", "g1+0.5*g3", ("g1", "g3")),
        ("g2--g3", "g2--g3", ("g2", "g3")),
        ("+g2 - -g3", "+g2--g3", ("g2", "g3")),
        (".5*g4+5.", ".5*g4+5.", ("g4",)),
        ("3", "3", ()),
        ("2**g1", "2**g1", ("g1",)),
        ("g1/(g2-g2)", "g1/(g2-g2)", ("g1", "g2")),
        ("-" * 500 + "g1", "-" * 500 + "g1", ("g1",)),
        ("(" * 64 + "g1" + ")" * 64, "(" * 64 + "g1" + ")" * 64, ("g1",)),
    ],
)
def test_accepted(text, canonical, names):
    program = RewardProgram.parse(text, k=4)
    assert program.text == str(program) == canonical
    assert program.names == names
    assert RewardProgram.parse(canonical, k=4) == program


def test_limits_of_names_and_tokens():
    assert RewardProgram.parse("g12", k=12).names == ("g12",)
    with pytest.raises(InvalidProgram, match="expected one of g1, g3"):
        RewardProgram.parse("g2", k=4, primitives=("g1", "g3"))
    assert RewardProgram.parse("g1**2+10", k=4, max_length=6).text == "g1**2+10"
    with pytest.raises(InvalidProgram, match="6 tokens, the limit is 5"):
        RewardProgram.parse("g1**2+10", k=4, max_length=5)
    with pytest.raises(ValueError, match="g9"):
        RewardProgram.parse("g1", k=4, primitives=("g1", "g9"))
    with pytest.raises(TypeError, match="not bytes"):
        RewardProgram.parse(b"g1", k=4)  # pyright: ignore[reportArgumentType]


@settings(max_examples=500, deadline=None)
@given(st.one_of(st.text(max_size=40), st.text("g0123456789+-*/.() ", max_size=600)))
def test_any_text_is_a_program_or_refused(text):
    try:
        program = RewardProgram.parse(text, k=4)
    except InvalidProgram as error:
        assert error.reason
        assert error.column is None or 1 <= error.column <= len(text) + 1
    else:
        assert program.text == text.replace(" ", "")


def test_immutable_hashable_picklable():
    program = RewardProgram.parse("g1 - 2", k=4)
    assert pickle.loads(pickle.dumps(program)) == program
    assert len({program, RewardProgram.parse("g1-2", k=4), RewardProgram.parse("g1-2", k=5)}) == 2
    with pytest.raises(AttributeError):
        program.text = "g2"  # pyright: ignore[reportAttributeAccessIssue]
    error = pickle.loads(pickle.dumps(InvalidProgram("why", 3)))
    assert (error.reason, error.column, str(error)) == ("why", 3, "why (column 3)")


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("0.5*g1+g2", r"0.5 \cdot g_{1} + g_{2}"),
        ("g1-(g2-g3)", r"g_{1} - \left(g_{2} - g_{3}\right)"),
        ("(g1+g2)*g3", r"\left(g_{1} + g_{2}\right) \cdot g_{3}"),
        ("g1/(g2+1)", r"\frac{g_{1}}{g_{2} + 1}"),
        ("(g1/2)**g2", r"\left(\frac{g_{1}}{2}\right)^{g_{2}}"),
        ("-(g1+g2)", r"-\left(g_{1} + g_{2}\right)"),
        ("g1--g2", r"g_{1} - \left(-g_{2}\right)"),
        ("-g1**2", r"-g_{1}^{2}"),
        ("g12**2**g3", r"g_{12}^{2^{g_{3}}}"),
    ],
)
def test_latex(text, latex):
    assert RewardProgram.parse(text, k=12).latex() == latex


def test_programs_floor_is_light():
    heavy = "{'torch', 'transformers', 'trl', 'vllm', 'datasets', 'pandas'}"
    code = f"import sys, derl_gym.programs; print(sorted({heavy} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
