"""`CachedFunction`: what `cache_compile` returns. Looks up, loads or adopts, compiles on a miss, runs.

Life of a call: the loaded variants are asked in turn whether they fit (microseconds); if none does, the
partition's files are, then those of sibling partitions; only then is the function traced, and the new
artifact saved beside the others.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from time import perf_counter
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal

from cache_store.errors import StoreError
from cache_store.local import add_variant, add_variant_from, check_private, ensure_cache_dir, variants
from worker import journal
from worker.capture import CaptureOptions
from worker.configs.compiler_config import CompilerConfig
from worker.devices import backend_for
from worker.engines import engine_for
from worker.errors import ArtifactCorrupt, CompileForbidden, WorkerError
from worker.guards import ambient
from worker.partition_paths import model_directory, partition_name, sibling_variants
from worker.request import Request, request
from worker.results import FunctionResult, Outcome, StageSeconds
from worker.settings import settings
from worker.variant import GuardMode, StoredArtifact, Variant

if TYPE_CHECKING:
    import torch

    from cache_store.store import Store

_log = logging.getLogger("torchair")
_META_VERSION = "1.0.0"
OFFERED = "offered"

OnRecompile = Literal["add", "abandon"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """The parameters of `cache_compile`, in one value."""

    config: CompilerConfig
    dynamic: bool = True
    cache_dir: str | None = None
    global_rank: int | None = None
    tp_rank: int | None = None
    pp_rank: int | None = None
    custom_decompositions: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
    guards: GuardMode = "once"
    on_recompile: OnRecompile = "add"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchDefaults:
    """What a launch lays down for cached functions that do not say otherwise.

    Attributes:
        cache_dir: the rank's cache directory.
        guards: when guards are checked.
        no_compile: a miss is an error.
        place: rank and world size where they do not come from ``torch.distributed``.
    """

    cache_dir: str | None = None
    guards: GuardMode | None = None
    no_compile: bool = False
    place: tuple[int, int] | None = None


launch_defaults: ContextVar[LaunchDefaults] = ContextVar("launch_defaults", default=LaunchDefaults())  # noqa: B039 - frozen


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Result of a look-up: the artifact that fits, or why none does."""

    stored: StoredArtifact | None
    own: bool
    reason: str


