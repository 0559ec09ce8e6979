"""One rank of a launch: a plain object that the driver steps through the stages; it knows no Ray.

Stages in order: `start`, `build`, `probe`, `compile` or `load` or `adopt`, `capture`, `first_call`,
`verify`, `publish`, `stop`. The unit of work is one call of the workload, named after its cached function
(``Llama.decode``; a second call of the same function is ``Llama.decode[1]``).
"""

from __future__ import annotations

import functools
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from cache_store.errors import StoreError
from worker.environment import environment
from worker.errors import ArtifactCorrupt, WorkerError, WorkloadError
from worker.results import (
    CaptureProposal,
    FunctionProbe,
    FunctionResult,
    Published,
    RankPlace,
    StageSeconds,
    Verification,
)

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from cache_store.digests import Digest
    from cache_store.node.node_files import NodeFile
    from cache_store.records.manifest import CaptureEntry, PartitionManifest
    from cache_store.store import Store
    from worker.cached_function import CachedFunction
    from worker.lookup import Found
    from worker.rank_spec import RankSpec
    from worker.variant import Variant
    from worker.workload import Call, RankContext, Workload

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Unit:
    """One call of the workload, and what is known of it so far."""

    name: str
    call: Call
    found: Found | None = None
    variant: Variant | None = None
    result: FunctionResult | None = None
    signatures: tuple[str, ...] = ()
    seconds: StageSeconds = field(default_factory=StageSeconds)
    refused: dict[str, str] = field(default_factory=dict)  # the function's: digest -> why no engine takes it

    @property
    def function(self) -> CachedFunction:
        return self.call.function

    def find(self) -> Found:
        """The artifact for this call, if there is one that its engine takes."""
        return self.function.find(self.call.args, self.call.kwargs, self.refused)

    def use(self, found: Found, *, started: float) -> None:
        """Load what was found, or, where its engine does not take that, the next one that fits.

        Raises:
            ArtifactCorrupt: there is no other.
        """
        assert found.stored is not None  # noqa: S101 - callers look first
        try:
            self.variant = self.function.use(found, started=started)
        except ArtifactCorrupt as error:
            self.refused[found.stored.sha256] = str(error)
            self.found = other = self.find()
            if other.stored is None:
                raise
            _log.warning("%s is not used: %s", found.stored.path, error)
            reason = "; ".join(filter(None, (str(error), other.reason)))
            self.use(replace(other, reason=reason), started=started)


