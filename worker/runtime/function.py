"""`CachedFunction`: what `cache_compile` returns. Looks up, loads or adopts, compiles on a miss, runs.

A call asks the loaded variants whether they fit (microseconds), then the partition's files, then those of
sibling partitions; only then is the function traced, and the new artifact saved beside the others.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import itertools
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker import collection
from warmrank.worker.configs.compiler_config import CacheOptions, LaunchDefaults, launch_scope
from warmrank.worker.devices import backend_for
from warmrank.worker.engines import Site, check_choice, engine_for, engine_named
from warmrank.worker.errors import ArtifactCorrupt, NotPortable, StateChanged, WorkerError
from warmrank.worker.keys.code import forget_types
from warmrank.worker.keys.request import Request, request
from warmrank.worker.runtime.check import any_gears
from warmrank.worker.runtime.find import (
    Found,
    Place,
    StoredArtifact,
    announce,
    function_of,
    look_up,
    model_directory,
)
from warmrank.worker.runtime.runner import call_lock
from warmrank.worker.runtime.sources import missing_operators, patches_looked_at_once
from warmrank.worker.runtime.variant import Variant
from warmrank.worker.settings import kind_of, settings
from warmrank.worker.torch_private.warm import (
    ambient,
    is_followed,
    is_symbolic_trace,
    known_groups,
    prepare,
    rank_and_world,
)
from warmrank.worker.values import replace

if TYPE_CHECKING:
    from warmrank.worker.capture.statistics import CaptureStatistics
    from warmrank.worker.configs.compiler_config import EngineChoice, GuardMode
    from warmrank.worker.engines import Engine
    from warmrank.worker.results import FunctionResult, Outcome
    from warmrank.worker.runtime.artifact import Artifact
    from warmrank.worker.runtime.compiling import TraceLimit

_log = logging.getLogger("torchair")
_BUILTINS = {name: value for name, value in vars(builtins).items() if not name.startswith("_")}
Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]


class CachedFunction:
    """A bound method whose compiled form is kept across processes.

    Attributes:
        method: the bound method.
        options: how it is cached; its configuration is a copy, so a later change of the caller's counts not.
        defaults: of the launch that it was made in.
        name: qualified name, for people and reports.
        wanted: the engine asked for.
        abandoned: the files were given up (``on_recompile="abandon"``); nothing is written any more.
        traces: counts the traces; None before the first.
    """

    def __init__(
        self, method: MethodType, options: CacheOptions, defaults: LaunchDefaults | None = None
    ) -> None:
        self.method = method
        self.defaults = defaults = defaults or launch_scope.defaults
        self._root: Path | None = None
        self.options = replace(
            options, config=copy.deepcopy(options.config), cache_dir=options.cache_dir or defaults.cache_dir
        )
        self._guards: GuardMode = options.guards or defaults.guards or "always"
        self.wanted: EngineChoice = options.engine or defaults.engine or "auto"
        check_choice(self.wanted, self.options.config)
        self.name = method.__func__.__qualname__.replace(".<locals>", "")
        self.abandoned = False
        self._variants: list[Variant] = []
        self._lock = call_lock()
        self._calls = call_lock()  # one at a time: it reads and writes the module's state
        self._num_calls = 0
        self._kind = "cpu"  # of the module's device; read again at each look-up
        self._recorded: dict[str, tuple[Outcome, str, StoredArtifact, dict[str, float]]] = {}
        self.traces: TraceLimit | None = None
        if launch_scope.functions is not None:
            launch_scope.functions.append(self)

    def __getstate__(self) -> dict[str, Any]:
        """State for `copy.deepcopy` and pickle: nothing that is loaded."""
        return {
            "function": self.method.__func__,
            "module": self.method.__self__,
            "options": self.options,
            "defaults": self.defaults,
        }

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Bind a copy to the module that was copied with it; the module may still lack its own state."""
        method = MethodType(state["function"], state["module"])
        CachedFunction.__init__(self, method, state["options"], state["defaults"])

    def __repr__(self) -> str:
        digests = ", ".join(variant.stored.sha256[:12] for variant in self.variants)
        loaded = f"variants loaded: {digests}" if digests else "nothing loaded yet"
        return f"<CachedFunction {self.name}, mode {self.options.config.mode}, {loaded}>"

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The variants loaded in this process, the one used last first."""
        return tuple(self._variants)

    @property
    def results(self) -> dict[str, FunctionResult]:
        """Outcome of each load and compile by digest of the artifact, the latest last."""
        from warmrank.worker.results import FunctionResult, StageSeconds

        return {
            sha256: FunctionResult(
                function=self.name,
                ok=True,
                outcome=outcome,
                reason=reason,
                digest=sha256,
                size_bytes=stored.size_bytes,
                beside=tuple((file.sha256, file.size_bytes) for file in stored.artifact.files),
                path=str(stored.path),
                seconds=StageSeconds(**seconds),
                runtime_state=stored.artifact.guards.runtime_state,
            )
            for sha256, (outcome, reason, stored, seconds) in self._recorded.items()
        }

    @property
    def last_result(self) -> FunctionResult | None:
        """Outcome of the latest load or compile; None before the first."""
        return next(reversed(self.results.values()), None)

    @property
    def statistics(self) -> CaptureStatistics:
        """Captures, replays, other calls and why, and pools; prints as a short text."""
        from warmrank.worker.capture.statistics import total

        return total(variant.runner for variant in self.variants)

    @property
    def module(self) -> torch.nn.Module:
        """The module whose method this is."""
        module: torch.nn.Module = self.method.__self__  # type: ignore[assignment]
        return module

    @property
    def device_kind(self) -> str:
        """Kind of the device that the module lives on."""
        module = self.module
        first = next(itertools.chain(module.parameters(), module.buffers()), None)
        return kind_of("cpu" if first is None else first.device.type)

    def engine(self) -> Engine:
        """The engine for the device that the module lives on now; `BadConfig` where none compiles for it."""
        return engine_for(self.options.config, wanted=self.wanted, device_kind=self.device_kind)

    def request(self) -> Request:
        """Request of this function under the present configuration and environment."""
        return request(self.module, self.options, self.engine())

    def root(self) -> Path:
        """The cache directory, absolute: a relative one is settled by the first look-up."""
        if self._root is None:
            self._root = Path(self.options.cache_dir or settings().cache_home).resolve()
        return self._root

    def place(self, asked: Request | None = None) -> Place:
        """Directories of this function's artifacts for a request (by default, the present one)."""
        options = self.options
        asked = asked or self.request()
        name = model_directory(
            type(self.module).__name__, dynamic=options.dynamic, mode=options.config.mode, key=asked.key
        )
        rank, world_size = self.defaults.place or rank_and_world()
        if options.global_rank is not None:
            rank = options.global_rank
        parts = [f"world{world_size}global_rank{rank}"] if world_size > 1 else []  # as in TorchAir
        if options.tp_rank is not None:
            parts.append(f"tp_rank{options.tp_rank}")
        if options.pp_rank is not None:
            parts.append(f"pp_rank{options.pp_rank}")
        model_dir = self.root() / name
        function_dir = model_dir / "_".join(parts) / self.method.__func__.__name__
        return Place(model_dir=model_dir, function_dir=function_dir)

    def find(self, args: Args, kwargs: Kwargs, refused: Mapping[str, str] | None = None) -> Found:
        """Look for an artifact that fits this call: own partition first, then sibling partitions.

        ``refused`` gives artifacts to pass over: digest -> why.
        """
        prepare()
        asked = self.request()

        def misfits(stored: StoredArtifact) -> tuple[str, ...]:
            why = (refused or {}).get(stored.sha256)
            return self.mismatches(stored, args, kwargs) if why is None else (why,)

        with patches_looked_at_once():
            return look_up(self.place(asked), asked, misfits)

    def mismatches(self, stored: StoredArtifact, args: Args, kwargs: Kwargs) -> tuple[str, ...]:
        """Conditions of an artifact that this module and call do not meet; empty if it may be used."""
        artifact = stored.artifact
        version = engine_named(artifact.engine).version
        if version != artifact.engine_version:
            return (f"engine {artifact.engine} {artifact.engine_version} -> {version}",)
        if self._guards == "skip":
            missing = tuple(missing_operators(artifact.guards.sources))
            return missing or stored.tensor_mismatches(self.method, args, kwargs)
        return stored.mismatches(self.method, args, kwargs, self.device_kind, self.options.on_gear_miss)

    def warm_up(self, *args: Any, **kwargs: Any) -> None:
        """Load or compile for these arguments, and capture, as two calls of them would.

        Mutated inputs keep their values. The graph may run: where it has collectives, warm up on all ranks
        alike. Warm up for the largest shapes first, so that the graphs of smaller ones fit into the pool.

        Raises:
            CompileForbidden: nothing fits, and compiling was forbidden.
            WorkerError: the function cannot be cached; the message says why and what to do.
        """
        if (variant := self.accepting(args, kwargs)) is not None:
            with contextlib.suppress(StateChanged):
                variant.capture(args, kwargs)
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
            return self.method(*args, **kwargs)
        with self._calls:
            variants = tuple(self._variants)
            state = ambient(self._kind) if variants else ()
            for position, variant in enumerate(variants):
                if not variant.guards.accept(state, args, kwargs):
                    continue
                if position:
                    self._move_to_front(variant)
                self._num_calls += 1
                try:
                    return variant(*args, **kwargs)
                except StateChanged as error:  # what a load had settled has to be asked anew
                    # Neither writing nor sending to other ranks can be done a second time.
                    if error.while_running and (variant.writes or known_groups()):
                        raise
                    break
            num_calls = self._num_calls
        if is_symbolic_trace():
            return self.method(*args, **kwargs)
        if (limit := self.traces) is not None and limit.reached and self.fitting(args, kwargs) is None:
            return limit.run_eagerly(self.method, args, kwargs)
        variant = self.ensure(args, kwargs)
        with self._calls:
            # What another thread's call wrote meanwhile may have changed what is asked.
            if self._num_calls == num_calls or variant.guards.accept(ambient(self._kind), args, kwargs):
                self._num_calls += 1
                return variant(*args, **kwargs)
        return self(*args, **kwargs)

    def _move_to_front(self, variant: Variant) -> None:
        if not self._lock.acquire(blocking=False):
            return  # another thread compiles, for which no call is to wait
        try:
            if variant in self._variants:
                self._variants.remove(variant)
                self._variants.insert(0, variant)
        finally:
            self._lock.release()

    def ensure(self, args: Args, kwargs: Kwargs) -> Variant:
        """A loaded variant that fits this call: found or compiled.

        Raises:
            CompileForbidden: nothing fits, and compiling was forbidden.
            GearError: no gear stands for the sizes of the call.
            NotPortable: a builtin was replaced by what torch and warmrank cannot work with.
        """
        try:
            return self._ensure(args, kwargs)
        except WorkerError:
            raise
        except Exception as error:
            for name, value in _BUILTINS.items():
                if vars(builtins).get(name) is not value:
                    raise NotPortable(
                        f"{self.name} could not be looked up ({type(error).__name__}: {error}) where "
                        f"builtins.{name} was replaced, on which torch and warmrank rely; put it back, and "
                        "give yours another name, or make it a global of your module"
                    ) from error
            raise

    def _ensure(self, args: Args, kwargs: Kwargs) -> Variant:
        with self._lock:
            started = perf_counter()
            if sys.stdout is not None and sys.stdout.isatty():
                import warmrank.worker.log  # noqa: F401 - gives the logger its form, and its level on a terminal
            with collection.paused():
                self._kind = self.device_kind
                if (fitting := self.fitting(args, kwargs)) is not None:
                    return fitting
                self._refuse_gear_miss(args, kwargs)
                variant, reason = self.find_and_use(args, kwargs, started)
            if variant is not None:
                return variant
            from warmrank.worker.runtime.compiling import compile_or_await

            return compile_or_await(self, args, kwargs, reason, started)

    def accepting(self, args: Args, kwargs: Kwargs) -> Variant | None:
        """The loaded variant that a call with these arguments would run at once; None if there is none."""
        state = ambient(self._kind)
        return next((found for found in self.variants if found.guards.accept(state, args, kwargs)), None)

    def fitting(self, args: Args, kwargs: Kwargs) -> Variant | None:
        """A loaded variant, all of whose conditions hold for these arguments now; None if there is none."""
        with self._lock:
            forget_types()
            for variant in self.variants:
                if variant.guards.may_fit(args, kwargs) and not variant.guards.check(args, kwargs):
                    self._move_to_front(variant)
                    return variant
        return None

    def find_and_use(self, args: Args, kwargs: Kwargs, started: float) -> tuple[Variant | None, str]:
        """Look up and load a fitting artifact; the variant, or None and the miss reason."""
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

    def _refuse_gear_miss(self, args: Args, kwargs: Kwargs) -> None:
        for variant in self._variants:
            if variant.stored.artifact.facts.gears is not None:
                variant.guards.refuse_gear_miss(args, kwargs)
        if not any_gears():
            return
        from warmrank.worker.gears.rules import geared_arguments, refuse_arguments

        policy = self.options.config.inference_config.dynamic_gears_merge_policy
        geared = geared_arguments(function_of(self.method), args, kwargs)
        refuse_arguments(geared, self.options.on_gear_miss, policy)

    def use(self, found: Found, *, started: float, withheld: bool = False) -> Variant:
        """Load a found artifact; one of another partition is first copied into this one."""
        stored = found.stored
        assert stored is not None  # noqa: S101 - callers look first
        if not found.own:
            from warmrank.worker.runtime.files import adopted

            stored = adopted(self.place().function_dir, stored, withheld=withheld)
        # Bound once, however often it is looked up: all calls that it fits share its captures.
        bound = [variant for variant in self._variants if variant.stored.sha256 == stored.sha256]
        for variant in bound:
            if variant.lost_groups():
                self.forget(variant)
            else:
                variant.settle()
                break
        else:
            variant = self.bind(stored)
        announce("loaded from", stored)
        outcome: Outcome = "loaded" if found.own else "adopted"
        self.record(outcome, found.reason, stored, load_s=perf_counter() - started)
        return variant

    def compile(self, args: Args, kwargs: Kwargs, *, reason: str, withheld: bool = False) -> Variant:
        """Trace and compile for this call, without running it, and save the artifact.

        ``reason`` says why; of a ``withheld`` one no other partition takes it by itself.

        Raises:
            WorkerError: the function cannot be cached.
        """
        from warmrank.worker.runtime.compiling import compiled_and_saved

        return compiled_and_saved(self, args, kwargs, reason=reason, withheld=withheld)

    def outline(self, args: Args, kwargs: Kwargs) -> Artifact:
        """Trace for this call as `compile` does, for an audit: no kernels, and nothing is kept."""
        from warmrank.worker.runtime.compiling import outlined

        return outlined(self, args, kwargs)

    def bind(self, stored: StoredArtifact) -> Variant:
        """Load an artifact as the variant to ask first."""
        self._kind = kind = self.device_kind
        config, artifact = self.options.config, stored.artifact
        config.check(kind, engine=artifact.engine)
        site = Site(
            method=self.method,
            config=config,
            dynamic=self.options.dynamic,
            decompositions=self.options.custom_decompositions,
            ge_cache=self.options.ge_cache,
            frame=artifact.frame.code,
            digest=stored.sha256,
            cache_root=None if self.abandoned else self.root(),
        )
        dumps: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if config.given().get("debug.data_dump.type"):
            from warmrank.worker import data_dump

            dumps = data_dump.into(config, self.name)
        with dumps:
            variant = Variant(
                stored,
                site,
                backend=backend_for(kind),
                guards=self._guards,
                on_gear_miss=self.options.on_gear_miss,
                options=self.options,
            )
        self._variants.insert(0, variant)
        return variant

    def forget(self, variant: Variant) -> None:
        """Drop a loaded variant."""
        self._variants.remove(variant)

    def record(self, outcome: Outcome, reason: str, stored: StoredArtifact, **seconds: float) -> None:
        """Note a load or compile, with its `StageSeconds`, for reports and the journal."""
        self._recorded.pop(stored.sha256, None)
        self._recorded[stored.sha256] = outcome, reason, stored, seconds
        if settings().journals:
            from warmrank.worker import journal

            journal.append(self.results[stored.sha256], stored.artifact)
