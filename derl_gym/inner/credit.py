"""Step-level credit for agent tasks: the published baselines RLVMR and GiGPO as per-turn advantages.

Both add to the episode's group-normalised advantage one of its single steps. Pure numbers: episodes and rewards in,
one advantage per turn out; ``episodes.py`` spreads them over the tokens. Unlike in the authors' code, where every step
is a training example of its own, an episode is one sequence here, whose tokens count alike (``loss_type="grpo"``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np

from derl_gym.tasks.agent import Episode
from derl_gym.tasks.step_scores import Compat, parse_reply, step_scores

EPSILON = 1e-6
"""Added to a standard deviation."""
SUCCESS = 10.0
"""What a program's reward of 1 counts in an episode's return: with the outcome as program, success is worth 10."""
INVALID = 0.1
"""What every invalid step takes off the return."""
STEP_WEIGHT = 1.0
"""Weight of the step's advantage beside the episode's."""
DISCOUNT = 0.95
"""GiGPO's discount per step of the returns that it compares."""


def step_advantages(
    algorithm: str,
    episodes: Sequence[Episode],
    rewards: Sequence[float],
    group_size: int,
    compat: Compat | None = None,
) -> list[list[float]]:
    """Advantages of the turns of episodes.

    Args:
        algorithm: ``"rlvmr"`` (Zhang et al., 2025b) or ``"gigpo"`` (Feng et al., 2025).
        episodes: Consecutive groups of ``group_size``, each of one game.
        rewards: The program's reward of each episode.
        group_size: Episodes per group.
        compat: Of the step scores.

    Returns:
        For each episode one advantage per turn.

    Raises:
        ValueError: the episodes are no whole groups, a group holds several games, or the algorithm is unknown.
    """
    if len(episodes) % group_size or len(rewards) != len(episodes):
        raise ValueError(f"{len(episodes)} episodes with {len(rewards)} rewards are no groups of {group_size}")
    credit: list[list[float]] = []
    for start in range(0, len(episodes), group_size):
        group = episodes[start : start + group_size]
        if len({episode.game for episode in group}) > 1:
            raise ValueError(f"a group must play one game, not {', '.join(sorted({e.game for e in group}))}")
        valid = [[parse_reply(move.reply).valid for move in episode.moves] for episode in group]
        ends = [SUCCESS * reward for reward in rewards[start : start + group_size]]
        whole = normalised([end - INVALID * flags.count(False) for end, flags in zip(ends, valid, strict=True)])
        if algorithm == "rlvmr":
            steps = _by_tag(group, valid, compat)
        elif algorithm == "gigpo":
            steps = _by_observation(group, valid, ends)
        else:
            raise ValueError(f"algorithm must be 'rlvmr' or 'gigpo', not {algorithm!r}")
        credit += [
            [of_all + STEP_WEIGHT * of_it for of_it in turns] for of_all, turns in zip(whole, steps, strict=True)
        ]
    return credit


def normalised(values: Sequence[float]) -> list[float]:
    """(value - mean) / (standard deviation + epsilon), the deviation with n - 1; one value alone is 0."""
    array = np.asarray(values, dtype=np.float64)
    if len(array) < 2:
        return [0.0] * len(array)
    return ((array - array.mean()) / (array.std(ddof=1) + EPSILON)).tolist()


def _by_tag(group: Sequence[Episode], valid: list[list[bool]], compat: Compat | None) -> list[list[float]]:
    """RLVMR: the step scores, normalised among the group's steps of the same tag. Invalid steps have no tag: 0."""
    scores: list[list[float]] = []
    tags: list[list[Hashable]] = []
    for episode, flags in zip(group, valid, strict=True):
        replies = [parse_reply(move.reply) for move in episode.moves]
        scores.append(step_scores(replies, [move.available for move in episode.moves], episode.success, compat))
        tags.append([reply.tag if ok else None for reply, ok in zip(replies, flags, strict=True)])
    return _within(scores, tags)


def _by_observation(group: Sequence[Episode], valid: list[list[bool]], ends: Sequence[float]) -> list[list[float]]:
    """GiGPO: the discounted returns from each step on, normalised among the group's steps that saw the same."""
    returns: list[list[float]] = []
    for flags, end in zip(valid, ends, strict=True):
        backwards: list[float] = []
        for ok in reversed(flags):
            later = DISCOUNT * backwards[-1] if backwards else end
            backwards.append(later - INVALID * (not ok))
        returns.append(backwards[::-1])
    return _within(returns, [[move.seen for move in episode.moves] for episode in group])


def _within(values: list[list[float]], kinds: Sequence[Sequence[Hashable]]) -> list[list[float]]:
    """Values normalised among those of the same kind; 0 where the kind is ``None``."""
    places: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)
    for i, row in enumerate(kinds):
        for t, kind in enumerate(row):
            if kind is not None:
                places[kind].append((i, t))
    found = [[0.0] * len(row) for row in values]
    for where in places.values():
        for (i, t), value in zip(where, normalised([values[i][t] for i, t in where]), strict=True):
            found[i][t] = value
    return found
