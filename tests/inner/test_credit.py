"""Step-level credit by hand: the sums of the published baselines on small groups."""

from __future__ import annotations

import math

import pytest

from derl_gym.inner.credit import normalised, step_advantages
from derl_gym.tasks.agent import Episode, Move

HALF = 1 / math.sqrt(2)
"""What two different values are after normalisation, with the deviation over n - 1."""


def move(tag: str, action: str, seen: str = "", available: bool = True) -> Move:
    return Move(seen, f"<{tag}>because</{tag}><action>{action}</action>", available)


def invalid(seen: str = "") -> Move:
    return Move(seen, "I go there.", False)


def close(rows: list[list[float]], expected: list[list[float]]) -> None:
    assert [len(row) for row in rows] == [len(row) for row in expected]
    for row, wanted in zip(rows, expected, strict=True):
        assert row == pytest.approx(wanted, abs=1e-5)


def test_normalisation() -> None:
    assert normalised([3.0, 1.0]) == pytest.approx([HALF, -HALF], abs=1e-5)
    assert normalised([1.0, 1.0, 1.0]) == [0.0, 0.0, 0.0]
    assert normalised([5.0]) == [0.0] and normalised([]) == []
    assert normalised([0.0, 0.0, 3.0]) == pytest.approx([-1 / math.sqrt(3)] * 2 + [2 / math.sqrt(3)], abs=1e-5)


def test_rlvmr() -> None:
    """Returns 10 and -0.1. Planning scores 1 and 0; exploring 1, then 1 and 0 (the second "b" is no news)."""
    won = Episode("g", [move("planning", "a"), move("explore", "b")], "won")
    lost = Episode("g", [move("planning", "a"), move("explore", "b"), move("explore", "b"), invalid()])
    explore = normalised([1.0, 1.0, 0.0])
    close(
        step_advantages("rlvmr", [won, lost], [1.0, 0.0], 2),
        [
            [HALF + HALF, HALF + explore[0]],
            [-HALF - HALF, -HALF + explore[1], -HALF + explore[2], -HALF],
        ],
    )


def test_rlvmr_where_reflection_comes_first() -> None:
    group = [Episode("g", [move("reflection", "a")]), Episode("g", [invalid(), move("reflection", "a")])]
    returns = normalised([0.0, -0.1])
    scores = normalised([0.0, 1.0])
    close(step_advantages("rlvmr", group, [0, 0], 2), [[returns[0] + scores[0]], [returns[1], returns[1] + scores[1]]])
    close(step_advantages("rlvmr", group, [0, 0], 2, "rlvmr"), [[returns[0]], [returns[1], returns[1]]])


def test_gigpo() -> None:
    """Three steps saw "hall": what came from them on was 0.95 x 10, then 0 - 0.95 x 0.1, then -0.1."""
    won = Episode("g", [move("planning", "a", "hall"), move("monitor", "b", "kitchen")], "won")
    lost = Episode("g", [move("planning", "a", "hall"), invalid("hall"), move("monitor", "b", "bath")])
    returns = normalised([10.0, -0.1])
    hall = normalised([0.95 * 10, 0.95 * -0.1, -0.1])
    close(
        step_advantages("gigpo", [won, lost], [1.0, 0.0], 2),
        [[returns[0] + hall[0], returns[0]], [returns[1] + hall[1], returns[1] + hall[2], returns[1]]],
    )


def test_the_program_is_the_reward_of_the_episode() -> None:
    """0.5 x 10 - 0.1 and 2 x 10: what the program says, times 10, less the invalid steps."""
    group = [Episode("g", [invalid("x")]), Episode("g", [move("monitor", "a")], "won"), Episode("g", [])]
    wanted = normalised([4.9, 20.0, 0.0])
    close(step_advantages("gigpo", group, [0.5, 2.0, 0.0], 3), [[wanted[0]], [wanted[1]], []])


def test_groups_do_not_mix() -> None:
    pair = [Episode("g", [move("explore", "a", "x")], "won"), Episode("g", [invalid("x")])]
    other = [Episode("h", episode.moves, episode.status) for episode in pair[::-1]]
    for algorithm in ("rlvmr", "gigpo"):
        alone = step_advantages(algorithm, pair, [1.0, 0.0], 2)
        close(step_advantages(algorithm, pair + other, [1.0, 0.0, 0.0, 1.0], 2), alone + alone[::-1])


def test_what_is_refused() -> None:
    one, other = Episode("g", [invalid()]), Episode("h", [invalid()])
    with pytest.raises(ValueError, match="a group must play one game, not g, h"):
        step_advantages("rlvmr", [one, other], [0, 0], 2)
    with pytest.raises(ValueError, match="3 episodes with 3 rewards are no groups of 2"):
        step_advantages("rlvmr", [one] * 3, [0] * 3, 2)
    with pytest.raises(ValueError, match="2 episodes with 1 rewards"):
        step_advantages("rlvmr", [one] * 2, [0], 2)
    with pytest.raises(ValueError, match="'rlvmr' or 'gigpo', not 'ppo'"):
        step_advantages("ppo", [one] * 2, [0, 0], 2)
