"""Classes by where they are, ``"package.module:Class"``: how a task or a world is named in settings and payloads."""

from __future__ import annotations

import importlib
from typing import TypeVar

T = TypeVar("T")


def find_class(reference: str, base: type[T], what: str) -> type[T]:
    """The class that a reference names.

    Args:
        reference: ``"package.module:Class"``; the module must be importable.
        base: What it must be a subclass of.
        what: What it is, for the message: ``"task"``.

    Raises:
        ValueError: when there is no such class.
    """
    module, _, name = reference.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"no {what} at {reference!r} (expected 'package.module:Class'): {error}") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ValueError(f"{reference!r} is {found!r}, not a subclass of {base.__module__}.{base.__qualname__}")
    return found
