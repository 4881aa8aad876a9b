"""MaskablePPO drives the environment itself, token by token; the ledger judges it."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import pytest

import derl_gym  # noqa: F401
from derl_gym.envs import TokenByToken
from derl_gym.trials.ledger import Ledger

PROGRAMS = 200


@pytest.mark.slow
def test_maskable_ppo_trains_for_200_programs(tmp_path: Path) -> None:
    sb3_contrib = pytest.importorskip("sb3_contrib")
    from stable_baselines3.common.callbacks import BaseCallback

    class Stop(BaseCallback):
        def _on_step(self) -> bool:
            return self.training_env.get_attr("unwrapped")[0].loop.episode == 0

    env = gym.make(
        "DERL-Arithmetic-v0",
        outer_steps=PROGRAMS,
        group_size=1,
        run_dir=str(tmp_path),
        inner={"steps": 1, "batch_size": 16, "eval_examples": 8},
    )
    model = sb3_contrib.MaskablePPO(
        "MlpPolicy", TokenByToken(env), n_steps=256, batch_size=64, n_epochs=2, seed=0, device="cpu"
    )
    model.learn(total_timesteps=PROGRAMS * 32, callback=Stop())
    env.close()
    with Ledger(tmp_path, readonly=True) as ledger:
        proposals = ledger.proposals(episode=0)
    assert len(proposals) == PROGRAMS
    # The mask leads to programs that parse; the few invalid ones are undefined on a rollout.
    assert all(row["identity"] for row in proposals)
    assert sum(row["status"] == "scored" for row in proposals) > PROGRAMS / 2
