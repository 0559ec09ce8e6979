"""Cached functions in a directory of a test's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from warmrank.inference import cache_compile
from warmrank.worker.runtime.function import CachedFunction
from warmrank.worker.runtime.options import LaunchDefaults, launch_scope

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
