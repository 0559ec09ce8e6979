"""Changes of Python objects and tensors, by words of memory, by slower readers, and by metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from warmrank.worker.torch_private import unchanged
from warmrank.worker.torch_private.unchanged import TensorWatch, Watched
from warmrank.worker.torch_private.warm import Metadata


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


@pytest.fixture(params=["words", "slower readers"])
def _reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "slower readers":
        monkeypatch.setattr(unchanged, "FAST", frozenset())


def made() -> dict[str, Any]:
    one = Derived()
    one.value = 5
    return {"object": one, "cell": (closed_over(1.5).__closure__ or ())[0]}


OBJECT_CHANGES: dict[str, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "item set": ("dict", lambda m: m["object"].__dict__, lambda m: setattr(m["object"], "value", 6)),
    "item added": ("dict", lambda m: m["object"].__dict__, lambda m: setattr(m["object"], "new", 6)),
    "item deleted": ("dict", lambda m: m["object"].__dict__, lambda m: delattr(m["object"], "value")),
    "dict replaced": ("namespace", lambda m: m["object"], lambda m: setattr(m["object"], "__dict__", {})),
    "class replaced": ("type", lambda m: m["object"], lambda m: setattr(m["object"], "__class__", Other)),
    "cell filled anew": ("cell", lambda m: m["cell"], lambda m: setattr(m["cell"], "cell_contents", 2.5)),
}


@pytest.mark.usefixtures("_reader")
@pytest.mark.parametrize("change", OBJECT_CHANGES)
def test_change_of_an_object_is_seen(change: str) -> None:
    kind, pick, alter = OBJECT_CHANGES[change]
    objects = made()
    watched = Watched([(kind, pick(objects))])
    assert (watched.same(), watched.changed()) == (True, [])
    alter(objects)
    assert (watched.same(), [found for found, _ in watched.changed()]) == (False, [kind])


@pytest.mark.usefixtures("_reader")
@pytest.mark.parametrize("cls", [Base, Derived])
@pytest.mark.parametrize("name", ["value", "new"])
def test_change_of_a_class_or_of_its_base_is_seen(cls, name, monkeypatch):
    watched = Watched([("class", Derived), ("class", Slotted)])
    monkeypatch.setattr(cls, name, 2, raising=False)
    assert watched.changed() == [("class", id(Derived))]


@pytest.fixture
def _restored() -> Iterator[None]:
    code, defaults, keywords = function.__code__, function.__defaults__, function.__kwdefaults__
    yield
    function.__code__, function.__defaults__, function.__kwdefaults__ = code, defaults, keywords


@pytest.mark.usefixtures("_restored", "_reader")
@pytest.mark.parametrize("kind", ["code", "defaults", "kwdefaults"])
def test_change_of_a_function_is_seen(kind: str) -> None:
    watched = Watched([(kind, function) for kind in ("code", "defaults", "kwdefaults")])
    setattr(function, f"__{kind}__", getattr(replacement, f"__{kind}__"))
    assert watched.changed() == [(kind, id(function))]


@pytest.mark.usefixtures("_reader")
def test_object_that_took_the_place_of_another_is_seen() -> None:
    """A new float gets the memory of one that just went; here that one is held."""
    cell = (closed_over(float("1.5")).__closure__ or ())[0]
    watched = Watched([("cell", cell)])
    cell.cell_contents = None
    cell.cell_contents = float("2.5")
    assert not watched.same()


# Tensors.

MODES = (torch.enable_grad, torch.no_grad, torch.inference_mode)


def matrix() -> nn.Parameter:
    return nn.Parameter(torch.arange(12.0).reshape(3, 4))


def watched(*inputs: Any) -> TensorWatch:
    watch = TensorWatch(range(len(inputs)))
    while (words := watch.take(inputs)) is None:
        pass
    watch.keep(words)
    return watch


TENSOR_CHANGES: dict[str, Callable[[nn.Parameter], Any]] = {
    "dtype": lambda p: setattr(p, "data", p.data.double()),
    "transposed data": lambda p: setattr(p, "data", p.data.reshape(4, 3).t()),
    "transposed in place": lambda p: p.t_(),
    "sizes": lambda p: setattr(p, "data", p.data[:2]),
    "dimensions": lambda p: p.unsqueeze_(0),
    "strides of a dimension of size one": lambda p: setattr(
        p, "data", torch.empty_strided((3, 4, 1), (4, 1, 7))
    ),
    "offset": lambda p: setattr(p, "data", torch.zeros(30)[7:19].view(3, 4)),
    "memory": lambda p: setattr(p, "data", p.data.clone()),
    "resized": lambda p: p.requires_grad_(False).resize_(2, 2),
    "smaller storage": lambda p: p.untyped_storage().resize_(8),
    "set": lambda p: p.set_(torch.ones(5).untyped_storage()),
    "negative bit": lambda p: setattr(p, "data", torch._neg_view(p.data)),
    "requires_grad": lambda p: p.requires_grad_(False),
    "class": lambda p: setattr(p, "__class__", nn.Buffer),
    "swapped": lambda p: torch.utils.swap_tensors(p, nn.Parameter(torch.zeros(3, 4))),
}


@pytest.mark.parametrize("change", TENSOR_CHANGES)
def test_change_of_a_tensor_shows_in_words_in_every_mode(change: str) -> None:
    inputs = (matrix(), 3, matrix().detach())
    watch = TensorWatch((0, 2))
    while (words := watch.take(inputs)) is None:
        pass
    watch.keep(words)
    for mode in MODES:
        with mode():
            assert watch.same(inputs)
    with torch.no_grad():
        TENSOR_CHANGES[change](inputs[0])
    for mode in MODES:
        with mode():
            assert not watch.same(inputs)


def test_equal_tensors_are_others() -> None:
    first, second = matrix(), matrix()
    watch = watched(first, second)
    assert watch.same((first, second))
    assert not watch.same((second, first))
    assert not watch.same((first, second, second))
    assert not watch.same([first, second])


def same(known: Metadata, tensors: Any) -> list[bool]:
    found = []
    for mode in (*MODES, *MODES):
        with mode():
            found.append(known.of(tensors))
    return found


@pytest.mark.parametrize(
    "change",
    ["dtype", "transposed data", "transposed in place", "sizes", "resized", "set", "requires_grad", "class"],
)
def test_change_of_a_tensor_is_seen_by_its_metadata_in_every_mode(change: str) -> None:
    tensors = (matrix(), matrix())
    known = Metadata(tensors)
    assert same(known, tensors) == [True] * 6
    with torch.no_grad():
        TENSOR_CHANGES[change](tensors[1])
    assert same(known, tensors) == [False] * 6
    assert known.changed(tensors) == (1,)


@pytest.mark.parametrize("other", [None, torch.ones(3, 4), matrix().to_sparse(), matrix().to("meta")])
def test_other_value_in_its_place_is_seen(other: Any) -> None:
    tensors = (matrix(),)
    known = Metadata(tensors)
    assert same(known, tensors) == [True] * 6
    assert same(known, (other,)) == [False] * 6
