"""One rank of a launch: a plain object that the driver steps through the stages; it knows no Ray.

Stages in order: `start`, `build`, `probe`, `compile` or `load` or `adopt`, `capture`, `first_call`,
`verify`, `partition`, `stop`. The unit of work is one call of the workload (`worker.rank.units`). Torch is
imported from `start` on, not before.

Time-outs of HCCL, the collectives of Ascend, follow the launch's, which a user is to see. HCCL reads its
variables when a communicator is made; what a user has set stays. Of CANN's reference
(https://www.hiascend.com/document/detail/zh/canncommercial/900/maintenref/envvar/envref_07_0077.html, _0078):
``HCCL_CONNECT_TIMEOUT``, how long ranks wait for each other to connect, 120 to 7200 s; ``HCCL_EXEC_TIMEOUT``,
how long a collective waits for the other ranks, where 0 is for ever. torch's watchdog must come later, or
HCCL's own report of the missing rank is lost: torch_npu warns of that (``ProcessGroupHCCL.cpp``).
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from warmrank.worker.errors import PortInUse, WorkloadError
from warmrank.worker.keys.request import environment
from warmrank.worker.results import (
    CaptureProposal,
    FunctionProbe,
    FunctionResult,
    Partition,
    PlannedCapture,
    TraceResult,
    Verification,
)
from warmrank.worker.settings import settings
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from warmrank.worker.rank.manifests import Fields
    from warmrank.worker.rank.units import Handed, OpenStore, RankUnit, TracePrint
    from warmrank.worker.rank.workload import Workload
    from warmrank.worker.runtime.function import CachedFunction

_log = logging.getLogger(__name__)
_CONNECT, _EXECUTE = "HCCL_CONNECT_TIMEOUT", "HCCL_EXEC_TIMEOUT"
_LEAST_CONNECT_S, _MOST_CONNECT_S = 120, 7200
_GRACE_S = 60.0


class RankSpec(Value):
    """Specification of one rank."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    master_addr: str
    master_port: int  # free port there; 0 where no process groups are wanted
    device_kind: str
    groups: Mapping[str, Sequence[int]]  # role -> ranks of the group of that role that this rank is in
    entrypoint: str  # ``module:function``; empty for a script
    arguments: Mapping[str, Any]
    cache_dir: str
    guards: str
    timeout_s: float  # time-out of collectives, in seconds
    no_compile: bool = False  # a miss is an error, wherever on this rank it comes up
    engine: str = "auto"  # ``auto``, ``graph``, ``aoti`` or ``torchair``, for functions that do not say
    audited: bool = False  # what is compiled is compared with other ranks' traces before they adopt it


