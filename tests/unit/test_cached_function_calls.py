"""Which artifact a call of a cached function runs: variants, functions of one module, partitions."""

from __future__ import annotations

import copy
import functools
import logging
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import SUPPORTED_NODES, tree_leaves

from tests.support.devices import fake_world
from tests.support.small_models import Collective, Derived, Plain
from tests.support.tracing import (
    ROWS,
    cached,
    cached_in_launch,
    compiles_ahead,
    files,
    in_mode,
    model_of,
    outcome,
    reason,
    traces_more,
    warm,
)
from warmrank.worker.compile import compiler
from warmrank.worker.configs.compiler_config import LaunchDefaults
from warmrank.worker.errors import NotPortable
from warmrank.worker.runtime import sources
from warmrank.worker.runtime.call_guards import CallGuards

pytestmark = pytest.mark.usefixtures("no_grad")


def test_second_trace_abandons_the_cache_where_that_was_asked(cache: Path) -> None:
    function = cached(Plain().affine, cache, dynamic=False, on_recompile="abandon")
    inputs = [torch.ones(rows, 4) for rows in (2, 3, 2, 5)]
    with pytest.warns(UserWarning, match="Skip cache as Plain.affine recompiled.*x: sizes") as said:
        same = [torch.equal(function(x), model_of(function).affine(x)) for x in inputs]
    assert all(same)
    assert len(said) == 1
    assert files(cache) == []


