"""A text world of one's own, complete: walk down a corridor and open the chest at its end."""

from __future__ import annotations

from derl_gym.tasks.worlds import Turn, World
from derl_gym.tasks.worlds.base import check_part


class Corridor(World):
    """A game's id is its part and the corridor's length, ``"train/3"``."""

    parts = ("train", "test")
    per_worker = 4

    def __init__(self, longest: int = 5) -> None:
        self.longest = longest
        self.length = self.place = 0

    def games(self, part: str) -> list[str]:
        check_part(self, part)
        return [f"{part}/{length}" for length in range(1, self.longest + 1)]

    def reset(self, game_id: str) -> Turn:
        if game_id not in self.games("train") + self.games("test"):
            raise ValueError(f"there is no corridor {game_id!r}")
        self.length, self.place = int(game_id.split("/")[1]), 0
        return self._turn("You stand in a corridor.", task="Open the chest.")

    def step(self, command: str) -> Turn:
        if command not in self._commands():
            return self._turn("Nothing happens.")
        self.place += {"walk on": 1, "walk back": -1}.get(command, 0)
        return self._turn("The chest is open." if command == "open chest" else f"Door {self.place}.", command)

    def walkthrough(self, game_id: str) -> list[str]:
        return ["walk on"] * int(game_id.split("/")[1]) + ["open chest"]

    def _commands(self) -> list[str]:
        at_end = self.place == self.length
        return ["open chest" if at_end else "walk on", *(["walk back"] if self.place else [])]

    def _turn(self, observation: str, command: str = "", task: str = "") -> Turn:
        won = command == "open chest"
        return Turn(observation, self._commands(), won, won, self.place / self.length, task)
