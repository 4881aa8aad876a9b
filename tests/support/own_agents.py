"""An agent that does not come with the package, as ``own_agents:Climber``."""

from __future__ import annotations

import dataclasses
import json

from derl_agents import Agent


class Climber(Agent):
    """Adds a term to the best program so far."""

    name = "climber"
    best, best_score = "g1", -1.0

    @dataclasses.dataclass(frozen=True)
    class Options:
        """How far it goes."""

        most: int = 9
        """Largest weight of a new term."""

    def propose(self, observation, info):
        weights = self.rng.integers(1, self.options.most + 1, self.group_size)
        return self.encode([f"{self.best}+{weight}*g2" for weight in weights])

    def learn(self, actions, scores, info):
        if scores.max() > self.best_score:
            self.best, self.best_score = self.programs.decode(actions[scores.argmax()]), float(scores.max())

    def write_state(self, folder):
        (folder / "climber.json").write_text(json.dumps([self.best, self.best_score]))

    def read_state(self, folder):
        self.best, self.best_score = json.loads((folder / "climber.json").read_text())


class Nameless(Agent):
    """Whose checkpoints nobody could tell from others."""

    def propose(self, observation, info):
        return self.encode(["g1"] * self.group_size)
