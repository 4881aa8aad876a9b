"""What an agent may read from ``env.unwrapped``, the same for one environment and for a vector of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np

from derl_gym.envs.outer_loop import OuterLoop
from derl_gym.envs.settings import Scored
from derl_gym.programs import InvalidProgram, ProgramSpace
from derl_gym.tasks import Primitive


class PublicFace:
    """Mixed into both environments; everything comes from their :class:`OuterLoop`."""

    loop: OuterLoop

    @property
    def programs(self) -> ProgramSpace:
        """The space of one program: encode, decode, mask, sample."""
        return self.loop.programs

    @property
    def primitives(self) -> tuple[Primitive, ...]:
        """g1..gk of the task, flipped where asked; ablated ones included."""
        return self.loop.task.primitives

    @property
    def states(self) -> np.ndarray:
        """Float64 (S, k): the states that equivalence and audits are decided on."""
        return self.loop.states.copy()

    @property
    def group_size(self) -> int:
        """Programs per outer step."""
        return self.loop.settings.group_size

    @property
    def outer_steps(self) -> int:
        """Outer steps per episode."""
        return self.loop.settings.outer_steps

    @property
    def proposer(self) -> str:
        """Model of a proposer that is a language model: ``"small"`` (built in), a hub name or a folder."""
        return self.loop.settings.proposer

    @property
    def mask_kind(self) -> Literal["grammar", "charset"]:
        """Which mask the environment was made with: ``"grammar"`` or ``"charset"``."""
        return self.loop.settings.mask

    @property
    def run_dir(self) -> Path:
        """Folder of the ledger."""
        return self.loop.run_dir

    @property
    def instruction(self) -> str:
        """What a proposer reads: the task, the allowed primitives and how a program is written."""
        allowed = [p for p in self.primitives if p.name in self.programs.grammar.primitives]
        lines = [f"- {p.name}: {p.description} (value {describe_range(p)})" for p in allowed]
        return (
            f"Design a reward for reinforcement learning. Task: {self.loop.task.description}\n"
            "For each output of the policy these primitives are computed:\n" + "\n".join(lines) + "\n"
            "Write the reward as one arithmetic expression over the primitives with + - * / **, decimal numbers "
            f"and parentheses, at most {self.programs.grammar.max_length} symbols long, for example "
            f"{allowed[0].name}+0.5*{allowed[-1].name}. The policy is trained with GRPO under this reward, and the "
            "expression's score is the share of validation problems that the trained policy solves."
        )

    def equivalence_key(self, program: str) -> str | None:
        """The class of programs with equal GRPO advantages; ``None`` where the text does not parse."""
        try:
            parsed = self.loop.parse(program)
        except InvalidProgram:
            return None
        return self.loop.class_of(parsed, parsed.analyse(self.primitives, states=self.loop.states))

    def recorded_actions(self) -> list[np.ndarray]:
        """Actions (n, L) of the current episode's outer steps that the ledger already holds, in order."""
        return self.loop.ledger.recorded_actions(self.loop.episode)

    @contextmanager
    def checkpoint(self) -> Iterator[Path]:
        """A folder for the agent's state before the coming outer step; kept only when the block ends well."""
        with self.loop.ledger.new_checkpoint(self.loop.episode, self.loop.step) as folder:
            yield folder

    def last_checkpoint(self) -> tuple[int, Path] | None:
        """The latest agent checkpoint of the current episode: its outer step and folder."""
        return self.loop.ledger.last_checkpoint(self.loop.episode)


def describe_range(primitive: Primitive) -> str:
    """``0 or 1``, ``0, 0.5 or 1``, ``0 to 1``."""
    if primitive.values is None:
        return f"{primitive.low:g} to {primitive.high:g}"
    *most, last = (f"{value:g}" for value in primitive.values)
    return f"{', '.join(most)} or {last}" if most else last


def describe(scored: Scored) -> str:
    """One line on one proposal."""
    verdict = f"{100 * scored.score:5.1f} %" if scored.status == "scored" else f"{scored.status:>7}"
    note = scored.reason or ("seen before" if scored.repeated else "")
    return f"{verdict}  {scored.structure:<8}  {scored.program or '(empty)'}" + (f"  [{note}]" if note else "")
