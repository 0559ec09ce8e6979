"""The parameters of `cache_compile`, and what a launch lays down where they say nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.worker.configs.compiler_config import CompilerConfig

GuardMode = Literal["always", "once", "skip"]
OnRecompile = Literal["add", "abandon"]
OnGearMiss = Literal["error", "pad"]
Rng = Literal["refuse", "allow"]
EngineChoice = Literal["auto", "graph", "aoti", "torchair"]


class CacheOptions(Value):
    """The parameters of `cache_compile` in one value; ``guards`` and ``engine`` may be left to the launch."""

    config: CompilerConfig
    dynamic: bool = True
    cache_dir: str | None = None
    global_rank: int | None = None
    tp_rank: int | None = None
    pp_rank: int | None = None
    custom_decompositions: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
    ge_cache: bool = False
    guards: GuardMode | None = None
    on_recompile: OnRecompile = "add"
    on_gear_miss: OnGearMiss = "error"
    rng: Rng = "refuse"
    engine: EngineChoice | None = None


class LaunchDefaults(Value):
    """Launch-wide defaults for cached functions.

    Attributes:
        no_compile: a miss is an error.
        place: rank and world size where they do not come from ``torch.distributed``.
    """

    cache_dir: str | None = None
    guards: GuardMode | None = None
    engine: EngineChoice | None = None
    no_compile: bool = False
    place: tuple[int, int] | None = None


class LaunchScope:
    """Launch-wide defaults of the launch that this process works for, in all threads of the user's code.

    Attributes:
        defaults: for cached functions that are made now.
        functions: the cached functions that were made; None outside of a launch.
    """

    def __init__(self) -> None:
        self.defaults = LaunchDefaults()
        self.functions: list[Any] | None = None

    @contextmanager
    def of(self, defaults: LaunchDefaults, functions: list[Any] | None = None) -> Iterator[None]:
        """Lay these defaults down, and note in a list what is made under them."""
        before = self.defaults, self.functions
        self.defaults, self.functions = defaults, functions
        try:
            yield
        finally:
            self.defaults, self.functions = before


launch_scope = LaunchScope()
