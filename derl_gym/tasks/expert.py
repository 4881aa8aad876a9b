"""Expert episodes of an agent task, for the warm start of a policy: walkthroughs replayed, with thoughts by rule.

The world says which commands win; rules write the thought before each (which tag, and a sentence). Here and there the
expert tries something that is not possible, and reflects on it: such a slip is not to be learned, the reflection is.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from derl_gym.tasks.agent import AgentTask
from derl_gym.tasks.base import Example
from derl_gym.tasks.step_scores import find_command
from derl_gym.tasks.worlds import Turn, WorldFailed, WorldPool

SEEKING = ("go", "open", "look", "examine", "read", "inventory", "teleport")
"""First words of commands that find something out."""
MISSES = 3
"""Walkthroughs of one kind of game that may be too long before the kind is left out."""
SAME = (("examine ", "look at "), (" into ", " in "), (" in inventory", ""))
"""Words of ScienceWorld's own solutions, and those that its list of commands has for them."""

Row = dict[str, Any]
"""One episode: ``game`` and ``messages``, alternately the user's and the assistant's (``role``, ``content``); a reply
with ``weight`` 0 is read but not learned."""


class Experts:
    """Makes expert episodes.

    Args:
        task: Whose games are played.
        pool: Of its world; slot 0 is used.
        longest: Turns of the longest episode.
        slips: How probable it is that an expert's step comes after one that is not possible.
        seed: Of the slips.

    Attributes:
        left_out: Reason -> how many games were left out for it.
    """

    def __init__(self, task: AgentTask, pool: WorldPool, longest: int, slips: float = 0.1, seed: int = 0) -> None:
        self.task, self.pool, self.longest, self.slips = task, pool, longest, slips
        self.left_out: Counter[str] = Counter()
        self._seed = seed

    def episodes(self, examples: Sequence[Example]) -> Iterator[Row]:
        """Won episodes of the examples' games, the kinds of games in turn."""
        misses: Counter[Any] = Counter()
        for example in in_turn(examples):
            kind = example.get("benchmark")
            if misses[kind] >= MISSES:
                self.left_out["of a kind whose walkthroughs are too long"] += 1
                continue
            try:
                row = self._play(example["game"], self.pool.walkthrough(example["game"]))
            except (WorldFailed, ValueError, FileNotFoundError) as failed:  # the latter two of a damaged game
                self.left_out[f"world failed: {failed}"] += 1
                continue
            if not isinstance(row, str):
                yield row
                continue
            self.left_out[row] += 1
            misses[kind] += row.startswith("more")

    def _play(self, game: str, commands: Sequence[str]) -> Row | str:
        """The episode, or why it is none."""
        chance = random.Random(f"{self._seed}:{game}")
        turn = self._checked(self.pool.reset_all({0: game})[0])
        goal = turn.task.strip().rstrip(".").removeprefix("Your task is to ")
        messages: list[dict[str, Any]] = [{"role": "user", "content": self.task.opening(turn)}]
        known: list[str] = []
        issued: list[str] = []
        for wanted in commands:
            command = _listed(wanted, turn.admissible)
            if command is None:
                continue
            missing = [other for other in known if other not in turn.admissible]
            slip = chance.choice(missing) if missing and chance.random() < self.slips else None
            known += [other for other in turn.admissible if other not in known]
            if slip is not None:
                turn = self._say(messages, "monitor", f"The next step is to {slip}.", slip, weight=0)
                if turn.over:
                    break
                tag, thought = "reflection", f"I cannot {slip} now. Instead I {command}."
            elif not issued:
                tag, thought = "planning", f"I have to do this: {goal}. First I {command}."
            elif command.split()[0] in SEEKING and command not in issued:
                tag, thought = "explore", f"I do not know yet what I find there. I {command}."
            else:
                tag, thought = "monitor", f"The next step is to {command}."
            issued.append(command)
            turn = self._say(messages, tag, thought, command)
            if turn.over:
                break
        if not turn.won:
            return "walkthrough does not win"
        if len(messages) // 2 > self.longest:
            return f"more than {self.longest} turns"
        return {"game": game, "messages": messages[:-1]}

    def _say(self, messages: list[dict[str, Any]], tag: str, thought: str, command: str, weight: int = 1) -> Turn:
        reply = f"<{tag}>{thought}</{tag}>\n<action>{command}</action>"
        messages.append({"role": "assistant", "content": reply} | ({} if weight else {"weight": 0}))
        turn = self._checked(self.pool.step_all({0: command})[0])
        messages.append({"role": "user", "content": self.task.message(turn)})
        return turn

    def _checked(self, turn: Turn | WorldFailed) -> Turn:
        if isinstance(turn, WorldFailed):
            raise turn
        return turn


def _listed(wanted: str, admissible: Sequence[str]) -> str | None:
    """A walkthrough's command in the words of the list of commands; ``None`` where it would open what is open."""
    command = wanted
    for theirs, listed in SAME:
        if found := find_command(command, admissible):
            return found
        command = command.replace(theirs, listed)
    return find_command(command, admissible) or (None if wanted.startswith("open ") else wanted)


def in_turn(examples: Iterable[Example]) -> Iterator[Example]:
    """The examples, one of each kind after the other, each kind in its order."""
    kinds: dict[Any, list[Example]] = defaultdict(list)
    for example in examples:
        kinds[example.get("benchmark")].append(example)
    for rank in range(max(map(len, kinds.values()), default=0)):
        yield from (kind[rank] for kind in kinds.values() if rank < len(kind))


def read_rows(path: Path) -> list[Row]:
    """Episodes from a JSONL file.

    Raises:
        ValueError: says which line is no episode, and why.
    """
    rows: list[Row] = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):  # JSON allows other line ends in a text
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode())
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is not JSON: {error}") from error
        if problem := _problem(row):
            raise ValueError(f"{path}, line {number}: {problem}")
        rows.append(row)
    if not rows:
        raise ValueError(f"{path} holds no episodes")
    return rows


def _problem(row: Any) -> str:
    messages = row.get("messages") if isinstance(row, dict) else None
    if not isinstance(messages, list) or len(messages) < 2:
        return 'expected an object with "messages", at least one of the user and one of the assistant'
    for place, message in enumerate(messages):
        role = ("user", "assistant")[place % 2]
        if not isinstance(message, dict) or message.get("role") != role or not isinstance(message.get("content"), str):
            return f'message {place + 1} must have the role "{role}" and text as its content'
        if message.get("weight", 1) not in (0, 1):
            return f"the weight of message {place + 1} must be 0 or 1, not {message['weight']!r}"
        try:
            message["content"].encode()
        except UnicodeEncodeError as error:
            return f"message {place + 1} is no text: {error.reason} at character {error.start + 1}"
    if len(messages) % 2:
        return "an episode ends with the assistant's message"
    if not any(message.get("weight", 1) for message in messages[1::2]):
        return "nothing is to be learned: every reply has weight 0"
    return ""
