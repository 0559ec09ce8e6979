"""Dynamo's guard tree: every leaf is accounted for, and the checks that inner nodes make are conditions."""

from __future__ import annotations

import enum
import itertools
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from tests.support.reader import READS, Reader
from tests.support.tracing import Checked, compiled, misfits, not_in_2_12, traced, traces_more
from tests.support.zoo import memory  # noqa: F401 - fills the zoo, with what it imports
from tests.support.zoo.case import CASES
from tests.support.zoo_child import _contexts
from warmrank.worker.errors import NotPortable
from warmrank.worker.guards.translate import refuse_unaccounted
from warmrank.worker.torch_private.dynamo_guards import GuardTree, Leaf
from warmrank.worker.torch_private.patching import Hook, intercepted

ROWS = torch.ones(2, 4)


@pytest.fixture
def printed() -> Iterator[list[Any]]:
    """Dynamo's own holders of the trees that are built."""
    from torch._dynamo.guards import CheckFunctionManager

    seen: list[Any] = []

    def compile_check_fn(original: Callable[..., Any], manager: Any, *args: Any) -> None:
        original(manager, *args)
        seen.append(manager.guard_manager)

    with intercepted([Hook(CheckFunctionManager, "compile_check_fn", compile_check_fn)]):
        yield seen


def num_printed(holder: Any) -> Counter[str]:
    """Conditions in Dynamo's own print of a tree, by class of the leaf."""
    lines = [line.lstrip("| ") for line in str(holder).splitlines()]
    kinds = (line.removeprefix("+- ").partition(":")[0] for line in lines if line.startswith("+- "))
    return Counter(kind for kind in kinds if kind.isupper())


@pytest.mark.one_in(12)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=traces_more if name == "DerivedNumbers" else ()) for name in CASES]
)
def test_leaves_are_accounted_for_and_counts_agree(name: str, printed: list[Any]) -> None:
    case = CASES[name]
    call = case.calls()[0]
    with _contexts(case.context):
        # What has no symbols is traced for its sizes, see `worker.compile.compiler`.
        dynamic = case.options.get("dynamic", name != "NoSymbol")
        trace_ = traced(case.build().forward, *call.args, dynamic=dynamic, **call.kwargs)
    refuse_unaccounted(trace_.tree, pinned=())
    counted = Counter(leaf.kind for leaf in trace_.tree.leaves for _ in leaf.conditions)
    assert counted == num_printed(printed[-1])


def test_leaf_that_nothing_stands_for_is_refused_with_its_name_and_object() -> None:
    leaf = Leaf(source="L['self'].x", kind="NEW_MATCH", conditions=("new_match(L['self'].x)",), made_by="")
    tree = GuardTree(leaves=(leaf,), dicts=(), looked_up=())
    with pytest.raises(NotPortable, match=r"L\['self'\].x by NEW_MATCH"):
        refuse_unaccounted(tree, pinned=())


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.names = SimpleNamespace(a=1, b=2)
        self.ordered = OrderedDict(a=1, b=2)
        self.by_dtype = {torch.float32: 2, torch.float64: 3}
        self.by_function = {abs: 2, len: 3}
        self.last = deque([1, 2])

    def values_of_vars(self, x: torch.Tensor) -> Any:
        return x * sum(vars(self.names).values())

    def size_of_vars(self, x: torch.Tensor) -> Any:
        return x * len(vars(self.names))

    def in_dict(self, x: torch.Tensor) -> Any:
        return x * 2 if "c" in self.names.__dict__ else x

    def default(self, x: torch.Tensor) -> Any:
        return x * self.names.__dict__.get("c", 3)

    def items(self, x: torch.Tensor) -> Any:
        for value in self.ordered.values():
            x = x * 10 + value
        return x

    def functions(self, x: torch.Tensor) -> Any:
        for value in self.by_function.values():
            x = x * 10 + value
        return x

    def appends(self, x: torch.Tensor) -> Any:
        self.last.append(3)
        return x * len(self.last)

    def keywords(self, x: torch.Tensor, **named: float) -> Any:
        for value in named.values():
            x = x * 10 + value
        return x


