"""Settings against their annotations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import pytest

from derl_gym.fields import check_fields


@dataclasses.dataclass(frozen=True)
class Mixed:
    whole: int = 1
    number: float = 1.0
    maybe: int | None = None
    switch: bool = False
    text: str = ""
    table: dict[str, Any] = dataclasses.field(default_factory=dict)
    names: Sequence[str] = ()
    choice: Literal["a", "b"] | None = "a"
    shared: ClassVar[object] = object()


@pytest.mark.parametrize("fine", [{}, {"number": 2}, {"maybe": 5}, {"choice": None}, {"number": 0.5, "switch": True}])
def test_what_fits(fine: dict[str, Any]) -> None:
    check_fields(Mixed(**fine), at_least={"whole": 1, "maybe": 5}, above={"number": 0})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"whole": 1.5}, "my.whole must be a whole number of at least 1, not 1.5"),
        ({"whole": True}, "my.whole must be a whole number of at least 1, not True"),
        ({"whole": "1"}, "my.whole must be a whole number of at least 1, not '1'"),
        ({"whole": 0}, "my.whole must be a whole number of at least 1, not 0"),
        ({"whole": None}, "my.whole must be a whole number of at least 1, not None"),
        ({"maybe": 4}, "my.maybe must be a whole number of at least 5 or None, not 4"),
        ({"number": 0}, "my.number must be a number above 0, not 0"),
        ({"number": "abc"}, "my.number must be a number above 0, not 'abc'"),
        ({"number": math.nan}, "my.number must be a number above 0, not nan"),
        ({"number": math.inf}, "my.number must be a number above 0, not inf"),
        ({"switch": 1}, "my.switch must be true or false, not 1"),
        ({"text": 5}, "my.text must be text, not 5"),
        ({"table": [1]}, "my.table must be a dictionary, not [1]"),
        ({"names": "g1"}, "my.names must be a list, not 'g1'"),
        ({"choice": "c"}, "my.choice must be one of a, b or None, not 'c'"),
        ({"choice": ["a"]}, "my.choice must be one of a, b or None, not ['a']"),
    ],
)
def test_what_does_not_fit_is_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        check_fields(Mixed(**wrong), "my.", at_least={"whole": 1, "maybe": 5}, above={"number": 0})
    assert str(caught.value) == said
