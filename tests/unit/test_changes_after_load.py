"""Calls after a change of the module equal eager, or are refused; how changes are noticed."""

from __future__ import annotations

import builtins
import dataclasses
import functools
import importlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import symbolic_trace

from tests.support.tracing import cached, compiles_ahead, in_mode, outcome
from warmrank.worker.errors import BadFunction, NotPortable, StateChanged, WorkerError
from warmrank.worker.torch_private import unchanged
from warmrank.worker.torch_private.unchanged import TensorWatch, Watched
from warmrank.worker.torch_private.warm import Metadata

pytestmark = pytest.mark.usefixtures("no_grad")

X = torch.arange(12.0).reshape(3, 4) - 5
SCALE = torch.tensor([2.0, 3.0, 4.0, 5.0])


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.layer = nn.Linear(4, 4)
        self.traced = symbolic_trace(nn.Tanh())
        self.register_buffer("offset", torch.arange(4.0))
        self.offset: torch.Tensor

    def forward(self, x: torch.Tensor) -> Any:
        return torch.relu(self.layer(x) @ self.weight + self.offset) * SCALE + self.traced(x)


MODES = ["reduce-overhead", pytest.param("max-autotune", marks=pytest.mark.slow)]
TENSORS: dict[str, Callable[[Model], Any]] = {
    "transposed data": lambda m: setattr(m.weight, "data", m.weight.data.t()),
    "transposed in place": lambda m: m.weight.t_(),
    "smaller buffer": lambda m: setattr(m, "offset", torch.ones(1)),
    "smaller data": lambda m: setattr(m.offset, "data", torch.ones(1)),
    "another storage": lambda m: m.offset.set_(torch.ones(4).untyped_storage()),
    "strided data": lambda m: setattr(m.layer.bias, "data", torch.arange(8.0)[::2]),
    "replaced layer": lambda m: setattr(m, "layer", nn.Linear(4, 4)),
    "data of a global": lambda _: setattr(SCALE, "data", torch.tensor([7.0])),
    "recompiled graph": lambda m: setattr(type(m.traced), "forward", lambda _, x: torch.sin(x)),
    "swapped parameter": lambda m: torch.utils.swap_tensors(m.weight, nn.Parameter(torch.ones(4, 4))),
    "added hook": lambda m: m.layer.register_forward_hook(lambda _m, _i, output: output + 1),
}


@pytest.fixture(autouse=True)
def _scale() -> Any:
    before = SCALE.data
    yield
    SCALE.data = before


@pytest.mark.one_in(4)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", TENSORS)
def test_call_after_a_change_equals_eagers(change: str, mode: str, cache: Path) -> None:
    model = Model()
    function = cached(model.forward, cache, config=in_mode(mode), ge_cache=True)
    for _ in range(3):
        function(X)
    TENSORS[change](model)
    for _ in range(3):
        torch.testing.assert_close(function(X), model(X))


@pytest.mark.parametrize("mode", MODES)
def test_tensor_whose_storage_is_too_small_is_refused_by_name(mode: str, cache: Path) -> None:
    model = Model()
    function = cached(model.forward, cache, config=in_mode(mode), ge_cache=True)
    for _ in range(3):
        function(X)
    model.weight.untyped_storage().resize_(8)
    with pytest.raises(StateChanged, match=r"weight.*8 bytes of storage"):
        function(X)


@pytest.mark.parametrize("lazy", [nn.LazyLinear(4), nn.LazyBatchNorm1d().eval()], ids=["linear", "norm"])
def test_layer_without_shapes_is_refused_by_name(lazy: nn.Module, cache: Path) -> None:
    model = Model()
    function = cached(model.forward, cache)
    for _ in range(2):
        function(X)
    model.add_module("layer", lazy)
    with pytest.raises(BadFunction, match=r"layer\.weight has no shape yet"):
        function(X)


def test_argument_that_the_artifact_was_not_made_for_is_a_miss_without_guards_too(cache: Path) -> None:
    model = Model()
    function = cached(model.forward, cache, guards="skip", dynamic=False)
    for x in (X, X[:1].clone(), X.t().contiguous().t()):
        torch.testing.assert_close(function(x), model(x))


class Asked:
    pass


class Asking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.asked, self.function = Asked(), lambda x: x * 2

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x) + (2 if self.asked else 3)


def scaled(x: torch.Tensor, scale: float = 7.0, *, offset: float = 1.0) -> torch.Tensor:
    return x * scale + offset


def _another_code(_: pytest.MonkeyPatch, model: Any) -> None:
    function = model.function
    function.__code__, function.__defaults__ = scaled.__code__, scaled.__defaults__
    function.__kwdefaults__ = {"offset": 4.0}


