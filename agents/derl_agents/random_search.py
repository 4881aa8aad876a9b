"""Random search: programs drawn from a fixed distribution, nothing learned (paper section 5.1, appendix F.2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from derl_agents.base import Agent
from derl_agents.lm_options import LMOptions

if TYPE_CHECKING:
    from derl_agents.lm import ProposerLM


class RandomSearch(Agent):
    """Draws every program independently from a prior that never changes.

    What "random" means decides what it finds, so the prior has a name: the grammar's own (mostly linear
    programs), uniform tokens, or the initial DERL proposer, which is the paper's random search.
    """

    name = "random"
    may_change = frozenset({"device"})

    @dataclasses.dataclass(frozen=True)
    class Options(LMOptions):
        """The prior; everything below ``prior`` matters to ``prior="proposer"`` alone."""

        prior: Literal["grammar", "charset", "proposer"] = "grammar"
        """"grammar": Grammar.sample. "charset": uniform tokens of the alphabet. "proposer": the frozen initial
        language model of the DERL proposer with the same options and seed."""

    def __init__(self, envs: Any, options: Options | None = None, *, seed: int = 0, **fields: Any) -> None:
        super().__init__(envs, options, seed=seed, **fields)
        self.options = self.options.resolved(envs.unwrapped.mask_kind, envs.unwrapped.proposer)
        self.lm: ProposerLM | None = None
        if self.options.prior == "proposer":
            from derl_agents.lm import ProposerLM

            self.lm = ProposerLM(self.programs.grammar, envs.unwrapped.instruction, self.options, self.seed)

    def propose(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> np.ndarray:
        """Draw n programs."""
        if self.lm is not None:
            self.lm.start()
            return self.encode([self.lm.text(sample) for sample in self.lm.sample(self.group_size)])
        grammar = self.programs.grammar
        draw = grammar.sample if self.options.prior == "grammar" else grammar.sample_charset
        return self.encode([draw(self.rng) for _ in range(self.group_size)])

    def write_state(self, folder: Path) -> None:
        """The frozen proposer, if there is one."""
        if self.lm is not None:
            self.lm.save(folder)

    def read_state(self, folder: Path) -> None:
        """Read what :meth:`write_state` wrote."""
        if self.lm is not None:
            self.lm.load(folder)
