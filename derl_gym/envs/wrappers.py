"""Other ways to write a program: token by token (MaskablePPO), as text (LLMs), as a point of the unit cube (CMA-ES)."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from derl_gym.envs.design_env import RewardDesignEnv
from derl_gym.programs import InvalidProgram, from_cube

Observation = dict[str, np.ndarray]


def innermost(env: gym.Env[Any, Any]) -> RewardDesignEnv:
    """The environment under the wrappers.

    Raises:
        TypeError: when it is another environment.
    """
    if not isinstance(env.unwrapped, RewardDesignEnv):
        raise TypeError(f"expected an environment around RewardDesignEnv, got {env.unwrapped}")
    return env.unwrapped


class TokenByToken(gym.Wrapper[np.ndarray, Any, Observation, np.ndarray], RecordConstructorArgs):
    """One token per step: an episode writes one program, and its last step scores it.

    Action: ``Discrete(V)``, a token id. Observation: ``MultiDiscrete`` ``(L,)``, the prefix written so far, padded
    with ``<end>``. The reward is 0 until ``<end>`` (or the L-th token) and then the validation score.
    :meth:`action_masks` (bool, for sb3-contrib) and ``info["action_mask"]`` (int8, for ``Discrete.sample``) hold the
    legal next tokens; an illegal token is taken all the same, and its program scores 0.

    ``reset`` starts a new program and leaves the search underneath as it is, unless that is over or a seed is
    given.

    Args:
        env: An environment around :class:`RewardDesignEnv`.
        pad: Make every episode L steps long: after ``<end>`` only ``<end>`` is legal, and the program is scored at
            the last step. Parallel workers then wait for no one.
    """

    def __init__(self, env: gym.Env[Observation, np.ndarray], pad: bool = False) -> None:
        RecordConstructorArgs.__init__(self, pad=pad)
        gym.Wrapper.__init__(self, env)
        self.programs = innermost(env).programs
        self._kind: Literal["grammar", "charset"] = innermost(env).mask_kind
        self.pad = pad
        self.action_space = spaces.Discrete(self.programs.grammar.vocab_size)
        self.observation_space = spaces.MultiDiscrete(self.programs.nvec)
        self._prefix: list[int] = []
        self._search_over = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start a program; start a search too when the last one is over or a seed is given."""
        info: dict[str, Any] = {}
        if self._search_over or seed is not None or options is not None:
            _, info = self.env.reset(seed=seed, options=options)
            self._search_over = False
        self._prefix = []
        return self._observation(), info | {"action_mask": self._mask()}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Write one token; the last one trains and scores."""
        self._prefix.append(int(action))
        length = self.programs.shape[0]
        ended = self._prefix[-1] == 0 and not self.pad
        if not ended and len(self._prefix) < length:
            return self._observation(), 0.0, False, False, {"action_mask": self._mask()}
        _, score, terminated, truncated, info = self.env.step(self._observation())
        self._search_over = terminated or truncated
        return (
            self._observation(),
            float(score),
            not truncated,
            truncated,
            info | {"action_mask": self._mask()},
        )

    def action_masks(self) -> np.ndarray:
        """Legal next tokens, bool (V,)."""
        return self._mask().astype(bool)

    def _mask(self) -> np.ndarray:
        try:
            return self.programs.mask(self._prefix, self._kind)
        except InvalidProgram:  # an illegal token was taken: nothing but the end can follow
            return self.programs.mask([0], "charset")

    def _observation(self) -> np.ndarray:
        ids = np.zeros(self.programs.shape, dtype=np.int64)
        ids[: len(self._prefix)] = self._prefix
        return ids


class TextAction(gym.ActionWrapper[Observation, str, np.ndarray], RecordConstructorArgs):
    """Programs as text: ``env.step("g1+0.5*g2")``. Text outside the alphabet is an invalid program, not an error."""

    def __init__(self, env: gym.Env[Observation, np.ndarray]) -> None:
        RecordConstructorArgs.__init__(self)
        gym.ActionWrapper.__init__(self, env)
        self.programs = innermost(env).programs
        characters = sorted({character for token in self.programs.grammar.tokens[1:] for character in token})
        longest = max(len(token) for token in self.programs.grammar.tokens[1:])
        self.action_space = spaces.Text(
            min_length=0, max_length=longest * self.programs.shape[0], charset="".join(characters)
        )
        self._reason = ""

    def action(self, action: str) -> np.ndarray:
        """Token ids of the text; the empty program where it can't be written in the alphabet."""
        self._reason = ""
        try:
            return self.programs.encode(action)
        except InvalidProgram as error:
            self._reason = str(error)
            return np.zeros(self.programs.shape, dtype=np.int64)

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Score one program; ``info["program"]`` and ``info["reason"]`` speak of the text that was given."""
        observation, score, terminated, truncated, info = super().step(action)
        if self._reason:
            info |= {"program": action, "reason": self._reason}
        return observation, float(score), terminated, truncated, info


class UnitCube(gym.ActionWrapper[Observation, np.ndarray, np.ndarray], RecordConstructorArgs):
    """Programs as points of ``Box(0, 1, (L,))``, for optimizers of real vectors (CMA-ES, TPE, random).

    Coordinate i picks the i-th token among those that the grammar allows there, and every point is a well-formed
    program: see :func:`derl_gym.programs.from_cube`.
    """

    def __init__(self, env: gym.Env[Observation, np.ndarray]) -> None:
        RecordConstructorArgs.__init__(self)
        gym.ActionWrapper.__init__(self, env)
        self.programs = innermost(env).programs
        self.action_space = spaces.Box(0.0, 1.0, self.programs.shape, np.float32)

    def action(self, action: np.ndarray) -> np.ndarray:
        """Token ids (L,) of a point (L,).

        Raises:
            ValueError: when the point has another shape or lies outside the cube.
        """
        return from_cube(self.programs.grammar, action)
