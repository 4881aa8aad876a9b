"""Text worlds: ALFWorld, ScienceWorld or your own behind one protocol, played in guarded worker processes.

``base.py`` says what a world is, ``pool.py`` plays many episodes at once. Importing this loads no world.
"""

from derl_gym.tasks.worlds.base import Turn, World, WorldFailed
from derl_gym.tasks.worlds.pool import WorldPool

__all__ = ["Turn", "World", "WorldFailed", "WorldPool"]
