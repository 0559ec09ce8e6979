"""Dynamo's guard tree: every leaf is accounted for, and the checks that inner nodes make are conditions."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.tracing import compiled, misfits, traced, traces_more
from tests.support.zoo import memory  # noqa: F401 - fills the zoo, with what it imports
from tests.support.zoo.case import CASES
from tests.support.zoo_child import _contexts
from warmrank.worker.errors import NotPortable
from warmrank.worker.guards.translate import AMBIENT_KINDS, RULES, TRANSLATED_KINDS, accounts
from warmrank.worker.torch_private.dynamo_guards import GuardTree, Leaf
from warmrank.worker.torch_private.patching import wrapped

ROWS = torch.ones(2, 4)


@pytest.fixture
def printed() -> Iterator[list[Any]]:
    """Dynamo's own holders of the trees that are built."""
    from torch._dynamo.guards import CheckFunctionManager

    seen: list[Any] = []

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_check_fn(manager: Any, *args: Any) -> None:
            original(manager, *args)
            seen.append(manager.guard_manager)

        return compile_check_fn

    with wrapped(CheckFunctionManager, "compile_check_fn", wrap):
        yield seen


def num_printed(holder: Any) -> Counter[str]:
    """Conditions in Dynamo's own print of a tree, by class of the leaf."""
    lines = [line.lstrip("| ") for line in str(holder).splitlines()]
    kinds = (line.removeprefix("+- ").partition(":")[0] for line in lines if line.startswith("+- "))
    return Counter(kind for kind in kinds if kind.isupper())


@pytest.mark.one_in(4)
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
    found = accounts(trace_.tree, ambient=AMBIENT_KINDS, translated=TRANSLATED_KINDS, pinned=())
    assert len(found) == len(trace_.tree.leaves)
    assert all(account.by in RULES or account.by.startswith("guard ") for account in found)
    counted = Counter(leaf.kind for leaf in trace_.tree.leaves for _ in leaf.conditions)
    assert counted == num_printed(printed[-1])


def test_leaf_that_nothing_stands_for_is_refused_with_its_name_and_object() -> None:
    leaf = Leaf(source="L['self'].x", kind="NEW_MATCH", conditions=("new_match(L['self'].x)",), made_by="")
    tree = GuardTree(leaves=(leaf,), dicts=(), looked_up=())
    with pytest.raises(NotPortable, match=r"L\['self'\].x by NEW_MATCH"):
        accounts(tree, ambient=AMBIENT_KINDS, translated=TRANSLATED_KINDS, pinned=())


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
