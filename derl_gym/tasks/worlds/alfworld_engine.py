"""What TextWorld's engine computes again and again though it depends on a text alone, computed once.

A game's translation from PDDL, the parse of a piece of grammar and that of a condition are kept; a context is copied as
deeply as it can change. The engine's own functions are replaced while it works for us, and put back. Texts and commands
are the same with and without.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
from collections.abc import Iterator
from typing import Any

TRANSLATIONS = 32
"""Games whose translation a process keeps, a text of up to 1 MB and the objects that go with it."""
PIECES = 4096
"""Pieces of grammar, and conditions, that a process keeps. A game has some hundreds, and games have most in common."""


@contextlib.contextmanager
def undisturbed(memo: bool) -> Iterator[None]:
    """Let the engine work: afterwards ``sys.argv`` and ``sys.stdout``, which it overwrites and swaps, are as before.

    Args:
        memo: Keep what depends on a text alone.
    """
    argv, stdout = sys.argv, sys.stdout
    places = _replacements() if memo else []
    before = [vars(place)[name] for place, name, _ in places]
    try:
        for place, name, value in places:
            setattr(place, name, value)
        yield
    finally:
        for (place, name, _), value in zip(places, before, strict=True):
            setattr(place, name, value)
        sys.argv, sys.stdout = argv, stdout


@functools.cache
def _replacements() -> list[tuple[Any, str, Any]]:
    """(where, name, what stands there instead)."""
    import fast_downward  # pyright: ignore[reportMissingImports]
    from textworld.envs.pddl import textgen  # pyright: ignore[reportMissingImports]
    from textworld.logic import Rule  # pyright: ignore[reportMissingImports]

    translate = functools.lru_cache(TRANSLATIONS)(fast_downward.pddl2sas)
    parse = functools.lru_cache(PIECES)(textgen._parse_and_convert)
    return [
        # The engine asks for a second translation, optimised for its planner, which is not used here.
        (fast_downward, "pddl2sas", lambda domain, problem, verbose=False, optimize=False: translate(domain, problem)),
        # Symbols get a context of their own each time they are used.
        (textgen, "_parse_and_convert", lambda *args, **kwargs: copy.deepcopy(parse(*args, **kwargs))),
        (textgen, "copy_context", _copy_context),
        (Rule, "parse_conjunctive_query", staticmethod(functools.lru_cache(PIECES)(Rule.parse_conjunctive_query))),
    ]


def _copy_context(context: dict[str, Any]) -> dict[str, Any]:
    """The two parts that change are tables; what is in them, entities and variables, does not."""
    return {**context, "variables": dict(context["variables"]), "mapping": dict(context["mapping"])}