class CachedFunction:
    """A bound method whose compiled form is kept across processes."""

    def __init__(self, method: MethodType, options: CacheOptions) -> None:
        defaults = launch_defaults.get()
        self._method = method
        self._options = replace(
            options,
            cache_dir=options.cache_dir or defaults.cache_dir,
            guards=options.guards if defaults.guards is None else defaults.guards,
        )
        self._no_compile = defaults.no_compile
        self._place = defaults.place
        self._variants: list[Variant] = []
        self._lock = threading.RLock()
        self._abandoned = False
        self.name = method.__func__.__qualname__.replace(".<locals>", "")
        self.last_result: FunctionResult | None = None

    @property
    def module(self) -> torch.nn.Module:
        """The module whose method this is."""
        module: torch.nn.Module = self._method.__self__  # type: ignore[assignment]
        return module

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The variants loaded in this process, the one used last first."""
        return tuple(self._variants)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function; load or compile first where nothing loaded fits.

        Raises:
            CompileForbidden: nothing fits, and compiling was forbidden.
            WorkerError: the function cannot be cached; the message says why and what to do.
        """
        state = ambient.snapshot(self.device_kind)
        for position, variant in enumerate(self._variants):
            if variant.accepts(state, args, kwargs):
                if position:
                    self._variants.insert(0, self._variants.pop(position))
                return variant(*args, **kwargs)
        return self.ensure(args, kwargs)(*args, **kwargs)

    @property
    def device_kind(self) -> str:
        """Kind of the device that the module lives on."""
        tensors = itertools.chain(self.module.parameters(), self.module.buffers())
        return next((tensor.device.type for tensor in tensors), "cpu")

    def request(self) -> Request:
        """What this function asks for under the present configuration and environment."""
        options = self._options
        return request(
            self.module,
            config=options.config,
            engine=engine_for(options.config.mode),
            dynamic=options.dynamic,
            decompositions=options.custom_decompositions,
        )

    def root(self) -> Path:
        """The cache directory, absolute."""
        return Path(self._options.cache_dir or settings().cache_home).resolve()

    def model_dir(self) -> Path:
        """Directory of this model and configuration, which all partitions share."""
        name = model_directory(
            type(self.module).__name__,
            dynamic=self._options.dynamic,
            mode=self._options.config.mode,
            key=self.request().key,
        )
        return self.root() / name

    def function_dir(self) -> Path:
        """Directory of this function in this rank's partition."""
        return self._function_dir(self.model_dir())

    def _function_dir(self, model_dir: Path) -> Path:
        rank, world_size = self._place or _place()
        options = self._options
        partition = partition_name(
            world_size=world_size,
            rank=rank if options.global_rank is None else options.global_rank,
            tp_rank=options.tp_rank,
            pp_rank=options.pp_rank,
        )
        return model_dir / partition / self._method.__func__.__name__

    def find(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Found:
        """Look for an artifact that fits this call: own partition first, then sibling partitions.

        Raises:
            TypeError: the function's signature does not take these arguments.
        """
        model_dir = self.model_dir()
        function_dir = self._function_dir(model_dir)
        reasons: list[str] = []
        tried: set[str] = set()
        for path in _candidates(function_dir, model_dir):
            own = path.parent == function_dir
            stored = self._read(path, reasons)
            if stored is None or stored.sha256 in tried:
                continue
            tried.add(stored.sha256)
            wrong = self.mismatches(stored, args, kwargs)
            if not wrong:
                return Found(stored=stored, own=own, reason="" if own else f"fits {path.parent.parent.name}")
            reasons.append("; ".join(wrong))
        return Found(stored=None, own=False, reason=" | ".join(reasons) or self._nearest(model_dir))

    def mismatches(
        self, stored: StoredArtifact, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[str, ...]:
        """Why an artifact may not be used for this call; empty if it may."""
        if self._options.guards == "skip":
            return ()
        return stored.mismatches(self._method, args, kwargs, self.device_kind)

    def offered(self, sha256: str, store: Store | None) -> StoredArtifact | None:
        """The artifact with this digest: from the cache directory, else from the store; None if nowhere."""
        model_dir = self.model_dir()
        function_dir = self._function_dir(model_dir)
        reasons: list[str] = []
        for path in _candidates(function_dir, model_dir):
            stored = self._read(path, reasons)
            if stored is not None and stored.sha256 == sha256:
                return stored
        if store is None:
            return None
        # Not into the own partition yet: its guards have not been asked.
        path = store.fetch_blob(sha256, model_dir / OFFERED / function_dir.name)
        return self._read(path, reasons)

    def _nearest(self, model_dir: Path) -> str:
        """Why nothing lies under this request, told by the nearest other request of this class."""
        from worker.nearest import explain_absence

        return explain_absence(model_dir, self._method.__func__.__name__, self.request())

    def _read(self, path: Path, reasons: list[str]) -> StoredArtifact | None:
        try:
            check_private(path)
            return StoredArtifact.read(path)
        except ArtifactCorrupt as error:
            set_aside(path)
            reasons.append(f"corrupt: {error.why}")
        except (StoreError, OSError) as error:
            reasons.append(str(error))
        _log.warning("not used: %s", reasons[-1])
        return None

    def ensure(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Variant:
        """A loaded variant that fits this call: found or compiled.

        Raises:
            CompileForbidden: nothing fits, and compiling was forbidden.
        """
        with self._lock:
            started = perf_counter()
            found = self.find(args, kwargs)
            if found.stored is not None:
                return self.use(found, started=started)
            if self._no_compile or settings().no_compile:
                msg = f"{self.name} would have to be compiled, which is forbidden here: {found.reason}"
                raise CompileForbidden(msg, function=self.name, reason=found.reason)
            return self.compile(args, kwargs, reason=found.reason)

    def use(self, found: Found, *, started: float) -> Variant:
        """Load a found artifact; one of another partition is first copied into this one."""
        stored = found.stored
        assert stored is not None  # noqa: S101 - callers look first
        if not found.own:
            path = add_variant_from(self.function_dir(), stored.path)
            stored = replace(stored, path=path)
        variant = self._bind(stored)
        self._announce("loaded from", stored)
        outcome: Outcome = "loaded" if found.own else "adopted"
        self._record(outcome, found.reason, stored, StageSeconds(load_s=perf_counter() - started))
        return variant

    def compile(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, reason: str) -> Variant:
        """Trace and compile for this call, without running it, and save the artifact.

        Raises:
            WorkerError: the function cannot be cached.
        """
        from worker.compiler import compile_call

        if self._variants and self._options.on_recompile == "abandon":
            self._abandon()
        if not self._abandoned:
            ensure_cache_dir(self.root())
        compiled = compile_call(
            self._method,
            args,
            kwargs,
            request=self.request(),
            options=self._options,
            device_kind=self.device_kind,
        )
        started = perf_counter()
        stored = self._save(compiled.artifact)
        variant = self._bind(stored)
        seconds = StageSeconds(
            trace_s=compiled.trace_s, compile_s=compiled.compile_s, load_s=perf_counter() - started
        )
        self._record("compiled", reason, stored, seconds)
        return variant

    def _save(self, artifact: Any) -> StoredArtifact:
        from cache_store.digests import digest_bytes

        data = artifact.to_bytes()
        digest = digest_bytes(data)
        path = self.function_dir() if self._abandoned else add_variant(self.function_dir(), data)
        stored = StoredArtifact(
            artifact=artifact, path=path, sha256=digest.sha256, size_bytes=digest.size_bytes
        )
        if not self._abandoned:
            self._announce("saved to", stored)
        return stored

    def _abandon(self) -> None:
        """TorchAir's rule: a second trace gives up the function's cache."""
        self._abandoned = True
        _log.warning("Skip cache as %s recompiled; its cache is removed (on_recompile='abandon')", self.name)
        for path in variants(self.function_dir()):
            path.unlink(missing_ok=True)

    def _bind(self, stored: StoredArtifact) -> Variant:
        variant = Variant(
            stored,
            self._method,
            backend=backend_for(self.device_kind),
            capture=CaptureOptions.of(self._options.config),
            guards=self._options.guards,
        )
        self._variants.insert(0, variant)
        return variant

    def _announce(self, what: str, stored: StoredArtifact) -> None:
        if _log.isEnabledFor(logging.INFO):
            moment = datetime.fromtimestamp(stored.path.stat().st_mtime)  # noqa: DTZ006 - as TorchAir prints it
            date = moment.strftime("%Y-%m-%d %H:%M:%S.%f")
            name = stored.artifact.name
            meta = f"ModelCacheMeta(name={name!r}, date={date!r}, version={_META_VERSION!r}, fx=None)"
            _log.info("Cache %s %s %s", meta, what, stored.path)

    def _record(self, outcome: Outcome, reason: str, stored: StoredArtifact, seconds: StageSeconds) -> None:
        self.last_result = FunctionResult(
            function=self.name,
            ok=True,
            outcome=outcome,
            reason=reason,
            digest=stored.sha256,
            size_bytes=stored.size_bytes,
            path=str(stored.path),
            seconds=seconds,
        )
        journal.append(self.last_result, stored.artifact, self.root())


def _candidates(function_dir: Path, model_dir: Path) -> Iterator[Path]:
    """Files to look at, own partition first; the siblings are listed only if that was not enough."""
    yield from variants(function_dir)
    yield from sibling_variants(function_dir, model_dir)


def set_aside(path: Path) -> None:
    """Keep a corrupt file for a look at it, under a name that no load considers."""
    path.replace(path.with_name(f"{path.name}.corrupt"))


def _place() -> tuple[int, int]:
    """Rank and world size of this process."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


__all__ = ["CacheOptions", "CachedFunction", "Found", "LaunchDefaults", "WorkerError", "launch_defaults"]
