"""What TorchAir's suites take from its private module of the cache, answered by warmrank's public functions.

Paths, removal, and "was something compiled": all that the suites use them for, but for TorchAir's pickles.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from warmrank import inference
from warmrank.inference import readable_cache, set_dim_gears
from warmrank.worker.runtime.function import CachedFunction

__all__ = [
    "CacheBackend", "CompiledModel", "ModelCacheSaver", "cache_compile", "readable_cache", "set_dim_gears",
]  # fmt: skip
cache_compile = partial(inference.cache_compile, on_recompile="abandon")


class ModelCacheSaver:
    """``__call__`` runs when a function is compiled, so that a suite can forbid it."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Nothing."""

    @classmethod
    def remove_cache(cls, path: str) -> None:
        """Remove an artifact, all variants of it, or a directory."""
        place = Path(path)
        for found in _of(place):
            shutil.rmtree(found) if found.is_dir() else found.unlink()


def _of(place: Path) -> Iterator[Path]:
    if place.is_dir():
        yield place
    elif place.parent.is_dir():
        yield from place.parent.glob(f"{place.name}*")


class CompiledModel:
    """Only where its artifacts lie."""

    @classmethod
    def get_cache_bin(cls, func: Any, **options: Any) -> str:
        """The path of the artifact that `cache_compile` makes with these options."""
        cached = cache_compile(func, **options)
        return str(cached.place().function_dir / "compiled_module")


class CacheBackend:
    """A place to put a function back to."""

    fw_compiler: Any = None


def watch_compiles() -> None:
    """Let every compile of a cached function call `ModelCacheSaver`, as TorchAir's does."""
    compiled = CachedFunction.compile

    def watched(self: CachedFunction, *args: Any, **kwargs: Any) -> Any:
        ModelCacheSaver()(self)
        return compiled(self, *args, **kwargs)

    CachedFunction.compile = watched  # type: ignore[method-assign]
