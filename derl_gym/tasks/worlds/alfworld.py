"""ALFWorld's household games (Shridhar et al., 2021), played from their files by TextWorld's engine.

``pip install 'derl-gym[alfworld]'``. The games are what ``alfworld-download`` fetches; where they are looked for is in
``alfworld_data.py``. No expert and no planner takes part. The engine is not safe to use from several threads.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from importlib.util import find_spec
from typing import Any

from derl_gym.tasks.worlds.alfworld_data import GAME_FILE, PARTS, find_root, list_games
from derl_gym.tasks.worlds.alfworld_engine import undisturbed
from derl_gym.tasks.worlds.base import Turn, World, check_part

_TASK = re.compile(r"\s*Your task is to:\s*(.+?)\s*$", re.DOTALL)
_BANNER = re.compile(r"^-= Welcome to TextWorld, ALFRED! =-\s*")
_OLD_COMMAND = re.compile(r'template\s*::\s*"put \{\w+\} in/on \{')


class ALFWorld(World):
    """ALFWorld as a :class:`World`; the parts are train, valid_seen and valid_unseen.

    A game's id is its folder relative to the data root, for example
    ``"valid_seen/pick_and_place_simple-Mug-None-Desk-308/trial_T2019..."``.

    Args:
        data_dir: Folder with the games; see :func:`derl_gym.tasks.worlds.alfworld_data.find_root`.
        check_data: Refuse data that do not hold the published numbers of games: 3,553, 140 and 134.
        old_grammar: Play games of the older distribution as well, whose command is "put X in/on Y" where today's is
            "move X to Y". A policy that knows the one scores near 0 on the other.
        memo: Compute once what depends on a text alone; see ``alfworld_engine.py``. Off: as the engine comes.

    Raises:
        FileNotFoundError: there are no games; the message says where they were looked for.
    """

    parts = PARTS
    per_worker = 64

    def __init__(
        self, data_dir: str | None = None, check_data: bool = True, old_grammar: bool = False, memo: bool = True
    ) -> None:
        self.root = find_root(data_dir)
        self.check_data = check_data
        self.old_grammar = old_grammar
        self.memo = memo
        self._env: Any = None
        self._loaded: str | None = None
        self._won = False

    def start(self) -> None:
        """See :meth:`World.start`."""
        check_installed()
        os.environ["ALFWORLD_DATA"] = str(self.root)  # its import would make a folder in the user's home
        with undisturbed(memo=False):
            for module in ("alfworld.agents.utils.misc", "fast_downward", "textworld.envs.pddl"):
                importlib.import_module(module)

    def games(self, part: str) -> list[str]:
        """See :meth:`World.games`.

        Raises:
            ValueError: there is no such part, or it does not hold the published number of games.
            FileNotFoundError: its folder is gone.
        """
        check_part(self, part)
        return list_games(self.root, part, self.check_data)

    def reset(self, game_id: str) -> Turn:
        """See :meth:`World.reset`.

        Raises:
            FileNotFoundError: there is no such game.
            ValueError: its file is damaged, or written in the old grammar.
        """
        with undisturbed(self.memo):
            if self._env is None:
                import textworld  # pyright: ignore[reportMissingImports]
                from textworld.envs.pddl import PddlEnv  # pyright: ignore[reportMissingImports]

                # One for all episodes: each copies a library of its own that is never given back.
                self._env = PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True))
            if self._loaded != game_id:
                self._load(game_id)
            state = self._env.reset()
        self._won = False
        text = _BANNER.sub("", state.feedback)
        task = _TASK.search(text)
        if task is None:
            raise ValueError(f"game {game_id} does not say what its task is: {text[:200]!r}")
        return self._turn(state, text[: task.start()].strip(), " ".join(task[1].split()))

    def step(self, command: str) -> Turn:
        """See :meth:`World.step`. Commands are exact, and in lower case."""
        if self._env is None or self._loaded is None or self._won:
            raise ValueError("there is no live episode: call reset first")
        with undisturbed(self.memo):
            state, _, _ = self._env.step(" ".join(command.split()))
        return self._turn(state, state.feedback.strip())

    def walkthrough(self, game_id: str) -> list[str]:
        """The commands in the game's own file."""
        commands = self._read(game_id).get("walkthrough")
        if not isinstance(commands, list) or not commands or not all(isinstance(one, str) for one in commands):
            raise ValueError(f"game {game_id} holds no walkthrough")
        return commands

    def _turn(self, state: Any, observation: str, task: str = "") -> Turn:
        # The engine says that a won game is open again when play goes on.
        self._won = self._won or bool(state["won"])
        return Turn(observation, list(state["admissible_commands"]), self._won, self._won, float(self._won), task)

    def _load(self, game_id: str) -> None:
        from alfworld.agents.utils.misc import Demangler  # pyright: ignore[reportMissingImports]

        game = self._read(game_id)
        if not self.old_grammar and is_old(game):
            raise ValueError(
                f"game {game_id} is of the older distribution, whose command is 'put X in/on Y': run alfworld-download "
                "again, or allow it with old_grammar=True (scores are not comparable)"
            )
        self._loaded = None
        self._env.load(game)
        entities = self._env._entity_infos
        names = Demangler(game_infos=entities, shuffle=False)
        for entity in entities.values():
            entity.name = names.demangle_alfred_name(entity.id)
        self._loaded = game_id

    def _read(self, game_id: str) -> dict[str, Any]:
        path = self.root / game_id / GAME_FILE
        if not path.resolve().is_relative_to(self.root.resolve()):
            raise ValueError(f"{game_id!r} is no game's id: it leads out of {self.root}")
        try:
            game = json.loads(path.read_text())
        except FileNotFoundError:
            raise FileNotFoundError(f"no game {game_id} in {self.root}") from None
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}") from error
        if missing := {"pddl_domain", "grammar", "pddl_problem"} - set(game):
            raise ValueError(f"{path} is damaged: it lacks {', '.join(sorted(missing))}")
        return game


def check_installed() -> None:
    """Look for the packages, without loading them.

    Raises:
        ImportError: one is missing.
    """
    if find_spec("textworld") is None or find_spec("alfworld") is None:
        raise ImportError(
            "ALFWorld is not installed: pip install 'derl-gym[alfworld]', with a C++ compiler and cmake at hand, since "
            "its engine is compiled"
        )


def is_old(game: dict[str, Any]) -> bool:
    """Whether a game file is of the older distribution, with the command "put X in/on Y"."""
    return _OLD_COMMAND.search(game["grammar"]) is not None
