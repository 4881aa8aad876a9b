"""derl_gym: reward design as a Gymnasium environment."""

__version__ = "0.1.0"
