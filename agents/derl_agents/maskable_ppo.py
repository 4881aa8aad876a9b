"""Proximal policy optimization of a small network that writes programs token by token (extra ``agents``).

Network, buffer and update are sb3-contrib's MaskablePPO, or Stable-Baselines3's PPO. Their own ``learn()`` steps an
environment that has to answer at once, so that it could neither be asked for a group nor be stopped and taken up again;
here the episodes are written in :meth:`TokenPPO.propose` and put into the buffer in :meth:`TokenPPO.learn`. An episode
is that of ``derl_gym.envs.TokenByToken``: a token per step, the score at the last one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from derl_agents.base import Agent
from derl_gym.fields import check_fields

try:
    import torch
    from safetensors.torch import load_file, save_file
    from sb3_contrib import MaskablePPO
    from sb3_contrib.common.maskable.buffers import MaskableRolloutBuffer
    from stable_baselines3 import PPO
    from stable_baselines3.common.buffers import RolloutBuffer
    from stable_baselines3.common.logger import Logger
except ImportError as error:
    raise ImportError("the agent maskable_ppo needs sb3-contrib: pip install 'derl-gym[agents]'") from error


class TokenPPO(Agent):
    """An actor-critic over prefixes; one PPO update per outer step, on the tokens of its n programs.

    It starts from scratch, at nearly even chances for every legal token, while the DERL proposer has seen programs of
    the grammar's prior before. On the CPU.

    Attributes:
        model: The library's algorithm, with its policy and optimizer.
        updates: PPO updates made so far.
    """

    name = "maskable_ppo"

    @dataclasses.dataclass(frozen=True)
    class Options:
        """The algorithm and its options, by the names that the library gives them."""

        algorithm: Literal["maskable_ppo", "ppo"] = "maskable_ppo"
        """"ppo" has no mask: it has to find out which tokens make a program, and hardly does in a few hundred."""
        learning_rate: float = 1e-3
        """Of Adam."""
        n_epochs: int = 10
        """Passes over the outer step's tokens."""
        batch_size: int = 64
        """Tokens per gradient step."""
        clip_range: float = 0.2
        """The probability ratio is clipped to 1 - clip_range .. 1 + clip_range."""
        ent_coef: float = 0.01
        """Weight of the entropy bonus."""
        gamma: float = 1.0
        """Discount per token."""
        gae_lambda: float = 0.95
        """Trade-off of the advantages between the score and the critic."""

        def __post_init__(self) -> None:
            least = {"learning_rate": 0, "n_epochs": 1, "batch_size": 2, "ent_coef": 0, "gamma": 0, "gae_lambda": 0}
            check_fields(self, at_least=least, above={"clip_range": 0})

    def __init__(self, envs: Any, options: Options | None = None, *, seed: int = 0, **fields: Any) -> None:
        super().__init__(envs, options, seed=seed, **fields)
        settings = dataclasses.asdict(self.options)
        self.masked = settings.pop("algorithm") == "maskable_ppo"
        self.mask_kind = envs.unwrapped.mask_kind
        algorithm: Any = MaskablePPO if self.masked else PPO
        # No environment yet, as in the library's load(): the spaces follow.
        self.model: Any = algorithm("MlpPolicy", None, device="cpu", _init_setup_model=False, **settings)
        self.model.observation_space = spaces.MultiDiscrete(self.programs.nvec)
        self.model.action_space = spaces.Discrete(self.programs.grammar.vocab_size)
        self.model.n_envs = 1
        self.model.set_logger(Logger(None, []))
        with _seeded(self.seed):
            self.model._setup_model()
        self.updates = 0

    def propose(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> np.ndarray:
        """Write n programs with the policy."""
        ids = np.zeros(self.shape, dtype=np.int64)
        self.model.policy.set_training_mode(False)
        with _seeded(int(self.rng.integers(2**63))), torch.no_grad():
            writing = np.arange(self.group_size)
            for place in range(self.shape[1]):
                masks = {"action_masks": self._masks(ids[writing], place)} if self.masked else {}
                tokens, _, _ = self.model.policy(torch.as_tensor(ids[writing]), **masks)
                ids[writing, place] = tokens.numpy()
                writing = writing[ids[writing, place] != 0]
                if not len(writing):
                    break
        return ids

    def learn(self, actions: np.ndarray, scores: np.ndarray, info: Mapping[str, Any]) -> None:
        """One PPO update on the group's tokens."""
        lengths = np.minimum((actions != 0).sum(1) + 1, self.shape[1])  # with <end>, where it was written
        total = int(lengths.sum())
        if total < 2:
            return  # one token has no spread of advantages
        kind = MaskableRolloutBuffer if self.masked else RolloutBuffer
        model, policy = self.model, self.model.policy
        sizes = (total, model.observation_space, model.action_space)
        buffer = kind(*sizes, device="cpu", gamma=model.gamma, gae_lambda=model.gae_lambda)
        policy.set_training_mode(False)
        for row, length, score in zip(actions, lengths, scores, strict=True):
            prefixes = np.tril(np.ones((length, self.shape[1]), dtype=np.int64), -1) * row
            legal = [self._masks(prefixes[[t]], t) for t in range(length)] if self.masked else []
            given = {"action_masks": torch.as_tensor(np.concatenate(legal))} if self.masked else {}
            with torch.no_grad():
                tokens = torch.as_tensor(row[:length])
                values, log_probs, _ = policy.evaluate_actions(torch.as_tensor(prefixes), tokens, **given)
            for t in range(length):
                reward, start = np.array([score if t == length - 1 else 0.0]), np.array([t == 0])
                more = {"action_masks": legal[t]} if self.masked else {}
                buffer.add(prefixes[[t]], row[[t]], reward, start, values[t], log_probs[[t]], **more)
        buffer.compute_returns_and_advantage(last_values=torch.zeros(1), dones=np.array([True]))
        model.rollout_buffer = buffer
        model.batch_size = self.options.batch_size
        while total % model.batch_size == 1:
            model.batch_size += 1  # a batch of one token has no spread either
        with _seeded(int(self.rng.integers(2**63))):
            model.train()
        self.updates += 1

    def _masks(self, prefixes: np.ndarray, place: int) -> np.ndarray:
        """Legal next tokens after prefixes of ``place`` tokens: bool (rows, V)."""
        return np.stack([self.programs.mask(row[:place], self.mask_kind) for row in prefixes]).astype(bool)

    def write_state(self, folder: Path) -> None:
        """Weights and optimizer."""
        policy = self.model.policy
        (folder / "ppo.json").write_text(json.dumps({"updates": self.updates}))
        save_file({name: value.contiguous() for name, value in policy.state_dict().items()}, folder / "ppo.safetensors")
        moments = {
            f"{index}.{key}": value
            for index, state in policy.optimizer.state_dict()["state"].items()
            for key, value in state.items()
        }
        if moments:
            save_file(moments, folder / "optimizer.safetensors")

    def read_state(self, folder: Path) -> None:
        """Read what :meth:`write_state` wrote."""
        policy = self.model.policy
        self.updates = int(json.loads((folder / "ppo.json").read_text())["updates"])
        policy.load_state_dict(load_file(folder / "ppo.safetensors"))
        optimizer = policy.optimizer.state_dict()
        if self.updates:
            for name, value in load_file(folder / "optimizer.safetensors").items():
                index, key = name.split(".")
                optimizer["state"].setdefault(int(index), {})[key] = value
        policy.optimizer.load_state_dict(optimizer)


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The libraries draw from the global generators of torch and numpy: seed them, and leave them as they were."""
    before = np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            np.random.set_state(before)
