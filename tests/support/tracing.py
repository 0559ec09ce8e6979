"""Traces and artifacts of single methods, without a cache around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import torch
from warmrank.worker.compile.compiler import compile_call
from warmrank.worker.keys.request import Request

from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.engines import engine_named
from warmrank.worker.runtime.artifact import Artifact
from warmrank.worker.runtime.find import function_of
from warmrank.worker.runtime.options import CacheOptions
from warmrank.worker.torch_private.lowering import LoweredGraph
from warmrank.worker.torch_private.tracing import Trace, trace

NO_REQUEST = Request(components={"made for": "a test"}, key="0" * 32, engine=engine_named("graph"))


def bound(method: Callable[..., Any]) -> MethodType:
    assert isinstance(method, MethodType)
    return method


def traced(
    method: Callable[..., Any],
    *args: Any,
    dynamic: bool = True,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    **kwargs: Any,
) -> Trace:
    """The trace of one call, without gradients."""
    with torch.no_grad():
        traced, _ = trace(
            method, args, kwargs, dynamic=dynamic, decompositions=decompositions or {}, build=lambda _: None
        )
    return traced


def operators_of(lowered: LoweredGraph) -> list[str]:
    """Names of the operators that a graph calls, in their order."""
    return [str(node.target) for node in lowered.graph.graph.nodes if node.op == "call_function"]


def compiled(method: Callable[..., Any], *args: Any, dynamic: bool = True, **kwargs: Any) -> Artifact:
    """The artifact of one call, without gradients."""
    options = CacheOptions(config=CompilerConfig(), dynamic=dynamic)
    with torch.no_grad():
        return compile_call(
            bound(method),
            args,
            kwargs,
            request=NO_REQUEST,
            options=options,
            device_kind="cpu",
        ).artifact


def misfits(artifact: Artifact, method: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[str, ...]:
    """Why an artifact does not fit a call, without gradients."""
    import inspect

    from warmrank.worker.runtime.check import mismatches

    function = function_of(bound(method))
    arguments = inspect.signature(function).bind(bound(method).__self__, *args, **kwargs)
    arguments.apply_defaults()
    with torch.no_grad():
        return mismatches(artifact.guards, function, arguments.arguments, device_kind="cpu")
