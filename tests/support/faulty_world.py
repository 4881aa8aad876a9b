"""A world that does what its commands say: crash, hang, leak, shout."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from derl_gym.tasks.worlds import Turn, World


class Faulty(World):
    per_worker = 2

    def __init__(self, start: str = "", folder: str = "") -> None:
        self.at_start = start
        self.folder = folder

    def start(self) -> None:
        self._do(self.at_start)

    def games(self, part: str) -> list[str]:
        return ["game"]

    def reset(self, game_id: str) -> Turn:
        self.steps = 0
        return Turn(f"begun {game_id}" + self._do(game_id), ["look"], task="Do as you are told.")

    def step(self, command: str) -> Turn:
        self.steps += 1
        return Turn(f"step {self.steps}: " + self._do(command), ["look"], over=command == "win", won=command == "win")

    def _do(self, command: str) -> str:
        word, _, argument = command.partition(" ")
        if word == "sleep":
            time.sleep(float(argument))
        elif word == "hang":  # in C, holding the interpreter's lock
            ctypes.PyDLL(None).sleep(60)
        elif word == "exit":
            os._exit(int(argument))
        elif word == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif word == "raise":
            raise KeyError(argument)
        elif word == "shout":
            print("to stdout")
            print("to stderr", file=sys.stderr)
            subprocess.run(["echo", "from a child"], check=True)
            return f"heard {sys.stdin.read()!r}"
        elif word == "long":
            return "x" * int(argument)
        elif word == "length":
            return str(len(command))
        elif word == "child":
            child = subprocess.Popen(["sleep", "60"])
            Path(self.folder, "child").write_text(str(child.pid))
            if argument == "and hang":
                time.sleep(60)
        elif word == "meet":
            Path(self.folder, f"here-{os.getpid()}").touch()
            while len(list(Path(self.folder).glob("here-*"))) < int(argument):
                time.sleep(0.01)
        elif word == "missing":
            raise ImportError("the engine is not installed")
        elif word == "environment":
            return str((os.environ["PYTHONHASHSEED"], os.getpgid(0)))
        return word
