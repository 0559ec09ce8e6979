"""`CachedFunction`: what `cache_compile` returns. Looks up, loads or adopts, compiles on a miss, runs.

Life of a call: the loaded variants are asked in turn whether they fit (microseconds); if none does, the
partition's files are, then those of sibling partitions; only then is the function traced, and the new
artifact saved beside the others.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch

from warmrank.cache_store.cache_dir.private_files import ensure_cache_dir
from warmrank.worker import collection
from warmrank.worker.device_kinds import kind_of
from warmrank.worker.devices import backend_for
from warmrank.worker.engines import Outliner, Site, check_choice, engine_for, engine_named
from warmrank.worker.errors import ArtifactCorrupt, CompileForbidden, NotPortable, StateChanged
from warmrank.worker.gears.carried import any_set
from warmrank.worker.keys.request import Request, code_in_options, request
from warmrank.worker.results import FunctionResult, Outcome, StageSeconds
from warmrank.worker.runtime import ambient
from warmrank.worker.runtime.artifact import Artifact
from warmrank.worker.runtime.find import (
    Found,
    Place,
    StoredArtifact,
    announce,
    by_digest,
    function_of,
    look_up,
    model_directory,
    partition_name,
    read_stored,
)
from warmrank.worker.runtime.options import (
    CacheOptions,
    EngineChoice,
    GuardMode,
    LaunchDefaults,
    launch_scope,
)
from warmrank.worker.runtime.sources import missing_operators
from warmrank.worker.runtime.variant import Variant
from warmrank.worker.settings import settings
from warmrank.worker.torch_private.switches import is_followed, is_symbolic_trace, prepare

if TYPE_CHECKING:
    from warmrank.cache_store.store import Store
    from warmrank.worker.capture.statistics import CaptureStatistics
    from warmrank.worker.compile.compiler import Compiled
    from warmrank.worker.configs.compiler_config import CompilerConfig
    from warmrank.worker.engines import Engine


_log = logging.getLogger("torchair")


# Another thread may change something between a check and the look at what it noted: TorchAir's compile puts a
# function of its own into torch for a while.
_OWN_CHECKS = 5

OFFERED = "offered"


class CachedFunction:
    """A bound method whose compiled form is kept across processes."""

    def __init__(
        self, method: MethodType, options: CacheOptions, defaults: LaunchDefaults | None = None
    ) -> None:
        self._method = method
        self._defaults = defaults = defaults or launch_scope.defaults
        self._no_compile = defaults.no_compile
        self._root: Path | None = None
        self._options = replace(
            options,
            config=copy.deepcopy(options.config),  # a later change of the caller's must not change the key
            cache_dir=options.cache_dir or defaults.cache_dir,
        )
        self._guards: GuardMode = options.guards or defaults.guards or "always"
        self._wanted: EngineChoice = options.engine or defaults.engine or "auto"
        check_choice(self._wanted, self._options.config)
        self._rank = defaults.place
        self.name = method.__func__.__qualname__.replace(".<locals>", "")
        self._abandoned = False  # on_recompile="abandon" gave the files up: nothing is written any more
        self._variants: list[Variant] = []
        self._lock = threading.RLock()
        self._kind = "cpu"  # of the module's device; read again at each look-up
        self.results: dict[str, FunctionResult] = {}  # by digest of the artifact, the latest last
        self._traces = TraceLimit(self.name)
        if launch_scope.functions is not None:
            launch_scope.functions.append(self)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy is made of, `copy.deepcopy`'s and pickle's: nothing that is loaded."""
        return {
            "function": self._method.__func__,
            "module": self._method.__self__,
            "options": self._options,
            "defaults": self._defaults,
        }

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Bind a copy to the module that was copied with it; the module may still lack its own state."""
        method = MethodType(state["function"], state["module"])
        CachedFunction.__init__(self, method, state["options"], state["defaults"])

    def __repr__(self) -> str:
        digests = ", ".join(variant.stored.sha256[:12] for variant in self.variants)
        loaded = f"variants loaded: {digests}" if digests else "nothing loaded yet"
        return f"<CachedFunction {self.name}, mode {self._options.config.mode}, {loaded}>"

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The variants loaded in this process, the one used last first."""
        return tuple(self._variants)

    @property
    def last_result(self) -> FunctionResult | None:
        """Outcome of the latest load or compile; None before the first."""
        return next(reversed(self.results.values()), None)

    @property
    def statistics(self) -> CaptureStatistics:
        """Captures, replays, other calls and why, and pools; prints as a short text."""
        from warmrank.worker.capture.statistics import total

        return total(variant.runner.statistics for variant in self.variants)

    @property
    def module(self) -> torch.nn.Module:
        """The module whose method this is."""
        module: torch.nn.Module = self._method.__self__  # type: ignore[assignment]
        return module

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
        """The cache directory, absolute: a relative one is settled by the first look-up."""
        if self._root is None:
            self._root = Path(self._options.cache_dir or settings().cache_home).resolve()
        return self._root

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
        prepare()
        asked = self.request()

        def misfits(stored: StoredArtifact) -> tuple[str, ...]:
            why = (refused or {}).get(stored.sha256)
            return self.mismatches(stored, args, kwargs) if why is None else (why,)

        return look_up(self.place(asked), asked, misfits)

    def mismatches(
        self, stored: StoredArtifact, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[str, ...]:
        """Conditions of an artifact that this module and call do not meet; empty if it may be used."""
        made_by = stored.artifact.engine
        if engine_named(made_by).version != stored.artifact.engine_version:
            return (f"engine {made_by} {stored.artifact.engine_version} -> {engine_named(made_by).version}",)
        if self._guards == "skip":
            missing = tuple(missing_operators(stored.artifact.guards.sources))
            return missing or stored.tensor_mismatches(self._method, args, kwargs)
        return stored.mismatches(self._method, args, kwargs, self.device_kind, self._options.on_gear_miss)

    def offered(self, sha256: str, store: Store | None) -> StoredArtifact | None:
        """The artifact with this digest: from the cache directory, else from the store; None if nowhere."""
        place = self.place()
        stored = by_digest(place, sha256)
        if stored is not None or store is None:
            return stored
        from warmrank.worker.runtime.files import fetched

        # Not into the own partition yet: its guards have not been asked.
        offered_dir = place.model_dir / OFFERED / place.function_dir.name
        path = store.fetch_blob(sha256, offered_dir, cache_root=self.root())
        stored = read_stored(path, [])
        return None if stored is None else fetched(store, stored, self.root())

    def warm_up(self, *args: Any, **kwargs: Any) -> None:
        """Load or compile for these arguments, and capture, as two calls of them would; nothing is run.

        Mutated inputs keep their values. Warm up for the largest shapes first, so that the graphs of smaller
        ones fit into the pool.

        Raises:
            CompileForbidden: nothing fits, and compiling was forbidden.
            WorkerError: the function cannot be cached; the message says why and what to do.
        """
        state = ambient.snapshot(self._kind)
        for variant in self.variants:
            if variant.accepts(state, args, kwargs):
                try:
                    variant.capture(args, kwargs)
                except StateChanged:
                    break
                return
        self.ensure(args, kwargs).capture(args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function; load or compile first where nothing loaded fits.

        Where something else follows its operators (a trace, ``torch.vmap``, a mode), the method itself runs.

        Raises:
            CompileForbidden: nothing fits, and compiling was forbidden.
            WorkerError: the function cannot be cached; the message says why and what to do.
        """
        if is_followed():
            return self._method(*args, **kwargs)
        state = ambient.snapshot(self._kind)
        for position, variant in enumerate(tuple(self._variants)):
            if variant.accepts(state, args, kwargs):
                if position:
                    self._move_to_front(variant)
                try:
                    return variant(*args, **kwargs)
                except StateChanged:  # before anything ran: what a load had settled has to be asked anew
                    break
        if is_symbolic_trace():
            return self._method(*args, **kwargs)
        if self._traces.reached and self.fitting(args, kwargs) is None:
            return self._traces.run_eagerly(self._method, args, kwargs)
        return self.ensure(args, kwargs)(*args, **kwargs)

    def _move_to_front(self, variant: Variant) -> None:
        with self._lock:
            if variant in self._variants:
                self._variants.remove(variant)
                self._variants.insert(0, variant)

    def ensure(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Variant:
        """A loaded variant that fits this call: found or compiled.

        Raises:
            CompileForbidden: nothing fits, and compiling was forbidden.
            GearError: no gear stands for the sizes of the call.
        """
        with self._lock:
            started = perf_counter()
            if sys.stdout is not None and sys.stdout.isatty():
                import warmrank.worker.log  # noqa: F401 - gives the logger its form, and its level on a terminal
            with collection.paused():
                self._kind = self.device_kind
                self._refuse_gear_miss(args, kwargs)
                if (fitting := self.fitting(args, kwargs)) is not None:
                    return fitting
                variant, reason = self._find_and_use(args, kwargs, started)
            if variant is not None:
                return variant
            if self._no_compile or settings().no_compile:
                from warmrank.worker import journal

                journal.append_forbidden(self.name, reason)
                msg = f"{self.name} would have to be compiled, which is forbidden here: {reason}"
                raise CompileForbidden(msg, function=self.name, reason=reason)
            return self._compile_or_await(args, kwargs, reason, started)

    def _compile_or_await(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], reason: str, started: float
    ) -> Variant:
        """Compile, unless another process of this node is at it: then look again when it is through."""
        from warmrank.cache_store.cache_dir.single_flight import one_compile

        place = self.place()
        what = f"{place.model_dir.name}/{place.function_dir.name}"
        with (
            contextlib.nullcontext(False) if self._abandoned else one_compile(self.root(), what) as has_waited
        ):
            if has_waited and (found := self._find_and_use(args, kwargs, started))[0] is not None:
                return found[0]
            if not self._variants:
                _log.info("Miss: %s is compiled: %s", self.name, reason)
            else:
                number = len(self._variants) + 1
                _log.warning("%s is traced again (variant %d): %s", self.name, number, reason)
            return self.compile(args, kwargs, reason=reason)

    def fitting(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Variant | None:
        """A loaded variant, all of whose conditions hold for these arguments now; None if there is none."""
        with self._lock:
            for variant in self.variants:
                if not variant.check(args, kwargs):
                    self._move_to_front(variant)
                    return variant
        return None

    def _find_and_use(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], started: float
    ) -> tuple[Variant | None, str]:
        """A variant that was found and loaded; or None, and why there is none."""
        refused: dict[str, str] = {}  # by digest: what fits and does not load (kernels of another machine)
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
        if not any_set():
            return
        from warmrank.worker.gears.rules import geared_arguments, refuse_arguments

        policy = options.config.inference_config.dynamic_gears_merge_policy
        geared = geared_arguments(function_of(self._method), args, kwargs)
        refuse_arguments(geared, options.on_gear_miss, policy)

    def use(self, found: Found, *, started: float, withheld: bool = False) -> Variant:
        """Load a found artifact; one of another partition is first copied into this one."""
        stored = found.stored
        assert stored is not None  # noqa: S101 - callers look first
        if not found.own:
            from warmrank.worker.runtime.files import adopted

            stored = adopted(self.place().function_dir, stored, withheld=withheld)
        # Bound once, however often it is looked up: all calls that it fits share its captures.
        known = (variant for variant in self._variants if variant.stored.sha256 == stored.sha256)
        variant = next(known, None) or self._bind(stored)
        variant.settle()
        announce("loaded from", stored)
        outcome: Outcome = "loaded" if found.own else "adopted"
        self._record(outcome, found.reason, stored, StageSeconds(load_s=perf_counter() - started))
        return variant

    def compile(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, reason: str, withheld: bool = False
    ) -> Variant:
        """Trace and compile for this call, without running it, and save the artifact.

        Args:
            args: positional arguments of the call, without the module.
            kwargs: keyword arguments of the call.
            reason: why it is compiled.
            withheld: no other partition takes it by itself (`worker.runtime.files`).

        Raises:
            WorkerError: the function cannot be cached.
        """
        from warmrank.worker.torch_private import facts

        facts.require("compile", "trial")
        from warmrank.worker.runtime import files

        if self._variants and self._options.on_recompile == "abandon":
            if not self._abandoned:
                warnings.warn(
                    f"Skip cache as {self.name} recompiled, set torch._logging.set_logs(recompiles=True) for "
                    f"details; its cache is removed: {reason}",
                    UserWarning,
                    stacklevel=2,
                )
            self._abandoned = True
            files.remove(self.place().function_dir)
        if not self._abandoned:
            ensure_cache_dir(self.root())
        compiled = self._compiled(args, kwargs, self._options)
        started = perf_counter()
        stored = files.save(
            self.place().function_dir,
            compiled.artifact,
            compiled.files,
            withheld=withheld,
            kept=not self._abandoned,
        )
        variant = self._bind(stored)
        self._check_own_guards(variant, args, kwargs)
        self._traces.count(reason, changes_itself=bool(stored.artifact.guards.volatile))
        seconds = StageSeconds(
            trace_s=compiled.trace_s, compile_s=compiled.compile_s, load_s=perf_counter() - started
        )
        self._record("compiled", reason, stored, seconds)
        return variant

    def _compiled(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: CacheOptions,
        used: Callable[[Engine], Engine] = lambda engine: engine,
    ) -> Compiled:
        """Compile; with ``engine="auto"`` by engine graph what TorchAir cannot keep."""
        from warmrank.worker.compile.compiler import compile_call

        asked = self.request()

        def by(engine: Engine) -> Compiled:
            return compile_call(
                self._method,
                args,
                kwargs,
                request=replace(asked, engine=used(engine)),
                options=options,
                device_kind=self.device_kind,
            )

        try:
            return by(asked.engine)
        except NotPortable as error:
            if self._wanted != "auto" or error.fields.get("instead") != "graph":
                raise
            _log.warning("%s is compiled by engine graph: %s", self.name, error)
        return by(engine_named("graph"))

    def outline(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Artifact:
        """Trace for this call as `compile` does, for an audit: no kernels, and nothing is kept.

        Raises:
            WorkerError: the function cannot be cached.
        """
        config = copy.deepcopy(self._options.config)
        config.debug.graph_dump.type = config.debug.fx_summary.type = None  # the compile writes such files
        return self._compiled(args, kwargs, replace(self._options, config=config), Outliner).artifact

    def _check_own_guards(self, variant: Variant, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Conditions that do not hold where they were made would mean a compile on every call."""
        for _ in range(_OWN_CHECKS):
            wrong = variant.check(args, kwargs)
            if wrong or variant.fits(args, kwargs):
                break
        else:
            wrong = ("a condition on its arguments",)
        if not wrong:
            return
        self._variants.remove(variant)
        msg = (
            f"{self.name} was compiled, but its conditions do not hold for the very call it was made for: "
            f"{'; '.join(wrong)}. The function changes what it depends on while it is traced, or this is "
            "a bug of warmrank."
        )
        raise NotPortable(msg, function=self.name, wrong=wrong)

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
        with _dumps(config, self.name):
            variant = Variant(
                stored,
                site,
                backend=backend_for(self.device_kind),
                guards=self._guards,
                on_gear_miss=self._options.on_gear_miss,
                code_in_options=partial(code_in_options, self._options),
            )
        self._variants.insert(0, variant)
        return variant

    def _record(self, outcome: Outcome, reason: str, stored: StoredArtifact, seconds: StageSeconds) -> None:
        self.results.pop(stored.sha256, None)
        self.results[stored.sha256] = result = FunctionResult(
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
        if settings().journals:
            from warmrank.worker import journal

            journal.append(result, stored.artifact, self.root())


def _rank_and_world() -> tuple[int, int]:
    """Rank and world size of this process."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _dumps(config: CompilerConfig, function: str) -> contextlib.AbstractContextManager[None]:
    """Where a graph that dumps its data writes them (``debug.data_dump``)."""
    if config.debug.data_dump.type is None:
        return contextlib.nullcontext()
    from warmrank.worker import data_dump

    return data_dump.into(config, function)


# As many as a cache directory keeps of one function, and as many graphs as are captured by default.
MAX_TRACES = 64
# Of a function that writes to what its own conditions hang on. torch.compile gives up after 8 recompilations.
MAX_TRACES_OF_CHANGING = 16


class TraceLimit:
    """Counts the traces of one function."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._traces = 0
        self._reason = ""
        self._warned = False
        self.reached = False

    def count(self, reason: str, *, changes_itself: bool) -> None:
        """Note one trace.

        Args:
            reason: why it was needed.
            changes_itself: the function writes to Python state that its conditions hang on.
        """
        self._traces += 1
        self._reason = reason
        self.reached = self._traces >= (MAX_TRACES_OF_CHANGING if changes_itself else MAX_TRACES)

    def run_eagerly(self, method: MethodType, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The method's own result, without gradients, as a cached function's; warns once."""
        if not self._warned:
            self._warned = True
            _log.warning(
                "%s was traced %d times in this process, so it runs eagerly from now on where nothing that "
                "is loaded fits; the last trace was needed because: %s. Use dynamic=True for changing "
                "shapes, and keep what changes from call to call in a tensor, or pass it.",
                self._name,
                self._traces,
                self._reason,
            )
        with torch.no_grad():
            return method(*args, **kwargs)
