"""A training that goes on where it stopped: after a kill, or after a pause that was asked for.

A checkpoint is the trainer's own (weights, optimiser, schedule, random states, logs) with a mark beside it: what it
was made for, and what this package counts on top. The mark is written last, so that a half-written checkpoint is none.
Which trainings are paused, and what becomes of them, is not this file's business.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from derl_gym.inner.budget import Budget
from derl_gym.inner.config import InnerConfig
from derl_gym.inner.marks import FOLDER, MARK, marks, training_hash
from derl_gym.inner.ranks import gathered, world

# transformers reads the optimiser to the rank's device, and torch knows of no "cpu:0".
torch.serialization.register_package(
    11, lambda storage: None, lambda storage, location: storage if location.startswith("cpu:") else None
)


class Checkpoints(TrainerCallback):
    """Saves checkpoints and pauses the training, both only at the end of a generation phase.

    There the trainer holds no rollouts that it would need afterwards: ``trl`` keeps them in memory alone, and counts
    from a phase's beginning when it goes on. Then parameters, data order, random draws, curve and counters are those
    of a training that was never stopped, to the last bit on a CPU. An engine with random states of its own (vLLM)
    draws other rollouts.

    Checkpoints are files of our own in the run directory, which only its owner may enter. Weights are safetensors;
    what ``torch.save`` wrote (optimiser, schedule, random states) is read by ``transformers`` with
    ``weights_only=True``, so that no code in a pickle is ever run.

    Args:
        payload: That of :func:`derl_gym.inner.train.run`. ``until`` is read, the share of the training after which it
            pauses, and ``continues``, the folder of a run that paused earlier.
        folder: Of the run.
        config: Of the run; ``checkpoint_seconds`` is read.
        rows: The curve, which grows as training goes on; what a checkpoint holds of it is put in.
        budget: Its clock goes on from the checkpoint's.

    Attributes:
        of_steps: Optimiser steps of the whole training where this run has paused; else 0.
        before: What the run has spent that this one ``continues``; see :class:`derl_gym.inner.result.InnerResult`.
    """

    def __init__(
        self,
        payload: dict[str, Any],
        folder: Path,
        config: InnerConfig,
        rows: list[dict[str, float]],
        budget: Budget,
    ) -> None:
        self.made_for, self.until = training_hash(payload), payload.get("until")
        self.folder, self.seconds = folder, config.checkpoint_seconds
        self.continues = payload.get("continues")
        self.rows, self.budget = rows, budget
        self.of_steps = 0
        self.before: dict[str, float] = {}

    @property
    def reason(self) -> str:
        """Where it has paused; empty while it has not."""
        return f"paused at step {self.budget.steps} of {self.of_steps}" if self.of_steps else ""

    def last(self) -> str | None:
        """Where this training goes on from, for ``Trainer.train(resume_from_checkpoint=...)``; ``None``: it begins.

        A pause of this very run does not count: what comes after it is the evaluation, which was not done.
        """
        own = {path: mark for path, mark in marks(self.folder).items() if not mark["of_steps"]}
        known = own | (marks(Path(self.continues)) if self.continues else {})
        fitting = {path: mark for path, mark in known.items() if mark["made_for"] == self.made_for}
        found = max(fitting, key=lambda path: fitting[path]["step"], default=None)
        found, mark = gathered((found, fitting.get(found) if found else None))[0]
        if world()[0] == 0:
            self._remove_all_but(found)
        if mark is None:
            return None
        self.rows[:] = mark["rows"]
        self.budget.earlier = mark["seconds"]
        spent = {"tokens": mark["tokens"], "flops": mark["flops"], "train_seconds": mark["seconds"]}
        self.before = mark["before"] if found in own else spent
        return str(found)

    def on_train_begin(self, args, state, control, train_dataloader=None, **kwargs):
        """Find out how long a phase is; shuffle as often as the finished epochs have."""
        self.phase = args.steps_per_generation * args.num_iterations // args.gradient_accumulation_steps
        self.pause_at = None
        if self.until is not None:
            self.pause_at = math.ceil(self.until * state.max_steps / self.phase) * self.phase
        self.saved = time.monotonic()
        sampler: Any = train_dataloader.batch_sampler  # type: ignore[union-attr]
        while hasattr(sampler, "batch_sampler"):  # a rank's share
            sampler = sampler.batch_sampler
        # trl's sampler draws the order of every epoch from one generator, and transformers goes through none again.
        for _ in range(int(state.epoch or 0)):
            torch.randperm(sampler.sampler.num_samples, generator=sampler.sampler.generator)

    def on_step_end(self, args, state, control, **kwargs):
        """Save where it is time to; pause where it was asked for and training would go on."""
        if control.should_training_stop or state.global_step % self.phase:
            return control
        if self.pause_at is not None and state.global_step >= self.pause_at:
            self.of_steps = state.max_steps
            control.should_save = control.should_training_stop = True
        elif self.seconds is not None:
            control.should_save = gathered(time.monotonic() - self.saved >= self.seconds)[0]
        return control

    def on_save(self, args, state, control, **kwargs):
        """Mark the checkpoint as whole once all ranks have written their part; the earlier ones go."""
        mark = {
            "made_for": self.made_for,
            "step": state.global_step,
            "of_steps": self.of_steps,
            "seconds": self.budget.seconds,
            "tokens": self.budget.tokens,
            "flops": self.budget.flops,
            "before": self.before,
            "rows": self.rows,
        }
        gathered(None)
        if world()[0] == 0:
            checkpoint = self.folder / FOLDER / f"checkpoint-{state.global_step}"
            for file in checkpoint.iterdir():
                _to_disk(file)
            aside = checkpoint / f"{MARK}.aside"
            aside.write_text(json.dumps(mark))
            _to_disk(aside)
            os.replace(aside, checkpoint / MARK)
            _to_disk(checkpoint)
            self._remove_all_but(checkpoint)
        self.saved = time.monotonic()

    def _remove_all_but(self, kept: Path | None) -> None:
        for checkpoint in (self.folder / FOLDER).glob("checkpoint-*"):
            if checkpoint != kept:
                (checkpoint / MARK).unlink(missing_ok=True)
                shutil.rmtree(checkpoint, ignore_errors=True)


def _to_disk(path: Path) -> None:
    """Have the system write it now: a mark must not outlive a power cut that its checkpoint did not."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