@pytest.mark.parametrize(
    "change",
    [
        lambda patch, _: patch.setattr(Asked, "__bool__", lambda _: False, raising=False),
        lambda patch, _: patch.setattr(Asked, "__len__", lambda _: 0, raising=False),
        _another_code,
    ],
    ids=["truth", "length", "signature"],
)
def test_second_trace_takes_classes_and_functions_as_they_are_now(tmp_path, monkeypatch, change):
    model = Asking()
    function = cached(model.forward, tmp_path)
    assert torch.equal(function(X), model(X))
    change(monkeypatch, model)
    assert torch.equal(function(X), model(X))
    assert len(function.variants) == 2


class Counts(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number in range(3):
            x = x + number
        return x


@pytest.mark.parametrize("is_loaded", [True, False])
def test_builtin_that_nobody_can_work_with_is_refused_by_name(tmp_path: Path, *, is_loaded: bool) -> None:
    model = Counts()
    function = cached(model.forward, tmp_path)
    function(X)
    function = function if is_loaded else cached(model.forward, tmp_path)
    original = range

    def called() -> None:  # pytest cannot work with it either
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(builtins, "range", lambda *_: original(2))
            function(X)

    with pytest.raises(NotPortable, match=r"builtins\.range"):
        called()
    torch.testing.assert_close(function(X), model(X))


class Sized(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return torch.ops.warmrank_tests.first(x).sum(-1) / torch.ops.warmrank_tests.first(x).shape[-1]


ROWS_OF_FIRST = 2


@torch.library.custom_op("warmrank_tests::first", mutates_args=())
def first(x: torch.Tensor) -> torch.Tensor:
    return x[:, :ROWS_OF_FIRST].clone()


@first.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], ROWS_OF_FIRST)


@pytest.mark.parametrize(
    ("guards", "mode"),
    [
        *((guards, MODES[0]) for guards in ("always", "once", "skip")),
        pytest.param("skip", "max-autotune", marks=[compiles_ahead, pytest.mark.slow]),
    ],
)
def test_changed_sizes_of_an_operators_result_are_noticed(
    guards: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Sized()
    function = cached(model.forward, tmp_path, guards=guards, config=in_mode(mode), ge_cache=True)
    function(X)
    monkeypatch.setitem(globals(), "ROWS_OF_FIRST", 4)
    if guards == "skip":
        with pytest.raises(StateChanged, match=r"result of .*warmrank_tests\.first"):
            function(X)
    else:
        torch.testing.assert_close(function(X), model(X))


class Adapted(nn.Module):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x) * 2


@pytest.mark.parametrize("guards", ["once", "skip"])
def test_layer_without_what_the_graph_takes_is_traced_again(guards: str, tmp_path: Path) -> None:
    """As a wrapped one is; nothing asks about layers in these modes."""
    model = Model()
    function = cached(model.forward, tmp_path, guards=guards)
    for _ in range(2):
        function(X)
    layer, model.layer = model.layer, Adapted(model.layer)  # type: ignore[assignment]
    for _ in range(3):
        assert torch.equal(function(X), model(X))
    model.layer = layer
    function.warm_up(X)
    assert torch.equal(function(X), model(X))
    del layer.bias
    with pytest.raises(WorkerError, match="bias"):
        function(X)


class Reader(nn.Module):
    """Reads the members that a mapping has: its own, or an argument."""

    def __init__(self, kept: Any = None) -> None:
        super().__init__()
        self.kept = kept

    def forward(self, x: torch.Tensor, given: Any = None) -> torch.Tensor:
        members = self.kept if given is None else given
        for key in ("a", "b"):
            if key in members:
                x = x + members[key]
        return x * len(members)


class Tree(dict[str, Any]):
    """A dict that makes what it is asked for."""

    def __missing__(self, key: str) -> int:
        self[key] = 0
        return 0


@pytest.mark.parametrize("is_given", [False, True], ids=["attribute", "argument"])
@pytest.mark.parametrize(
    "kind", [lambda members: defaultdict(int, members), Tree], ids=["defaultdict", "__missing__"]
)
def test_look_for_a_key_does_not_make_it(tmp_path: Path, kind: Callable[..., Any], is_given: bool) -> None:
    """As the check of the variant made for two keys would, which then fits."""
    for members in ({"a": 1, "b": 2}, {"a": 1}):
        held = kind(members)
        reader, given = (Reader(), [held]) if is_given else (Reader(held), [])
        function = cached(reader.forward, tmp_path)
        assert torch.equal(function(X, *given), Reader(members)(X))
        assert dict(held) == members


