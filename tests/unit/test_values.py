"""Values behave as frozen dataclasses do; each test that compares has the dataclass beside it."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any, ClassVar

import pytest

from warmrank.worker.values import Value


class Point(Value):
    """Two numbers and what they are called."""

    kind: ClassVar[str] = "point"
    x: int
    y: int = 0
    names: tuple[str, ...] = ()
    tags: list[str] = dataclasses.field(default_factory=list)


class Named(Point):
    name: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Twin:
    x: int
    y: int = 0
    names: tuple[str, ...] = ()
    tags: list[str] = dataclasses.field(default_factory=list)


def pickled(one: Any) -> Any:
    return pickle.loads(pickle.dumps(one))  # noqa: S301 - our own bytes


def test_fields_have_their_values_and_defaults() -> None:
    made = Point(x=1)
    assert (made.x, made.y, made.names, made.tags, made.kind) == (1, 0, (), [], "point")


def test_unknown_field_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TypeError, match="Point has no field z; its fields: x, y, names, tags"):
        Point(x=1, z=2)  # type: ignore[call-arg]


def test_value_cannot_be_changed() -> None:
    made = Point(x=1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="replace"):
        made.x = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del made.x
    assert made == Point(x=1)


@pytest.mark.parametrize("changed", [{"y": 1}, {"x": 2}, {"names": ("a",)}, {"tags": ["t"]}])
def test_values_are_equal_by_all_their_fields(changed: dict[str, Any]) -> None:
    base: dict[str, Any] = {"x": 1}
    assert Point(**base) == Point(**base)
    assert Point(**base) != Point(**{**base, **changed})


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickled])
def test_copies_are_equal(again: Any) -> None:
    made = Named(x=1, tags=["t"], name="n")
    found = again(made)
    assert found == made
    assert type(found) is Named


def test_dataclasses_take_values_for_their_own() -> None:
    made, twin = Point(x=1, names=("a",)), Twin(x=1, names=("a",))
    assert dataclasses.asdict(made) == dataclasses.asdict(twin)
    changed = dataclasses.replace(made, y=3)
    assert dataclasses.asdict(changed) == dataclasses.asdict(dataclasses.replace(twin, y=3))
    described = [(one.name, one.type, one.kw_only) for one in dataclasses.fields(Point)]
    assert described == [(one.name, one.type, one.kw_only) for one in dataclasses.fields(Twin)]
    assert dataclasses.is_dataclass(made)
