"""Views among a call's arguments: traced as tensors of their own.

Dynamo traces a view together with its base, and so puts conditions on the base's sizes and strides. No graph
reads the base, and a slice of a buffer that grows would be traced again for every length of the buffer.

Relies on: ``MetaTensorDescriber.describe_tensor`` gives a dataclass with ``is_view``, ``base`` and
``creation_meta``, and a tensor that is no view gets its own sizes and the storage of its kin; for a tensor
that is a view, ``VariableBuilder`` calls ``wrap_to_fake_tensor_and_record`` twice, the second time with the
source ``AttrSource(source, "_base")``, and drops the result; and code that reads ``_base`` makes a node
``getattr(tensor, "_base")`` by ``SubgraphTracer.create_proxy``, as for every attribute that torch computes,
and one that reads ``_version`` a call of ``prims._tensor_version``.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from warmrank.worker.errors import NotPortable
from warmrank.worker.torch_private.lowering import source_name
from warmrank.worker.torch_private.patching import wrapped

FACTS = {
    "torch._dynamo.output_graph:SubgraphTracer": "create_proxy(kind, target, args)",
    "torch._dynamo.source:AttrSource": "base member",
    "torch._dynamo.variables.builder": "wrap_to_fake_tensor_and_record(source)",
    "torch._subclasses.meta_utils:MetaTensorDesc": "is_view base creation_meta",
    "torch._subclasses.meta_utils:MetaTensorDescriber": "describe_tensor",
}
# What a tensor knows of itself that is not the same for equal tensors, and what to do without it.
_INSTEAD = {"_base": "pass that tensor instead", "_version": "count the writes in an attribute of the module"}


@contextlib.contextmanager
def views_by_themselves() -> Iterator[None]:
    """Within it, Dynamo makes no difference between a view and another tensor.

    Raises:
        NotPortable: the traced code asks a tensor for its base.
    """
    from torch._dynamo.output_graph import SubgraphTracer
    from torch._dynamo.variables import builder
    from torch._subclasses.meta_utils import MetaTensorDescriber

    asked: list[tuple[str, str]] = []
    with (
        wrapped(builder, "wrap_to_fake_tensor_and_record", _without_bases),
        wrapped(MetaTensorDescriber, "describe_tensor", _as_no_view),
        wrapped(SubgraphTracer, "create_proxy", lambda original: _noting(original, asked)),
    ):
        try:
            yield
        except Exception as error:
            _refuse(asked, error)
            raise
    _refuse(asked, None)


def _refuse(asked: Sequence[tuple[str, str]], error: Exception | None) -> None:
    for tensor, attribute in asked:
        msg = f"the function asks {tensor} for {attribute}, which no graph can hold; {_INSTEAD[attribute]}"
        raise NotPortable(msg, what=f"{tensor}.{attribute}") from error


def _without_bases(original: Callable[..., Any]) -> Callable[..., Any]:
    from torch._dynamo.source import AttrSource

    tensors: set[Any] = set()  # sources of the tensors that were recorded

    def record(*args: Any, source: Any, **more: Any) -> Any:
        if isinstance(source, AttrSource) and source.member == "_base" and source.base in tensors:
            return None
        tensors.add(source)
        return original(*args, source=source, **more)

    return record


def _as_no_view(original: Callable[..., Any]) -> Callable[..., Any]:
    def describe(self: Any, tensor: torch.Tensor, **options: Any) -> Any:
        described = original(self, tensor, **options)
        if described.is_view and type(tensor) in (torch.Tensor, torch.nn.Parameter):
            return dataclasses.replace(described, is_view=False, base=None, creation_meta=None)
        return described

    return describe


def _noting(original: Callable[..., Any], asked: list[tuple[str, str]]) -> Callable[..., Any]:
    def create_proxy(self: Any, kind: str, target: Any, args: Any, *rest: Any, **more: Any) -> Any:
        attribute = "_version" if "_tensor_version" in str(target) else args[1] if target is getattr else ""
        if attribute in _INSTEAD:
            source = getattr(args[0].node.meta.get("grapharg"), "source", None)
            asked.append((source_name(source) if source else "a tensor", attribute))
        return original(self, kind, target, args, *rest, **more)

    return create_proxy
