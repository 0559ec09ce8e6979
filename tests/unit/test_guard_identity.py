"""Names of objects that Dynamo compares by address."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import operator
import re
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it

from tests.support.small_models import Plain
from warmrank.worker.errors import NotPortable
from warmrank.worker.keys import code
from warmrank.worker.keys.code import class_digest, function_digest
from warmrank.worker.runtime.constants import describe


class Colour(enum.Enum):
    RED = 1


def add(x: int, y: int) -> int:
    return x + y


def digest_of(function: Any) -> str:
    assert isinstance(function, FunctionType)
    return function_digest(function)


ADD_DIGEST = digest_of(add)


def made(constant: int) -> Callable[..., int]:
    scope: dict[str, Any] = {"__name__": "made_identity"}
    exec(f"def f(x):\n    return x + {constant}\n", scope)  # noqa: S102 - two functions that differ in one place
    f: Callable[..., int] = scope["f"]
    return f


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math, ["module", "math"]),
        (F, ["module", "torch.nn.functional"]),
        (Plain, ["class", "tests.support.small_models", "Plain", class_digest(Plain)]),
        (torch.nn.Linear, ["class", "torch.nn.modules.linear", "Linear"]),
        (add, ["function", __name__, "add", ADD_DIGEST]),
        (F.relu, ["function", "torch.nn.functional", "relu", ""]),
        (len, ["builtin", "builtins", "len"]),
        (str.join, ["builtin", "builtins.str", "join"]),
        (operator.add, ["builtin", "_operator", "add"]),
        (torch.ops.aten.add.Tensor, ["operator", "aten.add.Tensor"]),
        (torch.ops.aten.add, ["operator", "aten.add"]),
        (Colour.RED, ["constant", {"enum": [__name__, "Colour", "RED", 1]}]),
        (3, ["constant", 3]),
        (torch.float16, ["constant", {"dtype": "float16"}]),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, list) else "",
)
def test_description_says_what_the_object_is(value: Any, expected: list[Any]) -> None:
    assert describe(value) == expected


@pytest.mark.parametrize(
    "other",
    [functools.partial(add, 2, y=2), functools.partial(add, 1, y=3), functools.partial(made(1), 1, y=2)],
    ids=["argument", "keyword", "function"],
)
def test_partial_with_something_else_differs(other: Any) -> None:
    assert describe(other) != describe(functools.partial(add, 1, y=2))


@pytest.mark.parametrize("value", [Plain(), torch.ones(2)], ids=["module", "tensor"])
def test_object_with_nothing_but_an_address_is_refused_by_type(value: Any) -> None:
    with pytest.raises(NotPortable, match=f"type {type(value).__qualname__} is compared by address"):
        describe(value)


def test_field_that_does_not_say_how_it_is_passed_has_the_same_digest_in_every_process() -> None:
    """Such a field's kw_only is an object, whose text holds its address; transformers makes them."""
    made = dataclasses.make_dataclass("Made", [("size", int, 3)])
    (field,) = dataclasses.fields(made)
    field.kw_only = dataclasses.MISSING
    assert not re.search(r"0x[0-9a-f]+", code._field(field))
