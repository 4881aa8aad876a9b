"""An Optuna study over the weights of a sum: ``pip install "derl-gym[train]" optuna``."""

import gymnasium as gym
import optuna

import derl_gym  # noqa: F401  (registers the ids)


def optimise(envs, outer_steps, seed=0):
    """One trial per program, a group of them per outer step; returns the best program and its score."""
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed, constant_liar=True))
    names = envs.unwrapped.programs.grammar.primitives
    envs.reset(seed=seed)
    for _ in range(outer_steps):
        trials = [study.ask() for _ in range(envs.num_envs)]
        texts = ["+".join(f"{t.suggest_int(g, 0, 9)}*{g}" for g in names) for t in trials]
        _, scores, *_ = envs.step(envs.action_space.encode(texts))  # trains the group's inner policies
        for trial, text, score in zip(trials, texts, scores, strict=True):
            trial.set_user_attr("program", text)
            study.tell(trial, score)
    return study.best_value, study.best_trial.user_attrs["program"]


if __name__ == "__main__":
    print(optimise(gym.make_vec("DERL-Arithmetic-v0", num_envs=4, outer_steps=5, run_dir="runs/optuna"), outer_steps=5))
