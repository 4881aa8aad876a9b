"""The command ``derl-gym``: one dataclass per subcommand, made into a command line by tyro.

A user's mistake is one line on stderr and exit code 2; something that failed is one line and exit code 1; Ctrl-C is
130. ``--debug`` shows the traceback instead.
"""

from __future__ import annotations

import io
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Annotated

import tyro
from gymnasium.error import Error as GymnasiumError

from derl_gym import __version__
from derl_gym.cli.agents import Agents
from derl_gym.cli.analyse import Analyse
from derl_gym.cli.command import Command, Failed
from derl_gym.cli.compare import Compare
from derl_gym.cli.doctor import Doctor
from derl_gym.cli.export import Export
from derl_gym.cli.programs import Audit, Envs
from derl_gym.cli.report import Report
from derl_gym.cli.score import Score
from derl_gym.cli.search import COMPARE_FILE, Resume, Search
from derl_gym.cli.train import Train
from derl_gym.cli.warmstart import Warmstart
from derl_gym.report.runs import SEARCH_FILE
from derl_gym.secrets import redacted
from derl_gym.trials.database import LedgerError

_Commands = (
    Annotated[Envs, tyro.conf.subcommand("envs")]
    | Annotated[Agents, tyro.conf.subcommand("agents")]
    | Annotated[Audit, tyro.conf.subcommand("audit")]
    | Annotated[Score, tyro.conf.subcommand("score")]
    | Annotated[Search, tyro.conf.subcommand("search")]
    | Annotated[Compare, tyro.conf.subcommand("compare")]
    | Annotated[Warmstart, tyro.conf.subcommand("warmstart")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Analyse, tyro.conf.subcommand("analyse")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Export, tyro.conf.subcommand("export")]
    | Annotated[Resume, tyro.conf.subcommand("resume")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
)
_MISTAKES = (ValueError, TypeError, OSError, ImportError, LedgerError, GymnasiumError)
"""What a wrong argument, setting, path or missing package raises."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: Of the command line; ``None``: the process's own.

    Returns:
        The exit code. Wrong usage exits with 2 inside tyro.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:
        print(f"derl-gym {__version__}")
        return 0
    debug, Command.resumable = False, None  # not that of a command before this one
    if arguments is None:
        sys.excepthook = _show  # of --debug
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a table's lines are no reason to fail where only ASCII is known
    try:
        command: Command = tyro.cli(
            _Commands,  # type: ignore[arg-type]  # a union, which tyro takes
            prog="derl-gym",
            description="Reward design as a Gymnasium environment: search, compare, train, report. "
            "--version prints the version.",
            args=[_shielded(argument) for argument in given],
        )
        debug = command.debug
        return command.run()
    except KeyboardInterrupt:
        if arguments is None:  # the process is about to end: a second Ctrl-C has nothing left to stop
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return _complain(f"interrupted{_goes_on()}", 130)
    except BrokenPipeError:
        sys.stderr.close()  # a reader such as `head` has gone; nothing is left to be said
        return 1
    except ConnectionError as error:  # an endpoint that the agent asks
        return _stop(debug, error, f"{error}{_goes_on()}", 1)
    except Failed as error:
        return _stop(debug, error, str(error), 1)
    except _MISTAKES as error:
        return _stop(debug, error, str(error), 2)
    except Exception as error:
        return _stop(debug, error, f"{type(error).__name__}: {error} (--debug shows where)", 1)


def _goes_on() -> str:
    folder = Command.resumable
    begun = folder is not None and any((folder / name).exists() for name in (SEARCH_FILE, COMPARE_FILE))
    return f"; `derl-gym resume {folder}` goes on from here" if begun else ""


def _shielded(argument: str) -> str:
    """A program that begins with a minus sign, such as ``-g1+g2``, with a space before it: no option."""
    return f" {argument}" if re.match(r"-[g(]", argument) else argument


def _stop(debug: bool, error: Exception, message: str, code: int) -> int:
    if debug:
        raise error
    return _complain(message, code)


def _complain(message: str, code: int) -> int:
    first, _, _ = message.partition("\nTraceback")  # of another process: its last line is in the message already
    print(f"derl-gym: {redacted(' '.join(first.split()))}", file=sys.stderr)
    return code


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A traceback as Python prints it, keys and passwords redacted."""
    print(redacted("".join(traceback.format_exception(kind, error, trace))), end="", file=sys.stderr)
