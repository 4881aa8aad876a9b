"""The child process in which worlds are played; ``pool.py`` starts it.

JSON lines come in and go out, one reply per request, and the end of the input ends it. It holds a few world objects and
keeps them from one episode to the next. A world that raised an error is given up and built anew.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import signal
import sys
import traceback
from typing import IO, Any

from derl_gym.tasks.worlds.base import World, load_world

PR_SET_PDEATHSIG = 1


def main(parent: int, reference: str, options: dict[str, Any]) -> None:
    """Say ``{"ready": {"per_worker": n}}`` or ``{"error": ...}``, then answer requests until the input ends.

    Args:
        parent: Process id of the pool's process. On Linux the worker dies with it, whatever it is doing.
        reference: Where the world's class is.
        options: The class's keyword arguments.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the pool's business; a JVM inherits this
    _die_with(parent)
    requests, replies = _take_streams()
    try:
        world = load_world(reference, options)
        world.start()
    except Exception as error:
        _send(replies, _failure(error))
        return
    _send(replies, {"ready": {"per_worker": world.per_worker}})
    worlds: dict[int, World] = {0: world}
    for line in requests:
        request = json.loads(line)
        seat = request["seat"]
        try:
            if seat not in worlds:
                worlds[seat] = load_world(reference, options)
                worlds[seat].start()
            reply = {"value": _answer(worlds[seat], request["do"], request["argument"])}
        except Exception as error:
            reply = _failure(error)
            with contextlib.suppress(Exception):  # KeyError: it could not even be built
                worlds.pop(seat).close()
        _send(replies, reply)
    for world in worlds.values():
        with contextlib.suppress(Exception):
            world.close()


def _answer(world: World, do: str, argument: str) -> Any:
    if do == "games":
        return world.games(argument)
    if do == "walkthrough":
        return world.walkthrough(argument)
    return dataclasses.asdict(world.reset(argument) if do == "reset" else world.step(argument))


def _failure(error: Exception) -> dict[str, Any]:
    traceback.print_exception(error, file=sys.stderr)
    return {"error": {"type": type(error).__name__, "message": " ".join(str(error).split())}}


def _send(replies: IO[str], reply: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):  # the pool is gone, and the input ends
        print(json.dumps(reply), file=replies, flush=True)


def _take_streams() -> tuple[IO[str], IO[str]]:
    """The pool's pipes, out of reach of what libraries print and of what their programs read."""
    requests, replies = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return requests, replies


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)
