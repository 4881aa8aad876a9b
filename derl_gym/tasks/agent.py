"""What the agent tasks share: episodes in a text world, the paper's four agent primitives, the words of a turn.

A task of your own names a world (``worlds/base.py``) and the games of each split; see ``alfworld.py``. How episodes
are played, as token ids, is ``inner/episodes.py``'s business.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from derl_gym.tasks.base import SPLITS, Example, Primitive, Split, Task
from derl_gym.tasks.step_scores import Compat, agent_primitives, find_command, parse_reply
from derl_gym.tasks.worlds import Turn, WorldPool

Status = Literal["won", "over", "turns", "tokens"]
"""How an episode ended: won; ended by the world and not won; out of turns; out of tokens."""

NO_ACTION = "There is no single action in your reply, so nothing happens."


@dataclasses.dataclass(frozen=True)
class Move:
    """One turn of the policy.

    Attributes:
        seen: The observation that it answers.
        reply: What the policy wrote.
        available: Whether its action was among the admissible commands.
    """

    seen: str
    reply: str
    available: bool


@dataclasses.dataclass
class Episode:
    """What was played of a game: the "completion" that an agent task's primitives and verdict look at.

    Attributes:
        game: Its id.
        moves: In order; empty where not even the first reply had room.
        status: How it ended.
    """

    game: str
    moves: list[Move] = dataclasses.field(default_factory=list)
    status: Status = "turns"

    @property
    def success(self) -> bool:
        """Whether the world says that the game was won."""
        return self.status == "won"

    def primitives(self, compat: Compat | None = None) -> tuple[float, ...]:
        """g1 to g4, see :func:`derl_gym.tasks.step_scores.agent_primitives`."""
        return agent_primitives([m.reply for m in self.moves], [m.available for m in self.moves], self.success, compat)


def command_of(reply: str, admissible: Sequence[str]) -> tuple[str | None, bool]:
    """What a reply does: ``(command, available)``.

    A clear action that is not admissible goes to the world as it is, which answers that it means nothing. ``None``:
    there is no clear action, and the world is not asked.
    """
    action = parse_reply(reply).action
    command = find_command(action, admissible)
    return (action, False) if command is None else (command, True)


def _primitive(number: int, description: str) -> Primitive:
    def value(completion: Any, example: Example) -> float:
        return _episode(completion, example).primitives()[number - 1]

    values = (0.0, 1.0) if number == 1 else None
    return Primitive(f"g{number}", description, value, values)


_SCORE = (
    "mean step score over the {} third of the episode; a step scores 1 for a planning thought in an episode that "
    "succeeds, for an explore thought with an action that is new, and for a reflection thought that changes the action "
    "after a failed step, else 0"
)

PRIMITIVES = (
    _primitive(1, "1 if the task succeeds, else 0 (the outcome)"),
    *(_primitive(n, _SCORE.format(third)) for n, third in ((2, "first"), (3, "middle"), (4, "last"))),
)


class AgentTask(Task):
    """A problem set of games, each played by the policy in a world, turn by turn (paper section 4.1).

    An example has ``prompt`` (a short text that names the game), ``game`` (its id) and ``benchmark`` (its kind).

    Args:
        data_dir: Folder of local data, where the world has some.
        compat: ``"rlvmr"``: step scores as in RLVMR's code; see :func:`derl_gym.tasks.step_scores.step_scores`.

    Attributes:
        role: First sentence of the policy's first message.
        forms: What it should know of the commands beforehand; empty where the admissible ones are listed each turn.
    """

    primitives = PRIMITIVES
    max_program_length = 64
    role: ClassVar[str]
    forms: ClassVar[str] = ""

    def __init__(self, data_dir: str | None = None, compat: Compat | None = None) -> None:
        super().__init__(data_dir)
        if compat not in (None, "rlvmr"):
            raise ValueError(f"compat must be None or 'rlvmr', not {compat!r}")
        self.compat: Compat | None = compat
        self._games: dict[str, list[Example]] = {}

    # -- what a task of one's own says -------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def world(self) -> tuple[str, dict[str, Any]]:
        """The world's class, as ``"package.module:Class"``, and its JSON-able keyword arguments."""

    @abc.abstractmethod
    def list_games(self, pool: WorldPool) -> dict[str, list[str]]:
        """Ids of the games of "train", "validation" and "test", in a pinned order; the pool lists those of a part."""

    def kind_of(self, game: str) -> str:
        """Kind of a game, whose success rate is reported apart; empty: there is one kind only."""
        return ""

    def keep(self, games: dict[str, list[str]], only: str | Sequence[str] | None) -> dict[str, list[str]]:
        """The games of some kinds, or of one; ``None``: all.

        Raises:
            ValueError: a kind that there is no game of, or a split that is left without games: a search trains and
                validates, and what it finds is tested.
        """
        if only is None:
            return games
        kinds = [only] if isinstance(only, str) else list(only)
        known = {self.kind_of(game) for part in games.values() for game in part}
        if unknown := sorted({str(kind) for kind in kinds} - known):
            raise ValueError(f"{self.name} has no games of {', '.join(unknown)}; it has {', '.join(sorted(known))}")
        kept = {split: [game for game in part if self.kind_of(game) in kinds] for split, part in games.items()}
        for split, part in kept.items():
            if not part:
                there = ", ".join(sorted({self.kind_of(game) for game in games[split]}))
                raise ValueError(
                    f"only={kinds} leaves {self.name} without {split} games, which are of {there or 'no kind'}"
                )
        return kept

    # -- games and verdict ------------------------------------------------------------------------------

    def load(self, split: Split) -> list[Example]:
        """See :meth:`Task.load`. The world's own process is asked, once."""
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
        if not self._games:
            with self.open_pool(1) as pool:
                listed = self.list_games(pool)
            listed["full"] = listed["train"] + listed["validation"]
            self._games = {name: [self._example(game) for game in games] for name, games in listed.items()}
        return [dict(example) for example in self._games[split]]

    def missing(self) -> list[str]:
        """See :meth:`Task.missing`. The world is started, without listing its games."""
        try:
            self.open_pool(1).close()
        except (ImportError, OSError, RuntimeError, ValueError) as error:
            return [str(error)]
        return []

    def open_pool(self, workers: int) -> WorldPool:
        """Processes that play this task's world; close them after use."""
        reference, options = self.world
        return WorldPool(reference, options, workers)

    def _example(self, game: str) -> Example:
        kind = self.kind_of(game)
        return {"prompt": f"Game {game}", "game": game} | ({"benchmark": kind} if kind else {})

    def primitive_values(self, completions: Sequence[Any], examples: Sequence[Example]) -> list[list[float]]:
        """Every primitive on every episode, each of which is looked at once."""
        rows = []
        for completion, example in zip(completions, examples, strict=True):
            values = _episode(completion, example).primitives(self.compat)
            rows.append([-v if p.high <= 0 else v for p, v in zip(self.primitives, values, strict=True)])
        return rows

    def correct(self, completion: Any, example: Example) -> bool:
        """The verdict: the world says that the game was won."""
        return _episode(completion, example).success

    # -- the words of a turn ----------------------------------------------------------------------------

    def opening(self, turn: Turn) -> str:
        """The first message to the policy: what it is, what to do, how to answer, and the first observation."""
        parts = [self.role, f"Task: {turn.task}", HOW_TO_ANSWER, self.forms, self.message(turn)]
        return "\n\n".join(part.strip() for part in parts if part.strip())

    def message(self, turn: Turn) -> str:
        """A later message: what came of the last action, and what can be done now."""
        return f"Observation: {turn.observation.strip()}\n{self.choices(turn.admissible)}"

    def choices(self, admissible: Sequence[str]) -> str:
        """What can be done now, in words."""
        return f"Admissible actions: {'; '.join(admissible)}"


HOW_TO_ANSWER = """At every turn write one thought, in one of four tags, and then one action:
<planning>what is to be done, and in which order</planning>
<explore>what is not known yet, and where to find it out</explore>
<reflection>why the last action failed, and what to do instead</reflection>
<monitor>how far the plan has come, and its next step</monitor>
<action>the action, and nothing else</action>"""


def _episode(completion: Any, example: Example) -> Episode:
    """The episode, or one of a single reply that did nothing where there is only a text."""
    if isinstance(completion, Episode):
        return completion
    return Episode(str(example.get("game", "")), [Move("", str(completion), False)])
