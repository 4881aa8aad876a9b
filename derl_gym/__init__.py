"""derl_gym: reward design for LLM reinforcement learning as a Gymnasium environment.

Importing this package registers the ids: ``gym.make("DERL-Arithmetic-v0")``. It imports no torch.
"""

from derl_gym.envs.registration import ENVIRONMENTS, register, register_all

__version__ = "0.1.0"
__all__ = ["ENVIRONMENTS", "register"]

register_all()