@pytest.mark.parametrize(
    "method",
    [
        pytest.param("values_of_vars", marks=traces_more),
        pytest.param("size_of_vars", marks=traces_more),
        "in_dict",
        "default",
    ],
)
def test_key_that_is_added_to_the_dict_of_an_object_is_noticed(method: str) -> None:
    holder = Holder()
    artifact = compiled(getattr(holder, method), ROWS)
    assert not misfits(artifact, getattr(holder, method), ROWS)
    holder.names.c = 5
    assert misfits(artifact, getattr(holder, method), ROWS)


@pytest.mark.parametrize(
    ("method", "attribute"), [("items", "ordered"), ("functions", "by_function")], ids=["names", "functions"]
)
def test_order_of_keys_is_noticed(method: str, attribute: str) -> None:
    holder = Holder()
    artifact = compiled(getattr(holder, method), ROWS)
    assert not misfits(artifact, getattr(holder, method), ROWS)
    items = reversed(getattr(holder, attribute).items())
    setattr(holder, attribute, type(getattr(holder, attribute))(items))
    assert misfits(artifact, getattr(holder, method), ROWS)


def test_order_of_keyword_arguments_is_noticed() -> None:
    holder = Holder()
    artifact = compiled(holder.keywords, ROWS, a=1.0, b=2.0)
    assert not misfits(artifact, holder.keywords, ROWS, a=1.0, b=2.0)
    assert misfits(artifact, holder.keywords, ROWS, b=2.0, a=1.0)


def test_dict_whose_keys_were_moved_before_is_refused() -> None:
    holder = Holder()
    holder.ordered.move_to_end("a")
    with pytest.raises(NotPortable, match="OrderedDict"):
        compiled(holder.items, ROWS)


def test_limit_of_a_deque_is_noticed() -> None:
    holder = Holder()
    artifact = compiled(holder.appends, ROWS)
    holder.last = deque([1, 2], maxlen=2)
    assert misfits(artifact, holder.appends, ROWS)


SHARED = [2.0]
NAMELESS = (lambda x: x, lambda x: x)


def counters() -> tuple[Callable[..., Any], Callable[..., Any]]:
    count = 1

    def raised(x: torch.Tensor) -> Any:
        nonlocal count
        count = count + 1
        return x * count

    def read(x: torch.Tensor) -> Any:
        return x * count

    return raised, read


class Counted:
    def __init__(self) -> None:
        self.k = 1

    def step(self) -> int:
        return self.k

    @classmethod
    def made(cls) -> str:
        return cls.__name__


class CountedTwice(Counted):
    pass


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Pair(NamedTuple):
    size: int


