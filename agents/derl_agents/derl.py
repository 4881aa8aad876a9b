"""The DERL proposer: a language model that learns to write reward programs by policy gradient.

Paper sections 3.1 and 3.3 and appendix I: GRPO over the n programs of one outer step. The model, its mask and
its log-probabilities are in lm.py; here is the update alone.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors.torch import load_file, load_model, save_file, save_model

from derl_agents.base import Agent
from derl_agents.lm import Batch, ProposerLM
from derl_agents.lm_options import LMOptions


class DERLProposer(Agent):
    """Samples n programs, reads their validation scores, takes a few clipped policy-gradient steps.

    The surrogate's gradient at ratio 1 is that of REINFORCE on the log-likelihood of whole programs, with the
    scores standardised over the group as advantages. Invalid programs stay in the group with score 0. A group
    whose scores are all equal says nothing: no update is made, and the log says so.

    Attributes:
        lm: The proposer.
        log: One JSON-able entry per outer step: ``step``, ``mean``, ``std``, ``updated``, and after an update
            ``kl`` (nats per program, to the initial proposer), ``clipped`` (share of tokens) and ``grad_norm``.
    """

    name = "derl"
    may_change = frozenset({"device"})

    @dataclasses.dataclass(frozen=True)
    class Options(LMOptions):
        """Of two values, the first is the small model's, the second (the paper's) a named model's."""

        lr: float | None = None
        """Learning rate of AdamW. None: 3e-3 or 1e-6."""
        epochs: int = 4
        """Gradient steps per outer step, on the same group."""
        clip: float = 0.2
        """The probability ratio is clipped to 1 - clip .. 1 + clip."""
        kl: float | None = None
        """Weight of the KL penalty to the initial proposer. None: 0.02 or 0.001."""
        max_grad_norm: float = 1.0
        """The gradient's norm is clipped to this."""
        beta2: float | None = None
        """AdamW's second beta. None: 0.95 or 0.999."""
        weight_decay: float = 0.0
        """AdamW's weight decay."""
        risk_seeking: float | None = None
        """Share of a group, its best programs, that alone moves the proposer, by how far each is above the rest
        (risk-seeking policy gradient). None: the whole group, as in the paper."""

        small_defaults: ClassVar[Mapping[str, Any]] = {
            **LMOptions.small_defaults,
            "lr": 3e-3,
            "kl": 0.02,
            "beta2": 0.95,
        }
        named_defaults: ClassVar[Mapping[str, Any]] = {
            **LMOptions.named_defaults,
            "lr": 1e-6,
            "kl": 0.001,
            "beta2": 0.999,
        }
        at_least: ClassVar[Mapping[str, float]] = {
            **LMOptions.at_least,
            **dict.fromkeys(("lr", "epochs", "clip", "kl", "beta2", "weight_decay"), 0),
        }
        above: ClassVar[Mapping[str, float]] = {**LMOptions.above, "max_grad_norm": 0, "risk_seeking": 0}

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.beta2 is not None and not self.beta2 < 1:
                raise ValueError(f"beta2 must be below 1, not {self.beta2!r}")
            if self.risk_seeking is not None and not self.risk_seeking < 1:
                raise ValueError(f"risk_seeking must be a share below 1, not {self.risk_seeking!r}")

    def __init__(self, envs: Any, options: Options | None = None, *, seed: int = 0, **fields: Any) -> None:
        super().__init__(envs, options, seed=seed, **fields)
        self.options = self.options.resolved(envs.unwrapped.mask_kind, envs.unwrapped.proposer)
        self.lm = ProposerLM(self.programs.grammar, envs.unwrapped.instruction, self.options, self.seed)
        self.reference: torch.nn.Module | None = None
        self.optimizer = torch.optim.AdamW(
            self.lm.model.parameters(),
            lr=self.options.lr,
            betas=(0.9, self.options.beta2),
            weight_decay=self.options.weight_decay,
        )
        self.samples: list[list[int]] = []
        self.log: list[dict[str, Any]] = []

    def start(self) -> None:
        """Cold-start the proposer and keep a frozen copy of it as the KL reference, both once."""
        self.lm.start()
        if self.reference is None and self.options.kl:
            self.reference = copy.deepcopy(self.lm.model).requires_grad_(False)

    def propose(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> np.ndarray:
        """Sample n programs from the proposer."""
        self.start()
        self.samples = self.lm.sample(self.group_size)
        return self.encode([self.lm.text(sample) for sample in self.samples])

    def learn(self, actions: np.ndarray, scores: np.ndarray, info: Mapping[str, Any]) -> None:
        """Update the proposer, unless the scores are all equal."""
        advantages = self.advantages(scores)
        entry = {"step": self.steps, "mean": float(scores.mean()), "std": float(scores.std())}
        if advantages is None:
            self.log.append({**entry, "updated": False, "reason": self.no_signal})
        else:
            self.log.append({**entry, "updated": True, **self.update(self.samples, advantages)})

    def advantages(self, scores: np.ndarray) -> np.ndarray | None:
        """Advantages (n,) of a group, or ``None`` where its scores say nothing."""
        if self.options.risk_seeking is None:
            return group_advantages(scores)
        return risk_seeking_advantages(scores, self.options.risk_seeking)

    @property
    def no_signal(self) -> str:
        """Why there are no advantages, for the log."""
        if self.options.risk_seeking is None:
            return "all scores of the group are equal"
        return "no score of the group is above its quantile"

    def update(self, samples: Sequence[Sequence[int]], advantages: np.ndarray) -> dict[str, float]:
        """Take ``epochs`` gradient steps on one group; returns the last one's statistics."""
        batch = self.lm.batch(samples)
        weights = torch.tensor(advantages, dtype=torch.float32, device=self.lm.device)
        reference = self.reference_log_probs(batch)
        old, stats = None, {}
        for _ in range(self.options.epochs):
            log_probs = self.lm.log_probs(batch)
            old = log_probs.detach() if old is None else old
            loss, stats = self.loss(batch, log_probs, old, reference, weights)
            loss = loss + self.extra_loss()
            self.optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(self.lm.model.parameters(), self.options.max_grad_norm)
            stats["grad_norm"] = float(norm)
            self.optimizer.step()
        return stats

    def loss(
        self,
        batch: Batch,
        log_probs: torch.Tensor,
        old: torch.Tensor,
        reference: torch.Tensor | None,
        advantages: torch.Tensor,
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Clipped surrogate plus KL penalty: summed over a program's tokens, END included, averaged over programs.

        Args:
            batch: The group.
            log_probs: (n, T, C), of the proposer now.
            old: (n, T, C), of the proposer that sampled the group.
            reference: (n, T, C), of the initial proposer; ``None`` without a KL penalty.
            advantages: (n,).
        """
        taken = batch.columns[..., None]
        ratio = (log_probs.gather(2, taken) - old.gather(2, taken))[..., 0].exp()
        clipped = ratio.clamp(1 - self.options.clip, 1 + self.options.clip)
        advantage = advantages[:, None]
        surrogate = torch.minimum(ratio * advantage, clipped * advantage)
        loss = -(surrogate * batch.valid).sum() / len(advantages)
        stats = {"clipped": float(((ratio != clipped) * batch.valid).sum() / batch.valid.sum())}
        if reference is not None:
            # Exact over the legal tokens at every sampled place: no single-sample estimator is needed.
            kl = ((log_probs.exp() * (log_probs - reference)).sum(-1) * batch.valid).sum() / len(advantages)
            loss = loss + self.options.kl * kl
            stats["kl"] = float(kl.detach())
        return loss, stats

    def extra_loss(self) -> torch.Tensor | float:
        """What a subclass adds to the loss of every gradient step."""
        return 0.0

    def reference_log_probs(self, batch: Batch) -> torch.Tensor | None:
        """(n, T, C) under the initial proposer, or ``None`` without a KL penalty."""
        if self.reference is None:
            return None
        with torch.no_grad():
            return self.lm.log_probs(batch, self.reference)

    def write_state(self, folder: Path) -> None:
        """Weights, optimizer, reference, log and the asked samples."""
        self.lm.save(folder, learned=True)
        (folder / "derl.json").write_text(json.dumps({"log": self.log, "samples": self.samples}))
        moments = {
            f"{index}.{key}": value
            for index, state in self.optimizer.state_dict()["state"].items()
            for key, value in state.items()
        }
        if moments:
            save_file(moments, folder / "optimizer.safetensors")
        if self.reference is not None and self.lm.cold_started:
            save_model(self.reference, str(folder / "reference.safetensors"))

    def read_state(self, folder: Path) -> None:
        """Read what :meth:`write_state` wrote."""
        # A named model that had no cold start is its own reference, as it was loaded by the constructor.
        if self.options.kl:
            self.reference = copy.deepcopy(self.lm.model).requires_grad_(False)
        self.lm.load(folder, learned=True)
        if not self.lm.started:
            self.reference = None
        elif self.reference is not None and self.lm.cold_started:
            load_model(self.reference, folder / "reference.safetensors", device=str(self.lm.device))
        state = json.loads((folder / "derl.json").read_text())
        self.log, self.samples = state["log"], state["samples"]
        optimizer = self.optimizer.state_dict()
        optimizer["state"] = {}
        if self.options.epochs and any(entry["updated"] for entry in self.log):
            for name, value in load_file(folder / "optimizer.safetensors").items():
                index, key = name.split(".")
                optimizer["state"].setdefault(int(index), {})[key] = value
        self.optimizer.load_state_dict(optimizer)


def group_advantages(scores: np.ndarray, epsilon: float = 1e-6) -> np.ndarray | None:
    """(v - mean) / (std + epsilon) over the whole group (paper appendix I), or ``None`` if all scores are equal.

    Args:
        scores: float64 (n,), invalid programs included with 0.
        epsilon: Keeps a nearly equal group finite. The standard deviation is the sample's (n - 1), as in TRL.
    """
    if np.ptp(scores) == 0:
        return None
    return (scores - scores.mean()) / (scores.std(ddof=1) + epsilon)


def risk_seeking_advantages(scores: np.ndarray, share: float, epsilon: float = 1e-6) -> np.ndarray | None:
    """max(v - q, 0) / share / (std + epsilon), or ``None`` if no score is above the quantile q.

    The gradient estimates that of the expected score of the best programs instead of all (Petersen et al. 2021, "Deep
    symbolic regression"), in units of the group's standard deviation, so that the same learning rate fits.

    Args:
        scores: float64 (n,).
        share: Of the group, what counts as best; q is the quantile at 1 - share.
        epsilon: As in :func:`group_advantages`.
    """
    above = np.maximum(scores - np.quantile(scores, 1 - share), 0.0)
    return above / share / (scores.std(ddof=1) + epsilon) if above.any() else None
