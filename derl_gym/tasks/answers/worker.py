"""The child process in which math-verify compares two answers; ``checker.py`` starts it.

Run as a script, it imports nothing of derl_gym. JSON lines come in on stdin and go out on stdout, and the end of
stdin ends it. What bounds a check here counts CPU time, so that a verdict does not depend on how loaded the machine is.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable

MEMORY = 2 << 30
"""Bytes of address space."""
DIGITS = 30
"""Of numerical comparisons; with math-verify's fifteen, numbers that differ by less than 1e-15 are equal."""


_late = False


class OutOfTime(BaseException):
    """The check's CPU time is over. No ``Exception``: sympy and math-verify catch those."""


def main() -> None:
    """Say ``{"ready": true}`` or ``{"missing": ...}``, then answer line by line until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    with contextlib.suppress(ValueError, OSError):  # not every system limits address space
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints must not look like a reply
    try:
        compare = comparison()
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), file=replies)
        return
    print(json.dumps({"ready": True}), file=replies)
    signal.signal(signal.SIGVTALRM, _out_of_time)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(judge(compare, request["answer"], request["truth"], request["seconds"])), file=replies)


def comparison() -> Callable[[str, str], bool]:
    """Math-verify as a function of an answer and the truth, both LaTeX without delimiters.

    Raises:
        ImportError: math-verify, or something that it needs, is not installed.
    """
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    logging.disable(logging.CRITICAL)  # it warns that its own alarm is off, and about all that it cannot read

    # LaTeX alone: its other reader picks the first number out of a formula that this one cannot read. Units are off
    # since they would take the variable t out of 5t.
    spelling = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none")
    latex = [LatexExtractionConfig(boxed_match_priority=-1, normalization_config=spelling)]

    def read(text: str) -> list:
        return parse(f"${text}$", latex, fallback_mode="no_fallback", parsing_timeout=None)  # type: ignore[arg-type]

    def compare(answer: str, truth: str) -> bool:
        gold, target = read(truth), read(answer)
        return bool(gold and target and verify(gold, target, numeric_precision=DIGITS, timeout_seconds=None))

    return compare


def judge(compare: Callable[[str, str], bool], answer: str, truth: str, seconds: float) -> dict[str, object]:
    """``{"equal": bool, "seconds": CPU time}``, or ``{"unfinished": why}`` where time or memory did not suffice.

    Python code is interrupted after ``seconds`` of CPU time; one call into C that goes on for half as long again is
    ended by the kernel, process and all, with SIGPROF.
    """
    global _late
    _late, start = False, time.process_time()
    try:
        try:
            signal.setitimer(signal.ITIMER_PROF, 1.5 * seconds)
            # Again and again: an exception that is raised inside a destructor is lost.
            signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds / 20)
            verdict = compare(answer, truth)
            if _late:
                raise OutOfTime  # somebody has swallowed it
        finally:
            _stop_timers()
    except OutOfTime:
        _stop_timers()
        return {"unfinished": f"it needs more than {seconds:.2g} s"}
    except MemoryError:
        return {"unfinished": f"it needs more than {MEMORY >> 20} MB"}
    except Exception:  # the text is not mathematics, or none that the library can read
        verdict = False
    return {"equal": verdict, "seconds": time.process_time() - start}


def _stop_timers() -> None:
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.setitimer(signal.ITIMER_PROF, 0)


def _out_of_time(number: int, frame: object) -> None:
    global _late
    _late = True
    raise OutOfTime


if __name__ == "__main__":
    main()