def test_patched_class_of_parameters_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    function = cached(model.forward, tmp_path)
    function(X)
    monkeypatch.setattr(nn.Parameter, "warmrank_test", lambda *_: X, raising=False)
    torch.testing.assert_close(function(X), model(X))
    assert len(function.variants) == 2


class Lazy(torch.nn.Module):
    def shifted(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1


LAZY = {
    "negative": torch.tensor([1 + 2j, -3.5 + 1j]).conj().imag,
    "conjugate": torch.tensor([1 + 2j, -3.5 + 1j]).conj(),
}


@pytest.mark.parametrize("bit", LAZY)
def test_inputs_with_lazy_bits_are_right_in_captured_graphs(tmp_path: Path, bit: str) -> None:
    model = Lazy()
    function = cached(model.shifted, tmp_path)
    assert torch.equal(function(LAZY[bit]), model.shifted(LAZY[bit]))


@pytest.mark.parametrize("bit", LAZY)
def test_inputs_with_lazy_bits_are_refused_by_compiled_kernels(tmp_path: Path, bit: str) -> None:
    function = cached(Lazy().shifted, tmp_path, config=in_mode("max-autotune"))
    with pytest.raises(NotPortable, match=rf"^x has its {bit} bit set.*x\.resolve_"):
        function(LAZY[bit])


@dataclasses.dataclass
class Settings:
    scale: int = 2
    sizes: list[int] = dataclasses.field(default_factory=list)


class MakingSettings(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * Settings().scale


def test_changed_default_of_a_generated_method_is_noticed(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = cached(MakingSettings().forward, cache)
    assert function(torch.ones(1)).item() == 2
    _, made = Settings.__init__.__defaults__ or ()
    monkeypatch.setattr(Settings.__init__, "__defaults__", (5, made))
    assert function(torch.ones(1)).item() == 5


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
    if kind == "dict" and not unchanged.dicts_tell():
        pytest.skip("no watch of this kind sees all changes in this Python")
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


GRAD_MODES = (torch.enable_grad, torch.no_grad, torch.inference_mode)


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
    for mode in GRAD_MODES:
        with mode():
            assert watch.same(inputs)
    with torch.no_grad():
        TENSOR_CHANGES[change](inputs[0])
    for mode in GRAD_MODES:
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
    for mode in (*GRAD_MODES, *GRAD_MODES):
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


class Tells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = [told]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * len(self.told[0].__class__.__name__)


def told() -> None:
    """A function."""


def test_class_of_a_function_is_followed(cache: Path) -> None:
    model = Tells()
    for way in ("compiled", "loaded"):
        function = cached(model.forward, cache)
        for each in (told, model.forward, nn.Identity()):
            model.told = [each]
            assert torch.equal(function(X), model(X))
            assert outcome(function) == way


def with_hook(module: Any, x: torch.Tensor) -> Any:
    return module.old_forward(x + 1) * module.scale


def test_forward_that_a_partial_replaces_is_cached(cache: Path) -> None:
    model: Any = Model()
    model.old_forward, model.scale = model.forward, 2.0
    model.forward = functools.update_wrapper(functools.partial(with_hook, model), model.forward)
    for way in ("compiled", "loaded"):
        function = cached(model.forward, cache)
        for scale in (2.0, 3.0):
            model.scale = scale
            assert torch.equal(function(X), model(X))
            assert outcome(function) == way
    with pytest.raises(BadFunction, match="or a method that calls the partial"):
        cached(functools.partial(model.old_forward, X), cache)


_MADE_BY_A_MODULE = """
import collections, dataclasses, enum
Pair = collections.namedtuple("Pair", "first second")
Color = enum.Enum("Color", "RED")
class Box:
    def __init__(self, value): self.value = value
@dataclasses.dataclass
class Held:
    value: object
"""


class Making(nn.Module):
    made: Any

    def forward(self, x: torch.Tensor) -> Any:
        return (
            self.made.Pair(x * 2, x), self.made.Color.RED, self.made.Box(x), self.made.Held(x), self.made.Box
        )  # fmt: skip


def test_classes_of_a_module_that_was_reloaded_are_the_new_ones(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reloaded_classes.py").write_text(_MADE_BY_A_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    model = Making()
    model.made = importlib.import_module("reloaded_classes")
    function = cached(model.forward, cache)
    for _ in range(3):
        *made, kind = function(X)
        assert [*map(type, made), kind] == [*map(type, model(X)[:-1]), model.made.Box]
        function(X)
        importlib.reload(model.made)
    assert len(function.variants) == 1
