"""How one inner run ended. Light on purpose, like ``config.py``."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

Status = Literal["scored", "invalid", "failed"]


@dataclasses.dataclass(frozen=True)
class InnerResult:
    """The outcome of one inner run, JSON-able through :meth:`to_dict`.

    Attributes:
        status: ``"scored"``: trained and evaluated. ``"invalid"``: the program failed on a real rollout,
            score 0. ``"failed"``: our fault (killed, out of memory, timed out); never a score.
        score: Share of evaluated completions that are right (pass@1), in [0, 1]: over all examples, or the mean of
            the task's headline benchmarks. 0.0 when invalid, ``None`` when failed or not evaluated.
        reason: Why a run is invalid or failed, or which cap ended its training; else empty.
        curve: One row per generation phase (an optimiser step, as a rule): ``reward`` and every primitive, means over
            the phase's rollouts, and what TRL logs of its steps: ``completion_length`` (tokens that the policy wrote),
            ``truncated`` (share of completions without an end), ``entropy`` (nats per token),
            ``kl`` (to the starting policy, where ``beta > 0``), ``clip_ratio`` (share of clipped tokens),
            ``grad_norm`` (before clipping) and ``loss``. What is not finite is missing.
        primitive_means: Mean of every primitive over the evaluated completions.
        n_evaluated: Examples evaluated.
        n_too_long: Those of them whose prompt was too long: not generated for, and counted as unsolved.
        standard_error: Of the score, clustered by example; ``None`` where there is no telling.
        scores: Accuracy by benchmark; empty where the examples name none.
        prompt_style: ``"chat"`` or ``"plain"``.
        steps: Optimiser steps done.
        of_steps: Those of the whole training where this run was to pause before its end, and has; else 0.
        before: Of ``tokens``, ``flops`` and ``train_seconds``, what the run spent that this one goes on from: a run of
            its own, in which it is counted. Empty where there was none.
        tokens: Prompt and completion tokens seen in training.
        flops: Estimated floating point operations, training and evaluation together.
        eval_flops: The evaluation's part of them.
        train_seconds: Wall-clock seconds of training.
        eval_seconds: Wall-clock seconds of evaluation.
        peak_memory: Peak resident memory in bytes, of all the run's processes.
        policy: Folder of the trained policy where it was kept, else empty.
        backend: ``"transformers"`` or ``"vllm"``.
        sampling_logp_difference: Mean absolute difference of log-probabilities between the generation engine
            and the trained model over the run (vLLM only, else ``None``).
        host: Machine that it ran on.
        device: ``"cpu"``, or the name of the GPU, ``"2 x NAME"`` with two of them.
        config: :func:`derl_gym.inner.provenance.configuration_hash` of what it was given.
        code: Version of derl_gym and a hash of its source files, as the process loaded them.
        versions: Those of Python and of the libraries that it ran with.
    """

    status: Status
    score: float | None
    reason: str = ""
    curve: list[dict[str, float]] = dataclasses.field(default_factory=list)
    primitive_means: list[float] = dataclasses.field(default_factory=list)
    n_evaluated: int = 0
    n_too_long: int = 0
    standard_error: float | None = None
    scores: dict[str, float] = dataclasses.field(default_factory=dict)
    prompt_style: str = ""
    steps: int = 0
    of_steps: int = 0
    before: dict[str, float] = dataclasses.field(default_factory=dict)
    tokens: int = 0
    flops: float = 0.0
    eval_flops: float = 0.0
    train_seconds: float = 0.0
    eval_seconds: float = 0.0
    peak_memory: int = 0
    policy: str = ""
    backend: str = ""
    sampling_logp_difference: float | None = None
    host: str = ""
    device: str = ""
    config: str = ""
    code: str = ""
    versions: dict[str, str] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able values."""
        return dataclasses.asdict(self)
