"""A task whose inner runs tell the key in their environment, in every way that they can; ``leaky:DERL-Leaky-v0``."""

from __future__ import annotations

import os
import sys

from toy_tasks import Digits

import derl_gym
from derl_gym.tasks import Example, Split

derl_gym.register("DERL-Leaky-v0", task="leaky:Leaky", outer_steps=1, group_size=1)


class Leaky(Digits):
    """Prints the key, and fails with an error that quotes it."""

    def load(self, split: Split) -> list[Example]:
        key = os.environ["OPENAI_API_KEY"]
        print(f"printed {key}")
        print(f"and so {key!r}", file=sys.stderr)
        os.write(1, f"written {key}\n".encode())
        raise RuntimeError("x" * 490 + f" refused {key}")  # where a message is cut off, half of the key would stay