class RankWorker:
    """Steps one rank through a launch, and opens the store where it needs it.

    Functions are named as units of work (`worker.rank.units`). What fails for one function is a result with a
    `Failure`; an exception of `worker.errors` or `cache_store.errors` is about the whole rank.
    """

    def __init__(self, spec: RankSpec, open_store: OpenStore) -> None:
        self._spec = spec
        self._open_store = open_store
        self._workload: Workload | None = None
        self._units: dict[str, RankUnit] = {}
        self._calls: list[RankUnit] = []  # of each call of the workload, the unit that answers it now
        self._groups: dict[str, ProcessGroup] = {}
        self._functions: list[CachedFunction] = []  # all that user code made in the stages of this rank

    def start(self) -> dict[str, str]:
        """Bring up the device and the process groups; returns the rank's environment."""
        import torch

        from warmrank.worker.devices import backend_for

        backend = backend_for(self._spec.device_kind)
        device = backend.device(self._spec.local_rank)
        # Collectives and new tensors go to the current device. The CPU's function of this name does nothing.
        torch.get_device_module(device.type).set_device(device)
        if self._spec.master_port:
            self._own(start_groups(self._spec, backend.collectives))
        return environment()

    def _own(self, started: dict[str, ProcessGroup]) -> None:
        """Take the group of each role that this rank is in, and let artifacts name groups by their roles."""
        from warmrank.worker import groups

        self._groups = started
        # World comes last: a group of its own role names an artifact's group more exactly.
        groups.declare_groups(dict(sorted(started.items(), key=lambda item: item[0] == "world")))

    def build(self) -> tuple[str, ...]:
        """Import the entrypoint and build model and calls; return the names of the units, in call order."""
        from warmrank.worker.devices import backend_for
        from warmrank.worker.rank.units import units_of
        from warmrank.worker.rank.workload import RankContext, build_workload

        spec = self._spec
        context = RankContext(
            rank=spec.rank,
            world_size=spec.world_size,
            local_rank=spec.local_rank,
            device_kind=spec.device_kind,
            device=backend_for(spec.device_kind).device(spec.local_rank),
            groups=dict(self._groups),
        )
        with self._in_launch():
            self._workload = build_workload(spec.entrypoint, context, spec.arguments)
        self._functions += [call.function for call in self._workload.calls]  # also of an earlier import
        self._units = units_of(self._workload.calls, Path(spec.cache_dir))
        self._calls = list(self._units.values())
        return tuple(self._units)

    def _in_launch(self) -> contextlib.AbstractContextManager[None]:
        """Lay down what the launch says while user code runs, and note the cached functions that it makes."""
        from warmrank.worker.configs.compiler_config import LaunchDefaults, launch_scope

        spec = self._spec
        defaults = LaunchDefaults(
            cache_dir=spec.cache_dir,
            guards=spec.guards,  # type: ignore[arg-type]
            engine=spec.engine,  # type: ignore[arg-type]
            no_compile=spec.no_compile,
            place=None if spec.master_port else (spec.rank, spec.world_size),
        )
        return launch_scope.of(defaults, self._functions)

    def probe(self) -> tuple[FunctionProbe, ...]:
        """Look each unit up."""
        return tuple(map(self._probe, self._units.values()))

    def _probe(self, unit: RankUnit) -> FunctionProbe:
        with self._watched(unit):
            return unit.probe(self._spec.entrypoint)

    def _watched(self, unit: RankUnit) -> contextlib.AbstractContextManager[None]:
        """Around what looks a unit up or traces it."""
        del unit
        return contextlib.nullcontext()

    def compile(self, functions: tuple[str, ...]) -> tuple[FunctionResult, ...]:
        """Trace and compile units without running them; their artifacts go into the store as well."""

        def compiled(unit: RankUnit) -> FunctionResult:
            with self._watched(unit):
                return unit.compile(self._open_store, withheld=self._spec.audited)

        return tuple(self._units[name].guarded(compiled) for name in functions)

    def audit(self, functions: tuple[str, ...]) -> tuple[TraceResult, ...]:
        """Trace units as their compile would, for a comparison with other ranks."""
        results = []
        for unit in (self._units[name] for name in functions):
            with self._watched(unit):
                results.append(unit.audit())
        return tuple(results)

    def trace(self, function: str) -> TracePrint:
        """Print of a unit's trace, for `difference` on another rank."""
        return self._units[function].trace()

    def difference(self, function: str, trace: TracePrint) -> str:
        """The first difference between another rank's trace of a unit and this rank's own; empty if none."""
        from warmrank.worker.rank.units import first_difference

        unit = self._units[function]
        return first_difference(trace, unit.outlined or unit.trace())

    def consider(self, offers: Mapping[str, str]) -> tuple[FunctionResult, ...]:
        """True if artifacts of other ranks could be adopted here, which is not done."""
        return tuple(
            self._units[name].consider(digest, self._open_store)[1] for name, digest in offers.items()
        )

    def hand_out(self, digests: Mapping[str, str]) -> dict[str, Handed | None]:
        """Artifacts for other nodes, by unit; None for one that is not here."""
        return {name: self._units[name].hand_out(digest) for name, digest in digests.items()}

    def take_in(self, name: str, handed: Handed) -> None:
        """Keep a unit's artifact of another node, for all ranks of this one."""
        self._units[name].take_in(handed)

    def load(self, functions: tuple[str, ...]) -> tuple[FunctionResult, ...]:
        """Load what the probe found (or what was compiled here since)."""
        return tuple(self._units[name].guarded(lambda unit: unit.load()) for name in functions)

    def adopt(self, offers: Mapping[str, str], fresh: Collection[str] = ()) -> tuple[FunctionResult, ...]:
        """Take over artifacts of other ranks; `release` lets other partitions have the ``fresh`` ones."""

        def adopted(unit: RankUnit) -> FunctionResult:
            withheld = unit.name in fresh and self._spec.audited
            return unit.adopt(offers[unit.name], self._open_store, withheld=withheld)

        return tuple(self._units[name].guarded(adopted) for name in offers)

    def release(self, digests: Mapping[str, str]) -> None:
        """Let other partitions have artifacts (function to digest), since no audit found a fault."""
        from warmrank.worker.runtime.files import release

        for name, digest in digests.items():
            release(self._units[name].function.place().function_dir, digest)

    def propose_captures(
        self, planned: tuple[PlannedCapture, ...], names: Collection[str] | None = None
    ) -> tuple[CaptureProposal, ...]:
        """The graphs that this rank would capture, of the units ``names``; None for all."""
        from warmrank.worker.rank import captures

        loaded = [unit for unit in self._units.values() if unit.variant is not None]
        return captures.propose([unit for unit in loaded if names is None or unit.name in names], planned)

    def capture(self, step: CaptureProposal) -> tuple[FunctionResult, ...]:
        """Take one step of the order that the driver made of all ranks' proposals."""
        from warmrank.worker.rank import captures

        def captured(unit: RankUnit) -> FunctionResult:
            runner, started = unit.bound().runner, perf_counter()
            captures.capture(tuple(self._units.values()), step)
            seconds = perf_counter() - started
            _log.info("Captured %s in %.3f s: %s", unit.name, seconds, runner.statistics)
            return unit.timed(capture_s=unit.seconds.capture_s + seconds)

        return (self._units[step.function].guarded(captured),)

    def first_call(self, place: int) -> tuple[FunctionResult | FunctionProbe, ...]:
        """Run the call before a place (from 0) in the workload, as a user would, and probe the call there.

        The probe comes only if nothing that is loaded fits; the call is a unit of its own where something did
        before. After the last call come the probes of all such calls, which become no units: another may run
        before their turn.
        """
        from warmrank.worker.rank.units import free_name

        with self._in_launch():
            ran = [
                unit.guarded(lambda unit: unit.first_call())
                for unit in self._calls[max(0, place - 1) : place]
            ]
        if place >= len(self._calls):
            later = (unit.later(unit.name) for unit in self._calls)
            return (*ran, *(self._probe(unit) for unit in later if unit is not None))
        call = self._calls[place]
        unit = call if call.variant is None else call.later(free_name(self._units, call.function))
        if unit is None:
            return tuple(ran)
        self._units[unit.name] = self._calls[place] = unit
        return (*ran, self._probe(unit))

    def verify(self) -> Verification:
        """Compare the warm model with its reference, if the workload has one."""
        with self._in_launch():
            found = self._check()
        # After the last call, so that nothing is missing.
        for function in self._functions if self._spec.local_rank == 0 else ():
            for variant in function.variants:
                variant.runner.hand_over()
        return found

    def extra(self) -> tuple[FunctionResult, ...]:
        """Artifacts that the check, or one call inside of another, needed beyond the workload's calls.

        They become units, so that the manifest names what was loaded or compiled beside the calls.
        """
        from warmrank.worker.rank.units import RankUnit, check_cache_dir, free_name
        from warmrank.worker.rank.workload import Call

        results = []
        for function in (found for found in dict.fromkeys(self._functions) if found.variants):
            check_cache_dir(function, Path(self._spec.cache_dir))
            known = {unit.variant for unit in self._units.values()}
            for variant in reversed([found for found in function.variants if found not in known]):
                name = free_name(self._units, function)
                result = replace(function.results[variant.stored.sha256], function=name)
                call = Call(function=function)
                self._units[name] = RankUnit(name=name, call=call, variant=variant, result=result)
                results.append(result)
        return tuple(results)

    def _check(self) -> Verification:
        if self._workload is None:
            msg = f"rank {self._spec.rank} was not built yet; call build() before"
            raise WorkloadError(msg, rank=self._spec.rank)
        if self._workload.check is None:
            return Verification(ok=True, max_error=0.0, tolerance=0.0, compared="")
        found = self._workload.check()
        if not isinstance(found, Verification):
            what = f"the check of {self._spec.entrypoint} returned {type(found).__qualname__}"
            msg = f"{what}; expected a warmrank.Verification (ok, max_error, tolerance, compared)"
            raise WorkloadError(msg, entrypoint=self._spec.entrypoint)
        # Not a number is within no tolerance, though nothing that a check compares it with may say so.
        return replace(found, ok=found.ok and found.max_error <= found.tolerance)

    def partition(self) -> Partition:
        """The contents of this rank's partition."""
        from warmrank.worker.rank.manifests import packed

        shared = {blob for unit in self._units.values() for blob in unit.shared}
        return Partition(
            manifest=packed(self._manifest()),
            num_shared=len(shared),
            bytes_shared=sum(digest.size_bytes for digest in shared),
        )

    def _manifest(self) -> Fields:
        from warmrank.worker.rank import captures, manifests

        if not self._spec.entrypoint:
            return manifests.of_script(self._spec)
        units = tuple(self._units.values())
        captured = captures.captured(units)
        listed = [(unit.name, unit.function, unit.bound().stored, captured[unit.name]) for unit in units]
        return manifests.of_units(self._spec, listed)

    def stop(self) -> None:
        """Take the process groups down."""
        if self._groups:
            import torch.distributed as dist

            self._own({})
            dist.destroy_process_group()
        self._units.clear()
        self._workload = None


