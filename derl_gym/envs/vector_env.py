"""The vector environment: one step is one outer step, n programs whose inner runs go in parallel."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from derl_gym.envs.design_env import checked_actions, checked_seed, observation_space
from derl_gym.envs.outer_loop import OuterLoop
from derl_gym.envs.public_face import PublicFace, describe
from derl_gym.envs.settings import Scored, make_settings


class RewardDesignVectorEnv(PublicFace, VectorEnv[dict[str, np.ndarray], np.ndarray, np.ndarray]):
    """n reward programs at a time: the group of one outer step (paper, algorithm 1).

    What :class:`derl_gym.envs.RewardDesignEnv` says of actions, observations, rewards, infos and arguments holds
    for each of the n slots; ``num_envs`` is the group size. All slots end together, after ``outer_steps`` steps,
    and the step that ends them returns the next episode's first observation (``AutoresetMode.SAME_STEP``), with
    the last one under ``infos["final_obs"]`` and ``infos["final_info"]``. The inner runs of a step share
    ``workers`` processes and may end in any order; which slot gets which score never depends on it.
    """

    metadata: ClassVar[dict[str, Any]] = {
        "render_modes": ["ansi", "human"],
        "render_fps": 1,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(self, num_envs: int = 8, *, render_mode: str | None = None, **settings: Any) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode must be one of 'ansi', 'human' or None, not {render_mode!r}")
        self.num_envs = num_envs
        self.render_mode = render_mode
        settings["group_size"] = num_envs
        self.loop = OuterLoop(make_settings(settings), lambda: self.spec.id if self.spec else "")
        self.single_action_space = self.loop.programs
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.single_observation_space = observation_space(self.loop)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        if render_mode == "human":
            self.loop.on_scored, self.loop.on_news = self._print, print
        self._group: list[Scored] = []
        self._started = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Start a search in all slots. One seed: the slots' inner runs share it.

        Raises:
            ValueError: for a list of seeds, since a group shares its seed, or one outside 0 .. 2**63 - 1.
        """
        seed = checked_seed(seed)
        super().reset(seed=seed)
        self.loop.begin(seed if seed is not None else int(self.np_random.integers(2**31)))
        shape = (self.num_envs, self.programs.shape[0])
        self._ids, self._scores = np.zeros(shape, np.int64), np.zeros(self.num_envs)
        self._best_ids, self._best = np.zeros(shape[1:], np.int64), 0.0
        self._group = []
        self._started = True
        return self._observation(), self._infos(
            [{"instruction": self.instruction, "seed": self.loop.seed}] * self.num_envs
        )

    def step(
        self, actions: np.ndarray
    ) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One outer step.

        Args:
            actions: Token ids, int (n, L).

        Returns:
            Batched observation, validation scores float64 (n,), terminations and truncations bool (n,), infos.
        """
        if not self._started:
            raise ResetNeeded("the search was never started: call envs.reset() before envs.step()")
        ids = checked_actions(actions, self._ids.shape, self.programs.grammar.vocab_size)
        group = self.loop.score(ids)
        self._group = group
        self._ids, self._scores = ids, np.array([scored.score for scored in group], dtype=np.float64)
        whole = np.where([scored.stopped for scored in group], 0.0, self._scores)
        if whole.max() > self._best:
            self._best, self._best_ids = float(whole.max()), ids[whole.argmax()]
        scores, observation = self._scores.copy(), self._observation()
        infos = self._infos([scored.info() for scored in group])
        over = np.full(self.num_envs, self.loop.done)
        if self.loop.done:
            final, final_info = observation, infos
            observation, infos = self.reset()
            rows = np.empty(self.num_envs, dtype=object)
            rows[:] = [{key: value[i] for key, value in final.items()} for i in range(self.num_envs)]
            infos |= final_info | {"final_obs": rows, "_final_obs": over.copy()}
            infos |= {"final_info": final_info, "_final_info": over.copy()}
        return observation, scores, over, np.zeros(self.num_envs, dtype=bool), infos

    def render(self) -> tuple[str, ...] | None:
        """``"ansi"``: a line for each program of the last outer step."""
        return tuple(map(describe, self._group)) if self.render_mode == "ansi" else None

    def close_extras(self, **kwargs: Any) -> None:
        """Kill what runs and let go of the run directory."""
        self.loop.close()

    def _infos(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        for i, row in enumerate(rows):
            infos = self._add_info(infos, row, i)
        return infos

    def _observation(self) -> dict[str, np.ndarray]:
        n = self.num_envs
        return {
            "progress": np.full((n, 1), self.loop.step / self.loop.settings.outer_steps, dtype=np.float32),
            "program": self._ids.copy(),
            "score": self._scores[:, None].astype(np.float32),
            "best_program": np.tile(self._best_ids, (n, 1)),
            "best_score": np.full((n, 1), self._best, dtype=np.float32),
        }

    @staticmethod
    def _print(scored: Scored) -> None:
        print(describe(scored), flush=True)
