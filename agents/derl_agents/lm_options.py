"""Options of every agent that samples programs from a language model.

They stand apart from lm.py because the command line and random search read them without importing torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from derl_gym.fields import check_fields


@dataclasses.dataclass(frozen=True)
class LMOptions:
    """Which model writes the programs, under which mask, and how it starts.

    ``None`` takes the value that fits the model: the first one named for the built-in small model, the second
    for a model given by name or folder.
    """

    model: str | None = None
    """"small": a built-in transformer over the program alphabet, trained at the start on programs of the
    grammar's prior. Anything else: hub name or folder of a causal language model with safetensors weights
    (the paper's is Qwen/Qwen2.5-0.5B-Instruct). None: the environment's proposer, which its preset names."""
    mask: Literal["grammar", "charset"] | None = None
    """"grammar": only tokens that keep the program completable; every program parses. "charset": the paper's
    mask, any token made of the alphabet's characters. None: as the environment was made with."""
    temperature: float | None = None
    """Sampling temperature; log-probabilities are those of the scaled distribution. None: 1.0 or 0.7."""
    cold_start_programs: int = 4096
    """Programs of the grammar's prior that the cold start learns from."""
    cold_start_steps: int | None = None
    """Maximum-likelihood steps on them before the search. None: 300 or 0."""
    cold_start_batch: int = 64
    """Programs per cold-start step."""
    cold_start_lr: float | None = None
    """Peak learning rate of the cold start, decaying to zero. None: 1e-2 or 1e-5."""
    device: str = "auto"
    """Torch device of the proposer. "auto": the CPU for the small model, else CUDA where there is some."""

    small_defaults: ClassVar[Mapping[str, Any]] = {
        "temperature": 1.0,
        "cold_start_steps": 300,
        "cold_start_lr": 1e-2,
    }
    named_defaults: ClassVar[Mapping[str, Any]] = {
        "temperature": 0.7,
        "cold_start_steps": 0,
        "cold_start_lr": 1e-5,
    }

    at_least: ClassVar[Mapping[str, float]] = {
        "cold_start_programs": 1,
        "cold_start_steps": 0,
        "cold_start_batch": 1,
        "cold_start_lr": 0,
    }
    """Smallest value by field."""
    above: ClassVar[Mapping[str, float]] = {"temperature": 0}
    """What a field must exceed."""

    def __post_init__(self) -> None:
        check_fields(self, at_least=self.at_least, above=self.above)

    def resolved(self, mask: str = "grammar", proposer: str = "small") -> Self:
        """These options with every ``None`` replaced: by the environment's ``mask`` and ``proposer``, or what fits."""
        model = self.model or proposer
        defaults = {**(self.small_defaults if model == "small" else self.named_defaults), "mask": mask, "model": model}
        return dataclasses.replace(
            self, **{name: value for name, value in defaults.items() if getattr(self, name) is None}
        )