class Pairs(nn.Module):
    """Two of everything, equal to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.a: Any = [1.0]
        self.b: Any = [1.0]
        self.raised, self.read = counters()

    def appends(self, x: torch.Tensor) -> Any:
        self.a.append(2.0)
        return x * len(self.b)

    def adds(self, x: torch.Tensor) -> Any:
        self.a.add(2)
        return x * len(self.b)

    def sets(self, x: torch.Tensor) -> Any:
        self.a["k"] = 2.0
        return x * len(self.b)

    def attributes(self, x: torch.Tensor) -> Any:
        self.a.k = 7
        return x * self.b.k

    def compares(self, x: torch.Tensor) -> Any:
        return x if self.a is self.b else x * 2

    def looks_up(self, x: torch.Tensor) -> Any:
        return x * {self.a: 3}.get(self.b, 5)

    def argument(self, x: torch.Tensor, given: list[float]) -> Any:
        given.append(2.0)
        return x * len(self.a)

    def shared(self, x: torch.Tensor) -> Any:
        return x * self.a[0] + SHARED[0]

    def counted(self, x: torch.Tensor) -> Any:
        return self.raised(x) + self.read(x)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("method", "make"),
    [
        ("appends", lambda: [1.0]),
        ("appends", lambda: deque([1.0])),
        ("adds", lambda: {1}),
        ("sets", lambda: {"a": 1.0}),
        ("attributes", Counted),
        ("compares", lambda: [1.0]),
        ("compares", itertools.cycle(NAMELESS).__next__),
    ],
    ids=["list", "deque", "set", "dict", "object", "is", "functions without a name"],
)
@pytest.mark.parametrize("same", [False, True], ids=["distinct first", "same first"])
def test_objects_that_become_one_or_two_are_noticed(method: str, make: Callable[[], Any], same: bool) -> None:
    holder = Pairs()
    one, other = make(), make()
    holder.a, holder.b = one, one if same else other
    artifact = compiled(getattr(holder, method), ROWS)
    assert not misfits(artifact, getattr(holder, method), ROWS)
    holder.b = other if same else one
    assert misfits(artifact, getattr(holder, method), ROWS)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Color.RED, Color.BLUE),
        (Pair(1), Pair(2)),
        pytest.param(Counted().step, Counted().step, marks=not_in_2_12),
        (Counted.made, CountedTwice.made),
    ],
    ids=["enum", "named tuple", "method", "class method"],
)
@pytest.mark.parametrize("same", [False, True], ids=["distinct first", "same first"])
def test_key_that_is_or_was_another_object_is_noticed(one: Any, other: Any, same: bool) -> None:
    holder = Pairs()
    holder.a, holder.b = one, one if same else other
    artifact = compiled(holder.looks_up, ROWS)
    assert not misfits(artifact, holder.looks_up, ROWS)
    holder.b = other if same else one
    assert misfits(artifact, holder.looks_up, ROWS)


def test_argument_that_is_an_attribute_too_is_noticed() -> None:
    holder = Pairs()
    artifact = compiled(holder.argument, ROWS, [1.0])
    assert not misfits(artifact, holder.argument, ROWS, [1.0])
    assert misfits(artifact, holder.argument, ROWS, holder.a)


def test_attribute_that_is_no_longer_a_global_is_noticed() -> None:
    holder = Pairs()
    holder.a = SHARED
    artifact = compiled(holder.shared, ROWS)
    assert not misfits(artifact, holder.shared, ROWS)
    holder.a = list(SHARED)
    assert misfits(artifact, holder.shared, ROWS)


def test_functions_that_no_longer_share_a_variable_are_noticed() -> None:
    holder = Pairs()
    artifact = compiled(holder.counted, ROWS)
    assert not misfits(artifact, holder.counted, ROWS)
    holder.read = counters()[1]
    assert misfits(artifact, holder.counted, ROWS)


def test_attribute_that_was_looked_for_and_walked_is_noticed_when_it_goes() -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held: Any = Counted()
            vars(self.held)["sizes"] = {"a": 1}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * len(list((self.held.sizes if hasattr(self.held, "sizes") else {}).keys()))

    looks: Any = Looks()
    artifact = compiled(looks.forward, ROWS)
    assert not misfits(artifact, looks.forward, ROWS)
    del looks.held.sizes
    assert misfits(artifact, looks.forward, ROWS)


X = torch.arange(6.0).reshape(3, 2)


@pytest.fixture(autouse=True)
def _variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMRANK_READER_SET", "set")
    monkeypatch.delenv("WARMRANK_READER", raising=False)


@pytest.mark.one_in(24)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=not_in_2_12 if name == "integer_enum_member" else ()) for name in READS]
)
@torch.no_grad()
def test_artifact_fits_equal_state_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = compiled(Reader(name).forward, X)
    assert misfits(artifact, Reader(name).forward, X) == ()
    before = Reader(name)(X)
    changed = Reader(name)
    checked = Checked(artifact.guards, Reader.forward, changed, x=X)
    assert checked.holds()
    READS[name][1](changed, monkeypatch)
    assert not torch.equal(changed(X), before)
    assert misfits(artifact, changed.forward, X)
    assert not checked.holds()  # nor for a call after the change, once it was loaded