class RankWorker:
    """Steps one rank through a launch."""

    def __init__(self, spec: RankSpec, store: Store | None) -> None:
        self._spec = spec
        self._store = store
        self._workload: Workload | None = None
        self._units: dict[str, _Unit] = {}
        self._groups: dict[str, ProcessGroup] = {}
        self._owns_process_group = False
        self._proposed: tuple[CaptureProposal, ...] = ()
        self._node_files: tuple[NodeFile, ...] = ()
        self._shared: set[Digest] = set()  # blobs that this rank added to the store before it published

    def start(self) -> RankPlace:
        """Bring up the device and the process groups.

        Raises:
            DeviceUnavailable: the device kind cannot be used on this node, or has no device for this rank.
        """
        _emulate_if_told()
        import torch

        from worker import groups, process_groups
        from worker.devices import backend_for

        backend = backend_for(self._spec.device_kind)
        device = backend.device(self._spec.local_rank)
        # Collectives and new tensors go to the current device. The CPU's function of this name does nothing.
        torch.get_device_module(device.type).set_device(device)
        if self._spec.master_port:
            self._groups = process_groups.start(self._spec, backend.collectives)
            self._owns_process_group = True
            # World comes last: a group of its own role names an artifact's group more exactly.
            groups.register(dict(sorted(self._groups.items(), key=lambda item: item[0] == "world")))
        return RankPlace(
            rank=self._spec.rank, host=socket.gethostname(), pid=os.getpid(), environment=environment()
        )

    def build(self) -> tuple[str, ...]:
        """Import the entrypoint and build model and calls.

        Returns:
            Names of the units of work, in call order.

        Raises:
            WorkloadError: the entrypoint does not import, or returns something else than a workload.
        """
        from worker.cache_options import LaunchDefaults, launch_defaults
        from worker.workload import build_workload

        spec = self._spec
        place = None if spec.master_port else (spec.rank, spec.world_size)
        defaults = LaunchDefaults(
            cache_dir=spec.cache_dir,
            guards=spec.guards,  # type: ignore[arg-type]
            engine=spec.engine,  # type: ignore[arg-type]
            no_compile=spec.no_compile,
            place=place,
        )
        token = launch_defaults.set(defaults)
        try:
            self._workload = build_workload(spec.entrypoint, self._context(), spec.arguments)
        finally:
            launch_defaults.reset(token)
        seen: Counter[str] = Counter()
        refused: dict[CachedFunction, dict[str, str]] = {}
        for call in self._workload.calls:
            self._check_cache_dir(call.function)
            base = call.function.name
            name = f"{base}[{seen[base]}]" if seen[base] else base
            seen[base] += 1
            self._units[name] = _Unit(name=name, call=call, refused=refused.setdefault(call.function, {}))
        return tuple(self._units)

    def _check_cache_dir(self, function: CachedFunction) -> None:
        """A manifest names files below the launch's cache directory, so all must lie there."""
        wanted, root = Path(self._spec.cache_dir).resolve(), function.root()
        if not root.is_relative_to(wanted):
            msg = (
                f"{function.name} keeps its cache in {root}, but the launch in {wanted}; "
                "leave cache_dir out of cache_compile in a launch"
            )
            raise WorkloadError(msg, function=function.name, cache_dir=str(root))

    def _context(self) -> RankContext:
        from worker.devices import backend_for
        from worker.workload import RankContext

        spec = self._spec
        return RankContext(
            rank=spec.rank,
            world_size=spec.world_size,
            local_rank=spec.local_rank,
            device_kind=spec.device_kind,
            device=backend_for(spec.device_kind).device(spec.local_rank),
            groups=dict(self._groups),
        )

    def probe(self) -> tuple[FunctionProbe, ...]:
        """Say for each unit what is asked for, and whether it is there. Compiles nothing."""
        return tuple(self._probe(unit) for unit in self._units.values())

    def _probe(self, unit: _Unit) -> FunctionProbe:
        from worker.runtime_state import declared_for

        started = perf_counter()
        try:
            unit.found = unit.find()
        except TypeError as error:
            where = f"{self._spec.entrypoint}: the call of {unit.name}"
            msg = f"{where} has other arguments than the function takes: {error}"
            raise WorkloadError(msg, function=unit.name) from error
        unit.seconds = replace(unit.seconds, load_s=perf_counter() - started)
        found = unit.found
        asked = unit.function.request()
        return FunctionProbe(
            function=unit.name,
            request_key=asked.key,
            components=asked.components,
            state="miss" if found.stored is None else "hit" if found.own else "adoptable",
            reason=found.reason,
            digest=found.stored.sha256 if found.stored is not None else "",
            runtime_state=declared_for(unit.function.module),
        )

    def compile(self, functions: tuple[str, ...]) -> tuple[FunctionResult, ...]:
        """Trace and compile units without running them; their artifacts go into the store as well."""
        return tuple(self._guarded(self._units[name], self._compile) for name in functions)

    def _compile(self, unit: _Unit) -> FunctionResult:
        # An earlier unit's artifact may cover this one: then there is nothing to compile.
        found = unit.find()
        reason = (unit.found or found).reason
        if found.stored is not None:
            unit.found = found
            return self._load(unit)
        unit.variant = unit.function.compile(unit.call.args, unit.call.kwargs, reason=reason)
        stored = unit.variant.stored
        for path in (*stored.files().values(), stored.path):
            self._share(path)
        return self._finish(unit)

    def _share(self, path: Path) -> None:
        """Put an artifact where ranks on other nodes can take it from; without it they compile themselves."""
        if self._store is None:
            return
        try:
            shared = self._store.put_blob(path)
        except StoreError as error:
            _log.warning("the artifact is not shared with other nodes: %s", error)
        else:
            self._shared |= {shared.digest} if shared.created else set()

    def load(self, functions: tuple[str, ...]) -> tuple[FunctionResult, ...]:
        """Load what the probe found (or what was compiled here since)."""
        return tuple(self._guarded(self._units[name], self._load) for name in functions)

    def _load(self, unit: _Unit) -> FunctionResult:
        if unit.variant is not None and unit.result is not None:
            return unit.result
        if unit.found is None or unit.found.stored is None:
            unit.found = unit.find()
        if unit.found.stored is None:
            return self._refused(unit, unit.found.reason, guard_failed=False)
        unit.use(unit.found, started=perf_counter())
        return self._finish(unit)

    def adopt(self, offers: Mapping[str, str]) -> tuple[FunctionResult, ...]:
        """Take over artifacts of other ranks, by digest; their guards decide whether they fit here."""
        return tuple(
            self._guarded(self._units[name], functools.partial(self._adopt, digest=digest))
            for name, digest in offers.items()
        )

    def _adopt(self, unit: _Unit, digest: str) -> FunctionResult:
        from worker.cached_function import OFFERED
        from worker.lookup import other_request

        started = perf_counter()
        offered = unit.function.offered(digest, self._store)
        if offered is None:
            return self._refused(unit, f"artifact {digest[:12]} is neither in the cache nor in the store")
        wrong = other_request(offered, unit.function.request())
        wrong = wrong or unit.function.mismatches(offered, unit.call.args, unit.call.kwargs)
        if wrong:
            return self._refused(unit, "; ".join(wrong), guard_failed=True)
        own = offered.path.parent == unit.function.place().function_dir
        partition = offered.path.parent.parent.name
        reason = "" if own else "from the store" if partition == OFFERED else f"same as {partition}"
        unit.use(_found(offered, own=own, reason=reason), started=started)
        return self._finish(unit)

    def _guarded(self, unit: _Unit, step: Callable[[_Unit], FunctionResult]) -> FunctionResult:
        """One unit's failure is a value, so that the others go on and the driver can name it."""
        try:
            unit.result = step(unit)
        except (WorkerError, StoreError) as error:
            unit.result = self._refused(unit, f"{type(error).__name__}: {error}", guard_failed=False)
        return unit.result

    def _refused(self, unit: _Unit, reason: str, *, guard_failed: bool = False) -> FunctionResult:
        return FunctionResult(
            function=unit.name, ok=False, outcome="adopted", reason=reason, guard_failed=guard_failed,
            seconds=unit.seconds,
        )  # fmt: skip

    def _finish(self, unit: _Unit) -> FunctionResult:
        result = unit.function.last_result
        assert result is not None  # noqa: S101 - every variant that is bound leaves a result
        looked_s = unit.seconds.load_s if result.outcome != "compiled" else 0.0
        unit.seconds = replace(result.seconds, load_s=result.seconds.load_s + looked_s)
        return replace(result, function=unit.name, seconds=unit.seconds)

    def propose_captures(self, planned: tuple[CaptureEntry, ...]) -> tuple[CaptureProposal, ...]:
        """What this rank would capture: the workload's calls, and what it can of an earlier launch's plan."""
        from worker import rank_captures

        self._proposed = rank_captures.propose(tuple(self._units.values()), planned)
        return self._proposed

    def stream_problem(self) -> str:
        """What the proposed captures will take too much of; see `worker.devices.streams`."""
        from worker.rank_streams import stream_problem

        return stream_problem(tuple(self._units.values()), self._proposed)

    def capture(self, step: CaptureProposal) -> tuple[FunctionResult, ...]:
        """Take one step of the order that the driver made of all ranks' proposals."""
        unit = self._units[step.function]
        return (self._guarded(unit, functools.partial(self._capture, step=step)),)

    def _capture(self, unit: _Unit, step: CaptureProposal) -> FunctionResult:
        from worker import rank_captures

        _bound(unit)
        started = perf_counter()
        rank_captures.capture(tuple(self._units.values()), step)
        seconds = perf_counter() - started
        _log.info("Captured %s in %.3f s: %s", unit.name, seconds, _bound(unit).runner.statistics)
        return self._timed(unit, capture_s=unit.seconds.capture_s + seconds)

    def first_call(self) -> tuple[FunctionResult, ...]:
        """Run each unit once, in call order, as a user would."""
        return tuple(self._guarded(unit, self._first_call) for unit in self._units.values())

    def _first_call(self, unit: _Unit) -> FunctionResult:
        _bound(unit)
        started = perf_counter()
        unit.function(*unit.call.args, **unit.call.kwargs)
        return self._timed(unit, first_call_s=perf_counter() - started)

    def _timed(self, unit: _Unit, **seconds: float) -> FunctionResult:
        unit.seconds = replace(unit.seconds, **seconds)
        assert unit.result is not None  # noqa: S101 - `_bound` came first
        captured = unit.function.statistics
        return replace(
            unit.result,
            seconds=unit.seconds,
            num_captures=captured.captures,
            pool_bytes=captured.pool_bytes,
        )

    def verify(self) -> Verification:
        """Compare the warm model with its reference, if the workload has one."""
        found = self._verify()
        if self._spec.local_rank == 0:  # after the last call, so that nothing is missing
            for function in {unit.function for unit in self._units.values()}:
                for variant in function.variants:
                    variant.hand_over()
        return found

    def _verify(self) -> Verification:
        workload = self._require_workload()
        if workload.check is None:
            return Verification(ok=True, max_error=0.0, tolerance=0.0, compared="")
        before = self._num_variants()
        found = workload.check()
        if not isinstance(found, Verification):
            kind = type(found).__qualname__
            msg = (
                f"the check of {self._spec.entrypoint} returned {kind}; expected a worker.Verification "
                "(ok, max_error, tolerance, compared)"
            )
            raise WorkloadError(msg, entrypoint=self._spec.entrypoint)
        after = self._num_variants()
        extra = [name for name in after if after[name] != before[name]]
        if extra:
            # Not among the launch's functions, so neither planned nor published: somebody should know.
            note = f"the check needed more artifacts of {', '.join(extra)}: warm them up with a worker.Call"
            return replace(found, compared=f"{found.compared}; {note}")
        return found

    def _num_variants(self) -> dict[str, int]:
        """Loaded artifacts of each cached function that the workload calls."""
        return {unit.function.name: len(unit.function.variants) for unit in self._units.values()}

    def _require_workload(self) -> Workload:
        if self._workload is None:
            msg = f"rank {self._spec.rank} was not built yet; call build() before"
            raise WorkloadError(msg, rank=self._spec.rank)
        return self._workload

    def keep_for_node(self, files: tuple[NodeFile, ...]) -> None:
        """Take node artifacts into the manifest of this rank, the first one of its node."""
        self._node_files = files

    def manifest(self) -> PartitionManifest:
        """What this rank's partition holds."""
        from worker.manifests import with_node_files

        return with_node_files(self._own_manifest(), self._node_files)

    def _own_manifest(self) -> PartitionManifest:
        from worker import rank_captures
        from worker.manifests import of_script, of_units

        spec = self._spec
        if not spec.entrypoint:
            return of_script(spec)
        units = tuple(self._units.values())
        captured = rank_captures.captured(units)
        listed = [(unit.name, unit.function, _bound(unit).stored, captured[unit.name]) for unit in units]
        return of_units(spec, listed)

    def publish(self, launch_key: str) -> Published | None:
        """Put this rank's manifest and artifacts into the store; None without a store.

        What it shared right after compiling counts as new too.
        """
        from worker.manifests import publish

        if self._store is None:
            return None
        root = Path(self._spec.cache_dir)
        return publish(self._store, launch_key, self.manifest(), root, shared=self._shared)

    def stop(self) -> None:
        """Take the process groups down."""
        if self._owns_process_group:
            import torch.distributed as dist

            from worker import groups

            groups.register({})
            dist.destroy_process_group()
            self._owns_process_group = False
        self._units.clear()
        self._workload = None


def _bound(unit: _Unit) -> Variant:
    if unit.variant is None:
        msg = f"{unit.name} was neither loaded nor compiled on this rank"
        raise WorkloadError(msg, function=unit.name)
    return unit.variant


def _found(stored: Any, *, own: bool, reason: str) -> Found:
    from worker.lookup import Found

    return Found(stored=stored, own=own, reason=reason)


def _emulate_if_told() -> None:
    """Before anything of this process asks for torch_npu."""
    from worker.settings import settings

    if settings().emulate_npu:
        from worker import npu_emulator

        npu_emulator.install()
