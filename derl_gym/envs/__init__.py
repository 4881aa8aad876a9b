"""The environments and their wrappers, loaded on first use so that ``import derl_gym`` stays light."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from derl_gym.envs.design_env import RewardDesignEnv
    from derl_gym.envs.inner_runs import InfrastructureFailure
    from derl_gym.envs.measured import NotMeasured
    from derl_gym.envs.vector_env import RewardDesignVectorEnv
    from derl_gym.envs.wrappers import TextAction, TokenByToken, UnitCube

_HOMES = {
    "InfrastructureFailure": "derl_gym.envs.inner_runs",
    "NotMeasured": "derl_gym.envs.measured",
    "RewardDesignEnv": "derl_gym.envs.design_env",
    "RewardDesignVectorEnv": "derl_gym.envs.vector_env",
    "TextAction": "derl_gym.envs.wrappers",
    "TokenByToken": "derl_gym.envs.wrappers",
    "UnitCube": "derl_gym.envs.wrappers",
}

__all__ = [
    "InfrastructureFailure",
    "NotMeasured",
    "RewardDesignEnv",
    "RewardDesignVectorEnv",
    "TextAction",
    "TokenByToken",
    "UnitCube",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'derl_gym.envs' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