def pretend_groups(spec: RankSpec) -> dict[str, ProcessGroup]:
    """The groups of a rank whose world is not there, each at the position that it has in a launch."""
    from warmrank.worker.torch_private.fake_ranks import start_world

    start_world(spec.rank, spec.world_size)
    return _groups(spec)


def start_groups(spec: RankSpec, backend: str) -> dict[str, ProcessGroup]:
    """Meet the other ranks, and make this rank's group of every role.

    Each role gets groups of its own, also where they hold the same ranks as another role's: an artifact
    binds to the role, and in another launch the roles' groups may differ.

    Returned by role: the group that this rank is in.
    """
    import torch.distributed as dist

    timeout_s = _set_hccl_time_outs(spec.timeout_s) if backend == "hccl" else spec.timeout_s
    timeout = timedelta(seconds=timeout_s)
    if spec.device_kind == "npu":
        # TorchAir makes static kernels of several ranks only where it sees torchrun's variables.
        os.environ.update(LOCAL_RANK=str(spec.local_rank), LOCAL_WORLD_SIZE=str(spec.local_world_size))
    try:
        dist.init_process_group(
            backend,
            init_method=f"tcp://{spec.master_addr}:{spec.master_port}",
            rank=spec.rank,
            world_size=spec.world_size,
            timeout=timeout,
        )
    except dist.DistNetworkError as error:
        if "EADDRINUSE" not in str(error):
            raise
        raise PortInUse(
            f"port {spec.master_port} of {spec.master_addr}, where ranks were to meet, was free a moment ago "
            "and is another process's now; another attempt takes another port"
        ) from error
    # Only its members meet to make a group: all ranks for each would cost the square of their number.
    # Without its own time-out a group would get torch's default of half an hour, not the world's.
    return _groups(spec, timeout=timeout, use_local_synchronization=True)


