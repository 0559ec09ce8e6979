"""`CachedFunction`: what `cache_compile` returns. Looks up, loads or adopts, compiles on a miss, runs.

Life of a call: the loaded variants are asked in turn whether they fit (microseconds); if none does, the
partition's files are, then those of sibling partitions; only then is the function traced, and the new
artifact saved beside the others.
"""

from __future__ import annotations

import copy
import itertools
import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from time import perf_counter
from types import MethodType
from typing import TYPE_CHECKING, Any

from cache_store.node.local import add_variant, add_variant_from, ensure_cache_dir, variants
from worker import collection, data_dump, files_beside, journal
from worker.cache_options import CacheOptions, EngineChoice, GuardMode, launch_defaults
from worker.capture.statistics import CaptureStatistics, total
from worker.devices import backend_for
from worker.emulation import kind_of
from worker.engines import Site
from worker.engines.choice import check_choice, engine_for
from worker.errors import ArtifactCorrupt, CompileForbidden, NotPortable, StateChanged
from worker.gears.carried import geared_arguments
from worker.gears.misses import refuse_arguments
from worker.gears.rules import GearRule
from worker.guards import ambient
from worker.lookup import Found, Place, by_digest, look_up, read_stored
from worker.partition_paths import model_directory, partition_name
from worker.request import Request, request
from worker.results import FunctionResult, Outcome, StageSeconds
from worker.settings import settings
from worker.trace_limit import TraceLimit
from worker.variant import StoredArtifact, Variant, function_of

if TYPE_CHECKING:
    import torch

    from cache_store.store import Store
    from worker.engines import Engine

_log = logging.getLogger("torchair")
_META_VERSION = "1.0.0"
OFFERED = "offered"


