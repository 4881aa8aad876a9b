"""The three other ways to write a program."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import derl_gym  # noqa: F401
from derl_gym.envs import TextAction, TokenByToken, UnitCube
from derl_gym.programs import Grammar, RewardProgram, from_cube

SETTINGS = {"task": "toy_tasks:Digits", "outer_steps": 2, "group_size": 1, "cache": "equivalent"}


@pytest.fixture
def env(tmp_path):
    env = gym.make("DERL-Arithmetic-v0", **SETTINGS, run_dir=str(tmp_path / "run"))
    yield env
    env.close()


def write(env: TokenByToken, text: str, end: bool = True):
    tokens = env.programs.grammar.tokens
    ids = [int(i) for i in env.programs.encode(text) if i]
    step = None
    for token in ids + [0] * end:
        assert env.action_masks()[token], (text, tokens[token])
        step = env.step(token)
    return step


def test_token_by_token_scores_a_program_at_its_end(env) -> None:
    tokens = TokenByToken(env)
    observation, info = tokens.reset(seed=1)
    assert not observation.any() and info["action_mask"].dtype == np.int8
    assert tokens.action_masks().dtype == bool and not tokens.action_masks()[0]
    observation, score, terminated, truncated, info = write(tokens, "g1+g2")
    assert terminated and not truncated and info["program"] == "g1+g2" and info["status"] == "scored"
    assert 0 < score <= 1
    assert observation.tolist() == tokens.programs.encode("g1+g2").tolist()
    tokens.reset()  # the search underneath goes on
    assert tokens.unwrapped.loop.step == 1
    assert write(tokens, "g1+g2")[4]["repeated"]
    tokens.reset()  # and starts anew when its budget is used up
    assert tokens.unwrapped.loop.step == 0


def test_padded_programs_all_take_the_same_number_of_steps(env) -> None:
    tokens = TokenByToken(env, pad=True)
    tokens.reset(seed=1)
    write(tokens, "g1")
    for _ in range(tokens.programs.shape[0] - 3):
        assert np.flatnonzero(tokens.action_masks()).tolist() == [0]
        assert tokens.step(0)[2:4] == (False, False)
    assert tokens.step(0)[2] is True


def test_an_illegal_token_costs_the_score_and_nothing_else(env) -> None:
    tokens = TokenByToken(env)
    tokens.reset(seed=1)
    _, _, terminated, _, info = tokens.step(tokens.programs.grammar.tokens.index(")"))
    assert not terminated and np.flatnonzero(info["action_mask"]).tolist() == [0]
    _, score, terminated, _, info = tokens.step(0)
    assert terminated and score == 0 and info["status"] == "invalid" and info["reason"]


def test_text_actions(env) -> None:
    text = TextAction(env)
    text.reset(seed=1)
    _, score, *_, info = text.step("g1 + 0.5*g2")
    assert info["program"] == "g1+0.5*g2" and info["status"] == "scored" and score > 0
    _, score, *_, info = text.step("import os")
    assert score == 0 and info["status"] == "invalid" and info["program"] == "import os" and info["reason"]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 32))
def test_every_point_of_the_unit_cube_is_a_program(seed: int, length: int) -> None:
    grammar = Grammar(k=2, max_length=length)
    ids = from_cube(grammar, np.random.default_rng(seed).random(length))
    RewardProgram.parse(grammar.decode(ids), k=2, max_length=length)


def test_a_point_of_the_unit_cube_by_hand() -> None:
    """A program may start with g1, g2, -, ten digits or a parenthesis: four kinds, a quarter of the interval each."""
    grammar = Grammar(k=2, max_length=3)
    programs = [grammar.decode(from_cube(grammar, [x, 0.0, 0.0])) for x in (0.05, 0.2, 0.3, 0.501, 0.55, 0.749, 0.9)]
    assert programs == ["g1", "g2", "-g1", "0+g1", "2+g1", "9+g1", "(g1)"]


def test_the_unit_cube_refuses_what_is_outside(env) -> None:
    cube = UnitCube(env)
    for corner in (0.0, 1.0):
        RewardProgram.parse(cube.programs.decode(cube.action(np.full(cube.programs.shape, corner))), k=2)
    for wrong in (np.full(cube.programs.shape, 1.5), np.zeros(3), np.full(cube.programs.shape, np.nan)):
        with pytest.raises(ValueError, match="expected a point"):
            cube.action(wrong)
