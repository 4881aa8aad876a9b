"""Small tasks on the embedded base policy, importable by the inner runs' processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from derl_gym.inner.config import InnerConfig
from derl_gym.tasks import Example, Preset, Primitive, Split, Task
from derl_gym.tasks.arithmetic import Arithmetic


class Digits(Task):
    """Two primitives that the base policy meets often, so that a step or two changes something."""

    name = "digits"
    version = "1"
    description = "Write the digit 1."
    inner = InnerConfig(steps=2, batch_size=16, num_generations=8, max_completion_length=6)
    primitives = (
        Primitive("g1", "the output holds a 1", lambda completion, example: float("1" in completion)),
        Primitive("g2", "the output holds a 2", lambda completion, example: float("2" in completion)),
    )

    def __init__(self, data_dir: str | None = None, size: int = 24) -> None:
        super().__init__(data_dir)
        self.size = size

    def load(self, split: Split) -> list[Example]:
        if split == "test":
            raise AssertionError("a search opened the test split")
        return [{"prompt": example["prompt"]} for example in Arithmetic().load(split)[: self.size]]

    def correct(self, completion: str, example: Example) -> bool:
        return "1" in completion

    def record(self, split: Split) -> dict[str, Any]:
        """Without a look at the data: the search's own process must survive the tasks below."""
        if split == "test":
            self.load(split)
        return {"examples": self.size, "sha256": f"{self.size} of {split}"}

    @property
    def base_policy(self) -> str:
        return Arithmetic().base_policy


class Tested(Digits):
    """The same with a test split."""

    def load(self, split: Split) -> list[Example]:
        return super().load("validation" if split == "test" else split)


class Hanging(Digits):
    """An inner run that never ends, in a call that no signal handler interrupts."""

    def load(self, split: Split) -> list[Example]:
        time.sleep(3600)
        return []


class Dying(Digits):
    """Killed from outside while it loads: every time, or only the first with ``once`` (a file that remembers)."""

    def __init__(self, data_dir: str | None = None, once: str = "") -> None:
        super().__init__(data_dir)
        self.once = once

    def load(self, split: Split) -> list[Example]:
        if not self.once or not Path(self.once).exists():
            if self.once:
                Path(self.once).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().load(split)


class Sized(Tested):
    """One with a preset, and a longer final training."""

    final_inner = {"steps": 3}
    presets = {
        "large": Preset(
            "for the tests",
            inner={"epochs": 2.0, "temperature": 0.5},
            final_inner={"eval_examples": 4},
            full_inner={"epochs": 1.0},
            outer_steps=3,
            full_outer_steps=4,
            group_size=2,
            proposer="org/proposer",
        )
    }


class Boundless(Digits):
    """Its outcome is beyond what TRL can standardise."""

    primitives = (
        Primitive("g1", "far too much", lambda completion, example: 1e16 * len(completion), None, 0.0, 1e18),
        *Digits.primitives[1:],
    )


class Benchmarks(Tested):
    """Two benchmarks, the second of which is never solved."""

    headline = ("easy", "hard")

    def load(self, split: Split) -> list[Example]:
        return [example | {"benchmark": self.headline[i % 2]} for i, example in enumerate(super().load(split))]

    def correct(self, completion: str, example: Example) -> bool:
        return example["benchmark"] == "easy" and super().correct(completion, example)


class Faulty(Digits):
    """Its second primitive gives a value that it does not declare."""

    primitives = (Digits.primitives[0], Primitive("g2", "half of something", lambda completion, example: 0.5))


class Leased(Digits):
    """Every inner run leaves the devices that it may use in a file of the folder."""

    def __init__(self, data_dir: str | None = None, folder: str = "") -> None:
        super().__init__(data_dir)
        self.folder = folder

    def load(self, split: Split) -> list[Example]:
        Path(self.folder, str(os.getpid())).write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
        return super().load(split)
