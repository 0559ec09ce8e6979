"""Dynamo's guard tree: every leaf is accounted for, and the checks that inner nodes make are conditions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.tracing import compiled, misfits, traced, traces_more
from tests.support.zoo import memory  # noqa: F401 - fills the zoo, with what it imports
from tests.support.zoo.case import CASES
from tests.support.zoo_child import _contexts
from warmrank.worker.errors import NotPortable
from warmrank.worker.guards.translate import refuse_unaccounted
from warmrank.worker.torch_private.dynamo_guards import GuardTree, Leaf
from warmrank.worker.torch_private.patching import Hook, intercepted

X = torch.arange(6.0).reshape(3, 2)


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
    "name", [pytest.param(name, marks=traces_more if name == "derived_numbers" else ()) for name in CASES]
)
def test_leaves_are_accounted_for_and_counts_agree(name: str, printed: list[Any]) -> None:
    case = CASES[name]
    call = case.calls()[0]
    with _contexts(case.context):
        # What has no symbols is traced for its sizes, see `worker.compile.compiler`.
        dynamic = case.options.get("dynamic", name != "no_symbol")
        trace_ = traced(case.build().forward, *call.args, dynamic=dynamic, **call.kwargs)
    refuse_unaccounted(trace_.tree, pinned=())
    counted = Counter(leaf.kind for leaf in trace_.tree.leaves for _ in leaf.conditions)
    assert counted == num_printed(printed[-1])


def test_leaf_that_nothing_stands_for_is_refused_with_its_name_and_object() -> None:
    leaf = Leaf(source="L['self'].x", kind="NEW_MATCH", conditions=("new_match(L['self'].x)",), made_by="")
    tree = GuardTree(leaves=(leaf,), dicts=(), looked_up=())
    with pytest.raises(NotPortable, match=r"L\['self'\].x by NEW_MATCH"):
        refuse_unaccounted(tree, pinned=())


class Appends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = [1.0]

    def forward(self, x: torch.Tensor, given: list[float]) -> torch.Tensor:
        given.append(2.0)
        return x * len(self.a)


def test_argument_that_is_an_attribute_too_is_noticed() -> None:
    holder = Appends()
    artifact = compiled(holder.forward, X, [1.0])
    assert not misfits(artifact, holder.forward, X, [1.0])
    assert misfits(artifact, holder.forward, X, holder.a)