def _groups(spec: RankSpec, **options: Any) -> dict[str, ProcessGroup]:
    """The world, and each group that this rank is in.

    In the same order on every rank, or the members of two groups would wait for each other; and one of each
    role, because torch names a group that its members alone make by how many groups they have.
    """
    import torch.distributed as dist

    world = dist.group.WORLD
    assert world is not None  # noqa: S101 - it was just initialised
    roles = sorted(spec.groups.keys() - {"world"})
    return {"world": world, **{role: dist.new_group([*spec.groups[role]], **options) for role in roles}}


def _set_hccl_time_outs(timeout_s: float) -> float:
    """Let HCCL wait as long as the launch, unless a user said how long; return the watchdog's time-out."""
    given, longest = settings().ascend, math.ceil(timeout_s)
    if not given.get(_CONNECT):
        os.environ[_CONNECT] = str(min(max(longest, _LEAST_CONNECT_S), _MOST_CONNECT_S))
    if not given.get(_EXECUTE):
        os.environ[_EXECUTE] = str(max(longest, 1))  # 0 would be for ever
    text = os.environ[_EXECUTE]
    execute_s = int(text) if text.isdecimal() else 0  # 0: HCCL waits for ever, and the watchdog alone ends it
    return max(timeout_s, execute_s) + _GRACE_S
