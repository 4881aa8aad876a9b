"""Settings against their annotations: a dataclass whose values came from a command line or a JSON file.

Ranges are named by field; what depends on several fields is the dataclass's own business.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

_KINDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    dict: "a dictionary",
    list: "a list",
    Sequence: "a list",
    type(None): "None",
}


def check_fields(
    settings: Any,
    prefix: str = "",
    *,
    at_least: Mapping[str, float] = types.MappingProxyType({}),
    above: Mapping[str, float] = types.MappingProxyType({}),
) -> None:
    """Refuse a value that does not fit its field.

    Args:
        settings: A dataclass with fields of the types int, float, bool, str, dict, list, Sequence, Literal and None,
            or unions of them. A float takes whole numbers as well, but no NaN and no infinity.
        prefix: Put before the field's name in the message.
        at_least: Field -> its smallest value.
        above: Field -> what it must exceed. ``None`` is out of no range.

    Raises:
        ValueError: names the field, what was expected and what came.
    """
    hints = typing.get_type_hints(type(settings))
    for name in (field.name for field in dataclasses.fields(settings)):
        value, hint = getattr(settings, name), hints[name]
        limit = ""
        fits = any(_fits(value, kind) for kind in _parts(hint))
        if name in at_least:
            limit = f" of at least {at_least[name]:g}"
            fits = fits and (value is None or value >= at_least[name])
        elif name in above:
            limit = f" above {above[name]:g}"
            fits = fits and (value is None or value > above[name])
        if not fits:
            raise ValueError(f"{prefix}{name} must be {_words(hint, limit)}, not {value!r}")


def _parts(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


def _fits(value: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is Literal:
        return value in typing.get_args(kind)
    if kind in (int, float):
        number = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
        return number and math.isfinite(value)
    kind = typing.get_origin(kind) or kind
    return isinstance(value, kind) and not (kind is Sequence and isinstance(value, str))


def _words(hint: Any, limit: str) -> str:
    """``a whole number of at least 1 or None``."""
    words = []
    for kind in _parts(hint):
        if typing.get_origin(kind) is Literal:
            words.append(f"one of {', '.join(map(str, typing.get_args(kind)))}")
        else:
            words.append(_KINDS[typing.get_origin(kind) or kind] + (limit if kind in (int, float) else ""))
    return " or ".join(words)
