"""Functions traced, compiled and cached in a test, and marks for what a release of torch lacks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any

import pytest
import torch

from warmrank.inference import cache_compile
from warmrank.worker.compile.compiler import compile_call
from warmrank.worker.configs.compiler_config import CacheOptions, CompilerConfig, LaunchDefaults, launch_scope
from warmrank.worker.engines import engine_named
from warmrank.worker.keys.request import Request
from warmrank.worker.runtime.artifact import Artifact, PortableGuards
from warmrank.worker.runtime.call_guards import CallGuards
from warmrank.worker.runtime.check import mismatches
from warmrank.worker.runtime.find import function_of
from warmrank.worker.runtime.function import CachedFunction
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


def compiled(method: Callable[..., Any], *args: Any, dynamic: bool = True, **kwargs: Any) -> Artifact:
    """The artifact of one call, without gradients."""
    options = CacheOptions(config=CompilerConfig(), dynamic=dynamic)
    with torch.no_grad():
        return compile_call(
            bound(method), args, kwargs, request=NO_REQUEST, options=options, device_kind="cpu"
        ).artifact


def misfits(artifact: Artifact, method: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[str, ...]:
    """Why an artifact does not fit a call, without gradients."""
    function = function_of(bound(method))
    arguments = inspect.signature(function).bind(bound(method).__self__, *args, **kwargs)
    arguments.apply_defaults()
    with torch.no_grad():
        return mismatches(artifact.guards, function, arguments.arguments, device_kind="cpu")


def in_mode(mode: str) -> CompilerConfig:
    """A configuration with this mode."""
    config = CompilerConfig()
    config.mode = mode
    return config


ROWS = torch.arange(8.0).reshape(2, 4).clone()  # no view: Dynamo tells the two apart


def cached(method: Callable[..., Any], cache: Path, **options: Any) -> CachedFunction:
    return cache_compile(method, cache_dir=cache, **options)


def cached_in_launch(
    method: Callable[..., Any], cache: Path, launch: LaunchDefaults, **options: Any
) -> CachedFunction:
    """A cached function that was made while a launch built its workload."""
    with launch_scope.of(launch):
        return cached(method, cache, **options)


def warm(method: Callable[..., Any], cache: Path, *args: Any, **options: Any) -> Path:
    """Compile a method once, and give the path of its artifact."""
    function = cached(method, cache, **options)
    function.compile(args or (ROWS,), {}, reason="")
    assert function.last_result is not None
    return Path(function.last_result.path)


def model_of(function: CachedFunction) -> Any:
    return function.module


def outcome(function: CachedFunction) -> str:
    assert function.last_result is not None
    return function.last_result.outcome


def reason(function: CachedFunction) -> str:
    assert function.last_result is not None
    return function.last_result.reason


def files(cache: Path) -> list[str]:
    return sorted(path.relative_to(cache).as_posix() for path in cache.rglob("*") if path.is_file())


class Checked:
    """Conditions on one function of a module, with the full check that a cached function makes."""

    def __init__(self, guards: PortableGuards, function: Any, module: Any, **arguments: Any) -> None:
        assert isinstance(function, FunctionType)
        given = {"self": module, **arguments}
        self._args = tuple(arguments.values())
        self.num_full_checks = 0

        def misfits(*_args: Any, **_options: Any) -> tuple[str, ...]:
            return mismatches(guards, function, given, device_kind="cpu")

        facts = SimpleNamespace(gears=None, input_names=())
        stored = SimpleNamespace(artifact=SimpleNamespace(guards=guards, facts=facts), mismatches=misfits)
        settled = SimpleNamespace(changed=lambda _inputs: ())
        variant: Any = SimpleNamespace(
            stored=stored,
            method=MethodType(function, module),
            device_kind="cpu",
            runner=SimpleNamespace(layout=None, settled=settled, settle=lambda _settled: None),
            code_changed=lambda: False,
            lost_groups=list,
            bind_frame=lambda: None,
            inputs_of=lambda _args, _kwargs: (),
            settled_positions=lambda _asked: (),
        )
        self._calls = CallGuards(variant, "always", "error")
        assert self.call()

    def holds(self) -> bool:
        return self._calls.fit(self._args, {})

    def call(self) -> bool:
        """Whether the conditions hold, in full where that cannot be told quickly."""
        if self.holds():
            return True
        self.num_full_checks += 1
        return not self._calls.check(self._args, {})


def since(release: str, reason: str) -> pytest.MarkDecorator:
    """A mark for tests that run from a release on."""
    return pytest.mark.skipif(torch.__version__ < release, reason=f"before torch {release}: {reason}")


compiles_ahead = since("2.13", "mode max-autotune is refused by name, as Inductor has no cpp.march")
tells_arguments = since("2.12", "Dynamo forgets arguments of exceptions")
traces_more = since("2.12", "Dynamo breaks the graph there")
not_in_2_12 = pytest.mark.skipif(
    "2.12" <= torch.__version__ < "2.13", reason="Dynamo 2.12 breaks the graph there"
)
