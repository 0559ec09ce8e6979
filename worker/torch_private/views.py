"""Views among a call's arguments are tensors of their own.

Dynamo puts conditions on the sizes of their bases: a slice of a buffer that grows would be traced again for
every length.

Relied on (``tests/fuzz/parts/evaluated.py``): ``MetaTensorDescriber`` gives a dataclass with ``is_view``,
``base`` and ``creation_meta``, and a tensor that is no view gets its own sizes and the storage of its kin;
for a view a second fake tensor is recorded, with ``AttrSource(source, "_base")``, and dropped; code to read
``_base`` makes a node ``getattr(tensor, "_base")``, one that reads ``_version`` ``prims._tensor_version``.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch._dynamo.source import AttrSource

from warmrank.worker.errors import NotPortable
from warmrank.worker.torch_private.lowering import source_name
from warmrank.worker.torch_private.patching import intercepted, steps_in

# What a tensor knows of itself that is not the same for equal tensors, and what to do without it.
_INSTEAD = {"_base": "pass that tensor instead", "_version": "count the writes in an attribute of the module"}


class ViewsByThemselves:
    """Steps in where Dynamo makes a difference between a view and another tensor."""

    def __init__(self) -> None:
        self._recorded: set[Any] = set()
        self._asked: list[tuple[str, str]] = []  # tensor and attribute

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        """Make none within the context.

        Raises:
            NotPortable: the traced code asks a tensor for its base.
        """
        with intercepted(self):
            try:
                yield
            except Exception as error:
                self._refuse(error)
                raise
        self._refuse(None)

    def _refuse(self, error: Exception | None) -> None:
        for tensor, attribute in self._asked:
            msg = (
                f"the function asks {tensor} for {attribute}, which no graph can hold; {_INSTEAD[attribute]}"
            )
            raise NotPortable(msg, what=f"{tensor}.{attribute}") from error

    @steps_in("torch._dynamo.variables.builder", "wrap_to_fake_tensor_and_record(source)")
    def _record_without_bases(self, original: Any, *args: Any, source: Any, **more: Any) -> Any:
        if isinstance(source, AttrSource) and source.member == "_base" and source.base in self._recorded:
            return None
        self._recorded.add(source)
        return original(*args, source=source, **more)

    @steps_in("torch._subclasses.meta_utils:MetaTensorDescriber", "describe_tensor")
    def _describe_as_no_view(
        self, original: Any, describer: Any, tensor: torch.Tensor, **options: Any
    ) -> Any:
        described = original(describer, tensor, **options)
        if described.is_view and type(tensor) in (torch.Tensor, torch.nn.Parameter):
            return dataclasses.replace(described, is_view=False, base=None, creation_meta=None)
        return described

    @steps_in("torch._dynamo.output_graph:SubgraphTracer", "create_proxy(kind, target, args)")
    def _create_proxy(
        self, original: Any, tracer: Any, kind: str, target: Any, *call: Any, **more: Any
    ) -> Any:
        args = call[0] if call else more["args"]
        attribute = "_version" if "_tensor_version" in str(target) else args[1] if target is getattr else ""
        if attribute in _INSTEAD:
            source = getattr(args[0].node.meta.get("grapharg"), "source", None)
            self._asked.append((source_name(source) if source else "a tensor", attribute))
        return original(tracer, kind, target, *call, **more)