def test_look_up_among_many_variants_looks_at_torch_once_and_checks_those_that_arguments_fit(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = [torch.rand(rows, 4) for rows in (2, 3, 5, 6)]
    for x in inputs:
        warm(Plain().affine, cache, x, dynamic=False)
    looked_at: list[Any] = []
    checked: list[bool] = []
    digest, check = sources._patches_digest, CallGuards.check

    def counted_digest(holder: Any) -> str:
        looked_at.append(holder)
        return digest(holder)

    def counted_check(*call: Any) -> tuple[str, ...]:
        checked.append(not (wrong := check(*call)))
        return wrong

    monkeypatch.setattr(sources, "_patches_digest", counted_digest)
    monkeypatch.setattr(CallGuards, "check", counted_check)
    function = cached(Plain().affine, cache, dynamic=False)
    assert all(torch.equal(function(x), model_of(function).affine(x)) for x in inputs)
    assert outcome(function) == "loaded"
    assert len(looked_at) == len(inputs) * len({*looked_at}) > 0
    assert checked == []
    assert all(torch.equal(function(x), model_of(function).affine(x)) for x in inputs)
    assert checked == [True] * len(inputs)


class Counts(nn.Module):
    def __init__(self, start: float) -> None:
        super().__init__()
        self.calls = start
        self.seen = {"rows": 4}
        self.marks: list[str] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen["rows"] += x.shape[0]
        return x * self.calls + self.seen["rows"] + (1 if self.calls > 4 else 0)

    def named(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * sum(divmod(self.calls, 3))


@pytest.mark.parametrize(
    "mode", ["reduce-overhead", pytest.param("max-autotune", marks=[compiles_ahead, pytest.mark.slow])]
)
def test_function_that_counts_in_integers_compiles_once_for_each_side_of_a_branch(
    cache: Path, mode: str
) -> None:
    model, eager = Counts(2), Counts(2)
    function = cached(model.forward, cache, config=in_mode(mode))
    for _ in range(6):
        assert torch.equal(function(ROWS), eager(ROWS))
        assert (model.calls, model.seen) == (eager.calls, eager.seen)
    model.calls = eager.calls = 40
    assert torch.equal(function(ROWS), eager(ROWS))
    assert len(function.variants) == 2


class Slices(nn.Module):
    """Its slices are objects before they are subscripts, as a slice of a dimension chosen by number is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        along = [slice(None)] * x.dim()
        along[-2] = slice(-x.size(0), None)
        return x[tuple(along)] * 2 + x[slice(x.size(0) - 1, x.size(0))]


def test_slices_of_sizes_compile_once(cache: Path) -> None:
    model = Slices()
    function = cached(model.forward, cache)
    for rows in (5, 7, 5, 9):
        x = torch.rand(rows, 4)
        assert torch.equal(function(x), model(x))
    assert len(function.variants) == 1


def test_integer_of_which_no_symbol_can_be_made_is_a_condition(cache: Path) -> None:
    model, eager = Counts(8), Counts(8)
    function = cached(model.named, cache)
    for _ in range(2):
        assert torch.equal(function(ROWS), eager.named(ROWS))
    assert "self.calls == 8 does not hold" in str(function.last_result)


def test_function_that_changes_itself_runs_eagerly_after_some_traces(cache, monkeypatch, caplog):
    monkeypatch.setattr("warmrank.worker.runtime.compiling.MAX_TRACES_OF_CHANGING", 2)
    model, eager = Counts(0.0), Counts(0.0)
    function = cached(model.forward, cache)
    with caplog.at_level(logging.WARNING, logger="torchair"):
        for _ in range(5):
            assert torch.equal(function(ROWS), eager(ROWS))
    assert model.calls == 5
    assert len(function.variants) == 2
    assert caplog.text.count("Counts.forward was traced 2 times in this process") == 1
    assert "self.calls: 0.0 -> 1.0" in caplog.text


def test_threads_that_call_at_once_compile_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function = cached(Plain().affine, cache)
    compiles: list[Any] = []
    original = compiler.compile_call

    def counted(*args: Any, **kwargs: Any) -> Any:
        compiles.append(args)
        return original(*args, **kwargs)

    monkeypatch.setattr(compiler, "compile_call", counted)
    barrier = threading.Barrier(4)

    def call(_: int) -> torch.Size:
        with torch.no_grad():
            barrier.wait()
            shape: torch.Size = function(ROWS).shape
            return shape

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(call, range(4))) == [ROWS.shape] * 4
    assert len(compiles) == 1


FACTOR = 2.0


def times(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def multiplied(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) * FACTOR

    return multiplied


def adding(value: float) -> Callable[..., Any]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def added(self: nn.Module, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            return function(self, x, *args, **kwargs) + value

        return added

    return decorate


class Decorated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    @torch.inference_mode()
    def quiet(self, x: torch.Tensor) -> Any:
        return self.layer(x)

    @times
    def scaled(self, x: torch.Tensor, *, by: float = 1.0) -> Any:
        return self.layer(x) * by

    @adding(3.0)
    @times
    def both(self, x: torch.Tensor, by: float = 1.0) -> Any:
        return self.layer(x) * by


@pytest.mark.parametrize("name", ["quiet", "scaled", "both"])
def test_decorated_method_is_loaded_with_what_its_decorators_do(name: str, cache: Path) -> None:
    x = torch.rand(3, 4)
    for expected in ("compiled", "loaded"):
        model = Decorated()
        function = cached(getattr(model, name), cache)
        assert torch.equal(function(x), getattr(model, name)(x))
        assert outcome(function) == expected
        assert Path(files(cache)[0]).parent.name == name


def test_module_of_a_decorators_arguments_is_no_argument(cache: Path) -> None:
    """Weights are used where they lie, and inputs at another address are copied, not captured again."""
    function = cached(Decorated().scaled, cache)
    for _ in range(4):
        function(torch.rand(3, 4))
    assert (function.statistics.captures, function.statistics.recaptures) == (1, 0)


def test_method_that_its_cached_function_takes_the_place_of(cache: Path) -> None:
    for expected in ("compiled", "loaded"):
        model = Decorated()
        wanted = model.both(ROWS)
        function = cached(model.both, cache)
        model.both = function
        assert torch.equal(model.both(ROWS), wanted)
        assert outcome(function) == expected


class Options:
    def __init__(self) -> None:
        self.scale, self.steps = 2.0, [1.0]
        self.again = self.steps


class Copying(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.options = Options()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        options = copy.deepcopy(self.options)
        options.steps.append(2.0)
        return x * options.scale + sum(options.again)


CHANGES = {
    "a value of it": ("scale", 3.0, "self.options.__dict__['scale']: 2.0 -> 3.0"),
    "what is one object in it": ("again", [1.0], "are no longer the same object"),
}


@traces_more
@pytest.mark.parametrize("change", CHANGES)
def test_deep_copy_of_an_object_of_the_module_is_followed(change: str, cache: Path) -> None:
    for expected in ("compiled", "loaded"):
        model = Copying()
        function = cached(model.forward, cache)
        assert torch.equal(function(ROWS), model(ROWS))
        assert outcome(function) == expected
        assert model.options.steps == [1.0]
    name, value, said = CHANGES[change]
    model = Copying()
    setattr(model.options, name, value)
    function = cached(model.forward, cache)
    assert torch.equal(function(ROWS), model(ROWS))
    assert said in reason(function)


class Tagged(nn.Module):
    """Asks a library for what it keeps by addresses, as torch_npu does for its events."""

    def __init__(self, library: Any) -> None:
        super().__init__()
        self.options, self.tag_of = Options(), library.tag_of
        library.tags[id(self.options)] = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tag: float = self.tag_of(self.options)
        return x * tag


def test_what_a_library_keeps_by_address_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = ModuleType("torch.made_up")
    monkeypatch.setitem(sys.modules, library.__name__, library)
    exec("tags = {}\ndef tag_of(thing):\n    return tags[id(thing)]", vars(library))  # noqa: S102
    with pytest.raises(NotPortable, match=r"guard ID_MATCH on .*options.* cannot be kept"):
        cached(Tagged(library).forward, cache)(ROWS)


def test_two_functions_of_one_name_are_not_mistaken_for_each_other(cache: Path) -> None:
    model = Derived()
    base = super(Derived, model).affine
    warm(model.affine, cache)
    function = cached(base, cache)
    assert torch.equal(function(ROWS), base(ROWS))
    assert reason(function) == "made for another Derived.affine(x) than this Plain.affine"


def test_two_functions_bound_under_one_name_are_not_mistaken_for_each_other(cache: Path) -> None:
    def bound_to_module(step: int) -> MethodType:
        if step == 1:
            return MethodType(lambda self, x: self.linear(x) + 1, Plain())
        return MethodType(lambda self, x: self.linear(x) + 2, Plain())

    for step in (1, 2):
        method = bound_to_module(step)
        assert torch.equal(cached(method, cache)(ROWS), method(ROWS))


@pytest.mark.usefixtures("affine_artifact")
@pytest.mark.parametrize(
    ("guards", "factor", "expected"),
    [("always", 5, ("compiled", "self.factor: 2 -> 5")), ("once", 5, ("compiled", "self.factor: 2 -> 5")),
     ("skip", 2, ("loaded", ""))],
)  # fmt: skip
def test_guards_that_fail_are_a_miss_with_the_reason_unless_they_are_skipped(cache, guards, factor, expected):
    model = Plain()
    model.factor = 5
    function = cached(model.affine, cache, guards=guards)
    assert torch.equal(function(ROWS), model.linear(ROWS) * factor)
    assert (outcome(function), reason(function)) == expected


@pytest.mark.parametrize(
    ("launch", "options", "factor"),
    [
        ("always", {}, 5),
        ("once", {}, 2),
        ("once", {"guards": "always"}, 5),
        ("always", {"guards": "once"}, 2),
    ],
)
def test_guards_are_checked_as_the_launch_says_unless_the_function_does(cache, launch, options, factor):
    function = cached_in_launch(Plain().affine, cache, LaunchDefaults(guards=launch), **options)
    function(ROWS)
    model_of(function).factor = 5
    assert torch.equal(function(ROWS), model_of(function).linear(ROWS) * factor)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [([(0, 4), (3, 4)], "adopted"), ([(0, 2), (0, 4)], "compiled")],
    ids=["another group", "a group of another size"],
)
def test_function_with_a_collective_is_adopted_by_groups_of_its_size(cache, ranks, expected):
    found = []
    for rank, world_size in ranks:
        with fake_world(rank=rank, world_size=world_size) as world:
            pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])] if expected == "adopted" else [world]
            function = cached(Collective(pairs[rank // 2]).forward, cache)
            function(ROWS)
            found.append(outcome(function))
    assert found == ["compiled", expected]


@pytest.mark.parametrize(("second", "expected"), [(Plain, "loaded"), (Derived, "compiled")])
def test_one_class_at_two_places_shares_an_artifact_and_no_weights_and_a_subclass_does_not(
    cache: Path, second: type[Plain], expected: str
) -> None:
    functions = [cached(model.affine, cache) for model in (Plain(), second())]
    for function in functions:
        assert torch.equal(function(ROWS), model_of(function).affine(ROWS))
    assert [outcome(function) for function in functions] == ["compiled", expected]


class Marked(torch.Tensor):
    """A tensor of the user's own kind."""


def test_tensor_of_the_users_own_kind_is_refused_by_name(cache: Path) -> None:
    with pytest.raises(NotPortable, match="Marked"):
        cached(Plain().affine, cache)(ROWS.as_subclass(Marked))


class Importing(ModuleType):
    """A module that imports what it stands for when it is asked for anything, as speechbrain's do."""

    def __getattr__(self, name: str) -> Any:
        if sys._getframe(1).f_code.co_filename.endswith("inspect.py"):
            raise AttributeError(name)
        raise ImportError(f"{name} needs what is not installed")


def test_module_that_imports_when_it_is_asked_is_not_asked(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optional.part", Importing("optional.part"))
    function = cached(Plain().affine, cache)
    assert torch.equal(function(torch.ones(2, 4)), model_of(function).affine(torch.ones(2, 4)))
    assert outcome(function) == "compiled"


class Decoding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.position = 1
        self.register_buffer("cache", torch.zeros(2, 8, 4))
        self.cache: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache[:, self.position] = x
        self.position += 1
        return self.cache[0, self.position - 1] + self.cache[:, : self.position].sum()


def test_positions_in_a_cache_are_not_compiled_one_by_one(cache: Path) -> None:
    model, same = Decoding(), Decoding()
    function = cached(model.forward, cache)
    for step in range(6):
        x = torch.full((2, 4), step + 1.0)
        assert torch.equal(function(x), same(x))
        assert torch.equal(model.cache, same.cache)
    assert len(function.variants) == 1


class Registry(dict[str, Any]):
    def get_of(self, kind: type[Any]) -> Any:
        return super().get(kind.__name__) or {}


REGISTRY = Registry(Registered={"scale": 2.0}, Other={"scale": 3.0})


class Registered(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale: float = REGISTRY.get_of(Registered).get("scale", 1.0)
        return x * scale


@pytest.mark.skipif(torch.__version__ < "2.13", reason="Dynamo takes members of such dicts by their places")
def test_keys_of_a_registry_that_are_not_read_do_not_count(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, x = cached(Registered().forward, cache), torch.ones(2)
    assert function(x).tolist() == [2, 2]
    monkeypatch.setattr(sys.modules[__name__], "REGISTRY", Registry(New=1, **REGISTRY))
    again = cached(Registered().forward, cache)
    assert again(x).tolist() == [2, 2]
    assert outcome(again) == "loaded"
    for change, made in (({"Registered": {"scale": 5.0}}, [5, 5]), ({"Registered": None}, [1, 1])):
        REGISTRY.update(change)
        assert again(x).tolist() == made


class Made:
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


class Other:
    pass


class Makes(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return next(kind for kind in SUPPORTED_NODES if kind.__name__ == "Made")(x + 1)


def test_class_out_of_a_registry_of_torch_is_the_one_that_eager_finds(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else an import of torch's put before it, as ``torch.distributed.tensor`` does."""
    shards = type("Shards", (), {"__module__": "torch.distributed.shards"})
    for put in ((Made, Registry), (shards, Made, Registry)):
        for kind in (shards, Made, Registry):
            monkeypatch.delitem(SUPPORTED_NODES, kind, raising=False)
        for kind in put:
            monkeypatch.setitem(SUPPORTED_NODES, kind, SUPPORTED_NODES[tuple])
        function = cached(Makes().forward, cache)
        assert type(function(torch.ones(2))) is Made
    assert outcome(function) == "loaded"


class Flattens(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        leaves: list[torch.Tensor] = tree_leaves({"a": Made(x), "b": [x]})
        return leaves[0] + leaves[1]


def test_others_in_a_registry_of_torch_are_no_condition(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come and go with what else a program imports; of the class that is looked up, all counts."""

    def flattened(scale: float) -> Any:
        return SUPPORTED_NODES[tuple]._replace(flatten_fn=lambda made: ([made.x * scale], None))

    two, three = flattened(2.0), flattened(3.0)
    for others, made, expected, came in (
        ((), two, 3.0, "compiled"),
        ((Registry, Other), two, 3.0, "loaded"),
        ((Other,), three, 4.0, "compiled"),
    ):
        with monkeypatch.context() as patch:
            for kind in others:
                patch.setitem(SUPPORTED_NODES, kind, SUPPORTED_NODES[tuple])
            patch.setitem(SUPPORTED_NODES, Made, made)
            function = cached(Flattens().forward, cache)
            assert function(torch.ones(1)).item() == expected
        assert outcome(function) == came
