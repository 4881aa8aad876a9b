"""Reward programs: the outer action space (paper section 3.2). numpy and gymnasium.spaces only."""

from derl_gym.programs.analysis import Analysis, states_of
from derl_gym.programs.cube import from_cube
from derl_gym.programs.evaluate import UndefinedReward
from derl_gym.programs.grammar import END, Grammar
from derl_gym.programs.parse import InvalidProgram
from derl_gym.programs.program import RewardProgram
from derl_gym.programs.space import BatchedProgramSpace, ProgramSpace

__all__ = [
    "END",
    "Analysis",
    "BatchedProgramSpace",
    "Grammar",
    "InvalidProgram",
    "ProgramSpace",
    "RewardProgram",
    "UndefinedReward",
    "from_cube",
    "states_of",
]