class CachedFunction:
    """A bound method whose compiled form is kept across processes."""

    def __init__(self, method: MethodType, options: CacheOptions) -> None:
        defaults = launch_defaults.get()
        self._method = method
        self._options = replace(
            options,
            config=copy.deepcopy(options.config),  # a later change of the caller's must not change the key
            cache_dir=options.cache_dir or defaults.cache_dir,
        )
        self._guards: GuardMode = options.guards or defaults.guards or "once"
        self._wanted: EngineChoice = options.engine or defaults.engine or "auto"
        check_choice(self._wanted, self._options.config)
        self._no_compile = defaults.no_compile
        self._rank = defaults.place
        self._variants: list[Variant] = []
        self._lock = threading.RLock()
        self._kind = "cpu"  # of the module's device; read again at each look-up
        self._abandoned = False
        self.name = method.__func__.__qualname__.replace(".<locals>", "")
        self.last_result: FunctionResult | None = None
        self._traces = TraceLimit(self.name)

    def __repr__(self) -> str:
        digests = ", ".join(variant.stored.sha256[:12] for variant in self.variants)
        loaded = f"variants loaded: {digests}" if digests else "nothing loaded yet"
        return f"<CachedFunction {self.name}, mode {self._options.config.mode}, {loaded}>"

    @property
    def module(self) -> torch.nn.Module:
        """The module whose method this is."""
        module: torch.nn.Module = self._method.__self__  # type: ignore[assignment]
        return module

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The variants loaded in this process, the one used last first."""
        return tuple(self._variants)

    @property
    def statistics(self) -> CaptureStatistics:
        """Captures, replays, other calls and why, and pools; prints as a short text."""
        return total(variant.runner.statistics for variant in self.variants)

    def warm_up(self, *args: Any, **kwargs: Any) -> None:
        """Load or compile for these arguments, and capture, as two calls of them would; nothing is run.

        Mutated inputs keep their values. Warm up for the largest shapes first, so that the graphs of smaller
        ones fit into the pool.

        Raises:
            CompileForbidden: nothing fits, and compiling was forbidden.
            WorkerError: the function cannot be cached; the message says why and what to do.
        """
        state = ambient.snapshot(self._kind)
        loaded = (variant for variant in self.variants if variant.accepts(state, args, kwargs))
        (next(loaded, None) or self.ensure(args, kwargs)).capture(args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function; load or compile first where nothing loaded fits.

        Raises:
            CompileForbidden: nothing fits, and compiling was forbidden.
            WorkerError: the function cannot be cached; the message says why and what to do.
        """
        state = ambient.snapshot(self._kind)
        for position, variant in enumerate(tuple(self._variants)):
            if variant.accepts(state, args, kwargs):
                if position:
                    self._move_to_front(variant)
                try:
                    return variant(*args, **kwargs)
                except StateChanged:  # before anything ran: what a load had settled has to be asked anew
                    break
        if self._traces.reached:
            return self._traces.run_eagerly(self._method, args, kwargs)
        return self.ensure(args, kwargs)(*args, **kwargs)

    def _move_to_front(self, variant: Variant) -> None:
        with self._lock:
            if variant in self._variants:
                self._variants.remove(variant)
                self._variants.insert(0, variant)

    @property
    def device_kind(self) -> str:
        """Kind of the device that the module lives on."""
        tensors = itertools.chain(self.module.parameters(), self.module.buffers())
        return kind_of(next((tensor.device.type for tensor in tensors), "cpu"))

    def engine(self) -> Engine:
        """The engine that compiles on the device that the module lives on now.

        Raises:
            BadConfig: what was asked for does not compile for this device.
        """
        return engine_for(self._options.config, wanted=self._wanted, device_kind=self.device_kind)

    def request(self) -> Request:
        """What this function asks for under the present configuration and environment."""
        return request(self.module, self._options, self.engine())

    def root(self) -> Path:
        """The cache directory, absolute."""
        return Path(self._options.cache_dir or settings().cache_home).resolve()

    def place(self, asked: Request | None = None) -> Place:
        """Where this function's artifacts lie for a request (by default, the present one)."""
        options = self._options
        asked = asked or self.request()
        name = model_directory(
            type(self.module).__name__, dynamic=options.dynamic, mode=options.config.mode, key=asked.key
        )
        rank, world_size = self._rank or _rank_and_world()
        partition = partition_name(
            world_size=world_size,
            rank=rank if options.global_rank is None else options.global_rank,
            tp_rank=options.tp_rank,
            pp_rank=options.pp_rank,
        )
        model_dir = self.root() / name
        return Place(model_dir=model_dir, function_dir=model_dir / partition / self._method.__func__.__name__)

    def find(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], refused: Mapping[str, str] | None = None
    ) -> Found:
        """Look for an artifact that fits this call: own partition first, then sibling partitions.

        Args:
            args: positional arguments of the call, without the module.
            kwargs: keyword arguments of the call.
            refused: digest -> why that artifact is passed over.

        Raises:
            TypeError: the function's signature does not take these arguments.
        """
        asked = self.request()

        def misfits(stored: StoredArtifact) -> tuple[str, ...]:
            why = (refused or {}).get(stored.sha256)
            return self.mismatches(stored, args, kwargs) if why is None else (why,)

        return look_up(self.place(asked), asked, misfits)

    def mismatches(
        self, stored: StoredArtifact, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[str, ...]:
        """Conditions of an artifact that this module and call do not meet; empty if it may be used."""
        if self._guards == "skip":
            return ()
        rule = GearRule(on_miss=self._options.on_gear_miss)
        return stored.mismatches(self._method, args, kwargs, self.device_kind, rule)

    def offered(self, sha256: str, store: Store | None) -> StoredArtifact | None:
        """The artifact with this digest: from the cache directory, else from the store; None if nowhere."""
        place = self.place()
        stored = by_digest(place, sha256)
        if stored is not None or store is None:
            return stored
        # Not into the own partition yet: its guards have not been asked.
        offered_dir = place.model_dir / OFFERED / place.function_dir.name
        path = store.fetch_blob(sha256, offered_dir, cache_root=self.root())
        stored = read_stored(path, [])
        return None if stored is None else files_beside.fetched(store, stored, self.root())

    def ensure(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Variant:
        """A loaded variant that fits this call: found or compiled.

        Raises:
            CompileForbidden: nothing fits, and compiling was forbidden.
            GearError: no gear stands for the sizes of the call.
        """
        with self._lock:
            started = perf_counter()
            with collection.paused():
                self._kind = self.device_kind
                self._refuse_gear_miss(args, kwargs)
                variant, reason = self._find_and_use(args, kwargs, started)
            if variant is not None:
                return variant
            if self._no_compile or settings().no_compile:
                journal.append_forbidden(self.name, reason)
                msg = f"{self.name} would have to be compiled, which is forbidden here: {reason}"
                raise CompileForbidden(msg, function=self.name, reason=reason)
            if self._variants:
                number = len(self._variants) + 1
                _log.warning("%s is traced again (variant %d): %s", self.name, number, reason)
            return self.compile(args, kwargs, reason=reason)

    def _find_and_use(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], started: float
    ) -> tuple[Variant | None, str]:
        """A variant that was found and loaded; or None, and why there is none."""
        refused: dict[
            str, str
        ] = {}  # by digest: what fits and does not load, kernels of another machine, say
        while True:
            found = self.find(args, kwargs, refused)
            if found.stored is None:
                return None, found.reason
            try:
                return self.use(found, started=started), ""
            except ArtifactCorrupt as error:
                _log.warning("%s is not used: %s", found.stored.path, error)
                refused[found.stored.sha256] = str(error)

    def _refuse_gear_miss(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        options = self._options
        for variant in self._variants:
            variant.refuse_gear_miss(args, kwargs)
        policy = options.config.inference_config.dynamic_gears_merge_policy
        geared = geared_arguments(function_of(self._method), args, kwargs)
        refuse_arguments(geared, options.on_gear_miss, policy)

    def use(self, found: Found, *, started: float) -> Variant:
        """Load a found artifact; one of another partition is first copied into this one."""
        stored = found.stored
        assert stored is not None  # noqa: S101 - callers look first
        if not found.own:
            function_dir = self.place().function_dir
            beside = files_beside.adopted(function_dir, stored)
            path = add_variant_from(function_dir, stored.path)
            stored = replace(stored, path=path, beside=beside)
        # Bound once, however often it is looked up: all calls that it fits share its captures.
        known = (variant for variant in self._variants if variant.stored.sha256 == stored.sha256)
        variant = next(known, None) or self._bind(stored)
        variant.settle()
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
            self._abandon(reason)
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
        stored = self._save(compiled.artifact, compiled.files)
        variant = self._bind(stored)
        self._check_own_guards(variant, args, kwargs)
        self._traces.count(reason, changes_itself=bool(stored.artifact.guards.volatile))
        seconds = StageSeconds(
            trace_s=compiled.trace_s, compile_s=compiled.compile_s, load_s=perf_counter() - started
        )
        self._record("compiled", reason, stored, seconds)
        return variant

    def _check_own_guards(self, variant: Variant, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Conditions that do not hold where they were made would mean a compile on every call."""
        if variant.accepts(ambient.snapshot(self._kind), args, kwargs):
            return
        wrong = self.mismatches(variant.stored, args, kwargs) or ("a condition on its arguments",)
        self._variants.remove(variant)
        msg = (
            f"{self.name} was compiled, but its conditions do not hold for the very call it was made for: "
            f"{'; '.join(wrong)}. The function changes what it depends on while it is traced, or this is "
            "a bug of warmrank."
        )
        raise NotPortable(msg, function=self.name, wrong=wrong)

    def _save(self, artifact: Any, files: Mapping[str, bytes]) -> StoredArtifact:
        from cache_store.digests import digest_bytes

        data = artifact.to_bytes()
        digest = digest_bytes(data)
        path = self.place().function_dir
        # Without a file the engine goes on with what it just compiled.
        beside: dict[str, Path] = {} if self._abandoned else files_beside.save(path, files)
        if not self._abandoned:
            path = add_variant(path, data)
        stored = StoredArtifact(
            artifact=artifact, path=path, sha256=digest.sha256, size_bytes=digest.size_bytes, beside=beside
        )
        if not self._abandoned:
            self._announce("saved to", stored)
        return stored

    def _abandon(self, reason: str) -> None:
        """TorchAir's rule: a second trace gives up the function's cache."""
        if not self._abandoned:
            _log.warning("Skip cache as %s recompiled (its cache is removed): %s", self.name, reason)
        self._abandoned = True
        for path in variants(self.place().function_dir):
            path.unlink(missing_ok=True)
        files_beside.remove(self.place().function_dir)

    def _bind(self, stored: StoredArtifact) -> Variant:
        self._kind = self.device_kind
        config = self._options.config
        config.check(self.device_kind, engine=stored.artifact.engine)
        site = Site(
            method=self._method,
            config=config,
            dynamic=self._options.dynamic,
            decompositions=self._options.custom_decompositions,
            ge_cache=self._options.ge_cache,
            cache_root=None if self._abandoned else self.root(),
        )
        with data_dump.into(config, self.name):
            variant = Variant(
                stored,
                site,
                backend=backend_for(self.device_kind),
                guards=self._guards,
                on_gear_miss=self._options.on_gear_miss,
            )
        self._variants.insert(0, variant)
        return variant

    def _announce(self, what: str, stored: StoredArtifact) -> None:
        if _log.isEnabledFor(logging.INFO):
            name = stored.artifact.name
            meta = f"ModelCacheMeta({name=}, date={_made(stored.path)!r}, version={_META_VERSION!r}, fx=None)"
            _log.info("Cache %s %s %s", meta, what, stored.path)

    def _record(self, outcome: Outcome, reason: str, stored: StoredArtifact, seconds: StageSeconds) -> None:
        self.last_result = FunctionResult(
            function=self.name,
            ok=True,
            outcome=outcome,
            reason=reason,
            digest=stored.sha256,
            size_bytes=stored.size_bytes,
            beside=tuple((file.sha256, file.size_bytes) for file in stored.artifact.files),
            path=str(stored.path),
            seconds=seconds,
            runtime_state=stored.artifact.guards.runtime_state,
        )
        journal.append(self.last_result, stored.artifact, self.root())


def _made(path: Path) -> str:
    """When a file was made, in local time, as TorchAir prints it; nothing for one that is gone by now."""
    try:
        moment = datetime.fromtimestamp(path.stat().st_mtime)  # noqa: DTZ006 - TorchAir's is local time
    except FileNotFoundError:
        return ""
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")


def _rank_and_world() -> tuple[int, int]:
    """Rank and world size of this process."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1
