"""The registered ids. Nothing heavy is imported here: entry points are named, not loaded."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "DERL-Arithmetic-v0": {"task": "derl_gym.tasks.arithmetic:Arithmetic", "outer_steps": 10},
    "DERL-GSM8K-v0": {"task": "derl_gym.tasks.mathematics:GSM8K", "preset": "paper"},
    "DERL-MATH-v0": {"task": "derl_gym.tasks.mathematics:MATH", "preset": "paper"},
    "DERL-MATH-GSM8K-v0": {"task": "derl_gym.tasks.mathematics:MATHAndGSM8K", "preset": "paper"},
    "DERL-ALFWorld-L0-v0": {"task": "derl_gym.tasks.alfworld:ALFWorldL0", "preset": "paper"},
    "DERL-ALFWorld-L1-v0": {"task": "derl_gym.tasks.alfworld:ALFWorldL1", "preset": "paper"},
    "DERL-ALFWorld-L2-v0": {"task": "derl_gym.tasks.alfworld:ALFWorldL2", "preset": "paper"},
    "DERL-ScienceWorld-L0-v0": {"task": "derl_gym.tasks.scienceworld:ScienceWorldL0", "preset": "paper"},
    "DERL-ScienceWorld-L1-v0": {"task": "derl_gym.tasks.scienceworld:ScienceWorldL1", "preset": "paper"},
    "DERL-ScienceWorld-L2-v0": {"task": "derl_gym.tasks.scienceworld:ScienceWorldL2", "preset": "paper"},
}
"""Id -> the settings that it fixes."""


def register(environment_id: str, task: str, **settings: Any) -> None:
    """Register an id for a task of your own.

    Args:
        environment_id: For example ``"DERL-MyTask-v0"``.
        task: Where its class is, ``"my_package.my_task:MyTask"``; see :class:`derl_gym.tasks.Task`.
        **settings: Defaults of the id, as in :class:`RewardDesignEnv`.
    """
    gym.register(
        id=environment_id,
        entry_point="derl_gym.envs.design_env:RewardDesignEnv",
        vector_entry_point="derl_gym.envs.vector_env:RewardDesignVectorEnv",
        kwargs={"task": task, **settings},
    )


def register_all() -> None:
    """Register every id of :data:`ENVIRONMENTS`; called when ``derl_gym`` is imported."""
    for environment_id, settings in ENVIRONMENTS.items():
        register(environment_id, **settings)
