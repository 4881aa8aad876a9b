"""A toy task whose prompts have 1 to 8 tokens and whose every completion is right."""

from __future__ import annotations

from derl_gym.tasks import Example, Primitive, Split, Task


class Lengths(Task):
    """One digit per token; ``shortest``: the first prompt's length."""

    name = "lengths"
    version = "1"
    description = "Write anything."
    primitives = (Primitive("g1", "always 1", lambda completion, example: 1.0),)

    def __init__(self, data_dir: str | None = None, shortest: int = 1) -> None:
        super().__init__(data_dir)
        self.shortest = shortest

    def load(self, split: Split) -> list[Example]:
        return [{"prompt": "1" * length} for length in range(self.shortest, self.shortest + 8)]

    def correct(self, completion: str, example: Example) -> bool:
        return True

    base_policy = "the test brings one"
