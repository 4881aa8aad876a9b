"""The DERL proposer with an archive: no class of programs twice, mutants of elites, self-imitation.

Every part is an option, so each can be switched off for an ablation; with all of them off this is derl.py.
Two programs are of one class when they are the same reward to GRPO (``equivalence_key`` of the environment).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from derl_agents.derl import DERLProposer
from derl_agents.lm import Batch
from derl_gym.programs import InvalidProgram


@dataclasses.dataclass
class Entry:
    """One class of programs in the archive.

    Attributes:
        sample: Columns of the first program of the class, END included.
        text: That program.
        scores: Every score that the class received.
    """

    sample: list[int]
    text: str
    scores: list[float]

    @property
    def mean(self) -> float:
        """Mean of the scores."""
        return sum(self.scores) / len(self.scores)


class EliteDERL(DERLProposer):
    """DERL that keeps what it found.

    The plain update forgets a good program that it drew once, and pays again and again for programs that are
    the same reward. Here no class is proposed twice, some slots are mutants of the best classes so far, and
    every update also imitates those.

    Attributes:
        archive: Classes by key, in the order they were found. Invalid programs are not kept, but count as seen.
    """

    name = "derl-elite"

    @dataclasses.dataclass(frozen=True)
    class Options(DERLProposer.Options):
        """The proposer's options and the archive's."""

        unique: bool = True
        """Propose no class that was proposed before, as far as resampling finds a new one."""
        resamples: int = 8
        """How often a slot whose class is known is drawn again before it is left as it is."""
        warm_up: int = 0
        """First outer steps without learning and mutants: samples of the initial proposer."""
        elites: int = 4
        """Best classes, by mean score, that are imitated and mutated; only those above the archive's average."""
        imitation: float = 3.0
        """Weight of the elites' negative log-likelihood (per token) in the loss; 0 switches it off."""
        imitation_temperature: float = 0.05
        """Elites are weighted by a softmax of their scores at this temperature (scores are in [0, 1])."""
        mutants: int = 2
        """Slots per outer step that hold mutants of elites, after the warm-up; at least one stays the proposer's."""
        rescore: int = 0
        """In the last outer step, propose this many best classes again, in turn over all slots, for a fairer
        choice among them. Useful only with the environment's cache="off": else the old score comes back."""

        at_least: ClassVar[Mapping[str, float]] = {
            **DERLProposer.Options.at_least,
            **dict.fromkeys(("resamples", "warm_up", "elites", "imitation", "mutants", "rescore"), 0),
        }
        above: ClassVar[Mapping[str, float]] = {**DERLProposer.Options.above, "imitation_temperature": 0}

    def __init__(self, envs: Any, options: Options | None = None, *, seed: int = 0, **fields: Any) -> None:
        super().__init__(envs, options, seed=seed, **fields)
        world = envs.unwrapped
        self.equivalence_key = world.equivalence_key
        self.outer_steps: int = world.outer_steps
        self.archive: dict[str, Entry] = {}
        self.seen: set[str] = set()
        self.sampled = np.zeros(self.group_size, dtype=bool)  # which slots are the proposer's own samples
        self._elite_batch: tuple[Batch, torch.Tensor] | None = None

    def key(self, text: str) -> str:
        """The class of a program; a text that has none is a class of its own."""
        return self.equivalence_key(text) or f"invalid {text}"

    def top(self, n: int) -> list[Entry]:
        """The n best classes by mean score, best first; the earlier of equals."""
        return sorted(self.archive.values(), key=lambda entry: -entry.mean)[:n]

    def elites(self) -> list[Entry]:
        """The best classes, as far as they beat the archive's average: none while all scores are equal."""
        average = sum(entry.mean for entry in self.archive.values()) / max(len(self.archive), 1)
        return [entry for entry in self.top(self.options.elites) if entry.mean > average + 1e-9]

    def propose(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> np.ndarray:
        """Sample new classes, fill some slots with mutants; in the last step perhaps propose the best again."""
        self.start()
        options, n = self.options, self.group_size
        again = self.top(options.rescore) if self.steps == self.outer_steps - 1 else []
        if again:
            self.samples = [again[slot % len(again)].sample for slot in range(n)]
            self.sampled[:] = False
        else:
            taken = set(self.seen)
            wanted = min(options.mutants, n - 1) if self.steps >= options.warm_up else 0
            mutants = self.mutants(wanted, taken)
            self.samples = self.fresh(n - len(mutants), taken) + mutants
            self.sampled[:] = np.arange(n) < n - len(mutants)
        return self.encode([self.lm.text(sample) for sample in self.samples])

    def fresh(self, n: int, taken: set[str]) -> list[list[int]]:
        """Draw n samples of the proposer, of new classes where resampling finds them; their classes join ``taken``."""
        samples: list[list[int]] = []
        for attempt in range(self.options.resamples + 1 if self.options.unique else 1):
            for sample in self.lm.sample(n - len(samples)):
                key = self.key(self.lm.text(sample))
                if not self.options.unique or attempt == self.options.resamples or key not in taken:
                    samples.append(sample)
                    taken.add(key)
            if len(samples) == n:
                break
        return samples

    def mutants(self, n: int, taken: set[str], attempts: int = 1000) -> list[list[int]]:
        """Up to n mutants of elites, of new classes; their classes join ``taken``.

        A mutant is an elite with a short span of tokens, perhaps empty, replaced by one of a program of the
        grammar's prior. What the mask does not allow is thrown away.
        """
        parents, mutants = self.elites(), []
        for _ in range(attempts if parents else 0):
            if len(mutants) == n:
                break
            parent = parents[self.rng.integers(len(parents))].text
            text = self.splice(parent, self.programs.grammar.sample(self.rng))
            try:
                columns = self.lm.vocabulary.columns(text)
            except InvalidProgram:
                continue
            key = self.equivalence_key(text)
            if key is not None and (key not in taken or not self.options.unique):
                mutants.append(columns)
                taken.add(key)
        return mutants

    def splice(self, parent: str, donor: str, longest: int = 4) -> str:
        """The parent with a span of at most ``longest`` tokens replaced by such a span of the donor."""
        spans = []
        for text in (parent, donor):
            tokens = [int(token) for token in self.programs.encode(text) if token]
            start = int(self.rng.integers(len(tokens) + 1))
            spans.append((tokens, start, min(start + int(self.rng.integers(longest + 1)), len(tokens))))
        (old, start, end), (new, new_start, new_end) = spans
        return self.programs.grammar.decode([*old[:start], *new[new_start:new_end], *old[end:]])

    def learn(self, actions: np.ndarray, scores: np.ndarray, info: Mapping[str, Any]) -> None:
        """Archive the programs, then update on the proposer's own samples and the elites."""
        self.remember(scores)
        options, own = self.options, np.flatnonzero(self.sampled)
        reason, advantages = "", None
        if self.steps < options.warm_up:
            reason = "warm-up"
        elif not len(own):
            reason = "no program of this step was sampled from the proposer"
        elif (advantages := self.advantages(scores[own])) is None and self.elite_batch() is None:
            reason = self.no_signal
        entry = {"step": self.steps, "mean": float(scores.mean()), "std": float(scores.std())}
        if reason:
            self.log.append({**entry, "updated": False, "reason": reason})
            return
        if advantages is None:
            advantages = np.zeros(len(own))
        self._elite_batch = self.elite_batch()
        stats = self.update([self.samples[slot] for slot in own], advantages)
        self.log.append({**entry, "updated": True, **stats})

    def remember(self, scores: np.ndarray) -> None:
        """Take the step's programs into the archive."""
        for sample, score in zip(self.samples, scores, strict=True):
            text = self.lm.text(sample)
            self.seen.add(self.key(text))
            if (key := self.equivalence_key(text)) is not None:
                self.archive.setdefault(key, Entry(sample, text, [])).scores.append(float(score))

    def elite_batch(self) -> tuple[Batch, torch.Tensor] | None:
        """The elites as a batch, and their weights (elites,) that sum to 1."""
        elites = self.elites()
        if not elites or not self.options.imitation:
            return None
        weights = np.array([entry.mean for entry in elites]) / self.options.imitation_temperature
        weights = np.exp(weights - weights.max())
        tensor = torch.tensor(weights / weights.sum(), dtype=torch.float32, device=self.lm.device)
        return self.lm.batch([entry.sample for entry in elites]), tensor

    def extra_loss(self) -> torch.Tensor | float:
        """Self-imitation: the elites' weighted negative log-likelihood per token."""
        if self._elite_batch is None:
            return 0.0
        batch, weights = self._elite_batch
        taken = self.lm.log_probs(batch).gather(2, batch.columns[..., None])[..., 0]
        per_token = (taken * batch.valid).sum(1) / batch.valid.sum(1)
        return -self.options.imitation * (weights * per_token).sum()

    def write_state(self, folder: Path) -> None:
        """The proposer's state and the archive."""
        super().write_state(folder)
        state = {
            "archive": {key: dataclasses.asdict(entry) for key, entry in self.archive.items()},
            "seen": sorted(self.seen),
            "sampled": self.sampled.tolist(),
        }
        (folder / "elite.json").write_text(json.dumps(state))

    def read_state(self, folder: Path) -> None:
        """Read what :meth:`write_state` wrote."""
        super().read_state(folder)
        state = json.loads((folder / "elite.json").read_text())
        self.archive = {key: Entry(**entry) for key, entry in state["archive"].items()}
        self.seen = set(state["seen"])
        self.sampled = np.array(state["sampled"], dtype=bool)
