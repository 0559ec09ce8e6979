"""Stand-ins for Dynamo's one-line functions: each does what the original does."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo.utils as originals

from tests.support.tracing import since
from warmrank.worker.runtime.variant import StandIns

STAND_INS = StandIns("torch._dynamo.utils")
TENSOR = torch.arange(12.0).reshape(3, 4)[1:]


@dataclasses.dataclass
class Options:
    width: int = 1


class Guarded:
    """Its own ``__setattr__`` is what must be gone around."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError(name)


def started(count: int) -> Any:
    iterator = iter((10, 11, 12, 13))
    for _ in range(count):
        next(iterator)
    return iterator


CALLS: list[tuple[str, Callable[[], tuple[Any, ...]]]] = [
    ("object_new", lambda: (Options,)),
    ("dict_getitem", lambda: ({"a": 1}, "a")),
    ("list_getitem", lambda: ([1, 2], 1)),
    ("iter_next", lambda: (iter([5]),)),
    ("dataclass_fields", lambda: (Options(),)),
    ("call_size", lambda: (TENSOR, 1)),
    ("call_stride", lambda: (TENSOR, 0)),
    ("call_storage_offset", lambda: (TENSOR,)),
    ("dict_keys_getitem", lambda: ({"a": 1, "b": 2}, 1)),
    ("set_getitem", lambda: ({7}, 0)),
    ("tuple_iterator_getitem", lambda: (started(1), 1)),
]


def comparable(value: Any) -> Any:
    return vars(value) if isinstance(value, Options) else value


@pytest.mark.parametrize(("name", "arguments"), CALLS, ids=[name for name, _ in CALLS])
def test_stand_in_gives_what_the_original_gives(name: str, arguments: Callable[[], tuple[Any, ...]]) -> None:
    found = getattr(STAND_INS, name)(*arguments())
    expected = getattr(originals, name)(*arguments())
    assert type(found) is type(expected)
    assert comparable(found) == comparable(expected)


def test_stand_in_sets_and_deletes_an_attribute_past_the_class() -> None:
    instance = Guarded()
    STAND_INS.object_setattr_ignore_descriptor(instance, "a", 1)
    assert vars(instance) == {"a": 1}
    STAND_INS.object_delattr_ignore_descriptor(instance, "a")
    assert vars(instance) == {}


@since("2.12", "one of the functions is not there yet")
def test_stand_ins_are_all_functions_that_dynamo_has() -> None:
    own = {name for name, _ in inspect.getmembers(StandIns) if not name.startswith("__")}
    assert {name for name in own if not hasattr(originals, name)} == set()
