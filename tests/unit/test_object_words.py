"""Words of Python objects: each kind of change makes another word, in this Python and by slower readers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from warmrank.worker.torch_private import unchanged
from warmrank.worker.torch_private.unchanged import Watched


class Base:
    value = 1


class Derived(Base):
    pass


class Other(Base):
    pass


class Slotted:
    __slots__ = ("value",)


def function(value: int = 1, *, other: int = 2) -> int:
    return value + other


def replacement(value: int = 3, *, other: int = 4) -> int:
    return value * other


def closed_over(value: float) -> Callable[[], float]:
    return lambda: value


@pytest.fixture(params=["words", "slower readers"], autouse=True)
def _reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "slower readers":
        monkeypatch.setattr(unchanged, "FAST", frozenset())


def made() -> dict[str, Any]:
    one = Derived()
    one.value = 5
    return {"object": one, "cell": (closed_over(1.5).__closure__ or ())[0]}


CHANGES: dict[str, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "item set": ("dict", lambda m: m["object"].__dict__, lambda m: setattr(m["object"], "value", 6)),
    "item added": ("dict", lambda m: m["object"].__dict__, lambda m: setattr(m["object"], "new", 6)),
    "item deleted": ("dict", lambda m: m["object"].__dict__, lambda m: delattr(m["object"], "value")),
    "dict replaced": ("namespace", lambda m: m["object"], lambda m: setattr(m["object"], "__dict__", {})),
    "class replaced": ("type", lambda m: m["object"], lambda m: setattr(m["object"], "__class__", Other)),
    "cell filled anew": ("cell", lambda m: m["cell"], lambda m: setattr(m["cell"], "cell_contents", 2.5)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_change_of_an_object_is_seen(change: str) -> None:
    kind, pick, alter = CHANGES[change]
    objects = made()
    watched = Watched([(kind, pick(objects))])
    assert (watched.same(), watched.changed()) == (True, [])
    alter(objects)
    assert (watched.same(), [found for found, _ in watched.changed()]) == (False, [kind])


@pytest.mark.parametrize("cls", [Base, Derived])
@pytest.mark.parametrize("name", ["value", "new"])
def test_change_of_a_class_or_of_its_base_is_seen(
    cls: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched([("class", Derived), ("class", Slotted)])
    monkeypatch.setattr(cls, name, 2, raising=False)
    assert watched.changed() == [("class", id(Derived))]


def test_other_bases_are_seen() -> None:
    cls = type("cls", (Derived,), {})
    watched = Watched([("class", cls)])
    cls.__bases__ = (Other,)
    assert not watched.same()


def test_change_that_comes_after_another_one_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in range(4):
        watched = Watched([("class", Derived)])
        monkeypatch.setattr(Base, "value", value)
        assert not watched.same()


@pytest.fixture
def _restored() -> Iterator[None]:
    code, defaults, keywords = function.__code__, function.__defaults__, function.__kwdefaults__
    yield
    function.__code__, function.__defaults__, function.__kwdefaults__ = code, defaults, keywords


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize("kind", ["code", "defaults", "kwdefaults"])
def test_change_of_a_function_is_seen(kind: str) -> None:
    watched = Watched([(kind, function) for kind in ("code", "defaults", "kwdefaults")])
    setattr(function, f"__{kind}__", getattr(replacement, f"__{kind}__"))
    assert watched.changed() == [(kind, id(function))]


def test_object_that_took_the_place_of_another_is_seen() -> None:
    """A new float gets the memory of one that just went; here that one is held."""
    cell = (closed_over(float("1.5")).__closure__ or ())[0]
    watched = Watched([("cell", cell)])
    cell.cell_contents = None
    cell.cell_contents = float("2.5")
    assert not watched.same()


@pytest.mark.skipif(sys.version_info[:2] not in ((3, 11), (3, 12)), reason="read more slowly elsewhere")
def test_words_of_all_kinds_are_where_they_should_be() -> None:
    assert unchanged._fast_kinds() == unchanged._ADDRESS.keys()
