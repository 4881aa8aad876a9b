"""Nevergrad's OnePlusOne on points of the unit cube: ``pip install "derl-gym[train]" nevergrad``."""

import gymnasium as gym
import nevergrad as ng

import derl_gym  # noqa: F401  (registers the ids)
from derl_gym.envs import UnitCube


def optimise(env, budget, seed=0):
    """Ask, step, tell; returns the best program and its validation score."""
    cube = UnitCube(env)
    point = ng.p.Array(shape=cube.action_space.shape, lower=0.0, upper=1.0)
    point.random_state.seed(seed)
    optimizer = ng.optimizers.OnePlusOne(point, budget=budget)
    cube.reset(seed=seed)
    found = []
    for _ in range(budget):
        candidate = optimizer.ask()
        _, score, _, _, info = cube.step(candidate.value)  # trains an inner policy
        optimizer.tell(candidate, -score)  # it minimises
        found.append((score, info["program"]))
    return max(found)


if __name__ == "__main__":
    print(optimise(gym.make("DERL-Arithmetic-v0", outer_steps=20, group_size=1, run_dir="runs/nevergrad"), budget=20))
