"""For which machines an offline build is, which ranks it makes for themselves, and which get copies.

What `warmrank doctor --environment` prints on a machine is what artifacts are keyed by; Python and torch must
be the same here, because they take part in every trace. Ranks that differ in their data-parallel position
only are given the same model, so the first of each position is built and stands for the others; the last rank
of all is built as well, as a witness. What a copy holds is checked again by every launch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from warmrank.cache_store.records.manifest import PartitionManifest
from warmrank.cache_store.text import changed_components
from warmrank.orchestrator.config.models import Config, ScriptWorkload
from warmrank.orchestrator.config.reading import require_workload
from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.launch.events import AuditReport
from warmrank.orchestrator.launch.plan import Slot
from warmrank.orchestrator.launch.report import StageReport
from warmrank.worker.keys.request import environment
from warmrank.worker.results import FunctionProbe, FunctionResult, Outcome, RetraceOutcome


def num_positions(config: Config) -> int:
    """Number of ranks that differ in more than their data-parallel position: ranks below it are the first."""
    return config.ranks // config.parallel.dp


def built_ranks(config: Config, *, every_rank: bool) -> tuple[int, ...]:
    """Ranks that are built: the first of each position and the witness, or all."""
    if every_rank:
        return tuple(range(config.ranks))
    return tuple(sorted({*range(num_positions(config)), config.ranks - 1}))


def model_rank(rank: int, config: Config) -> int:
    """The rank that stands for another; `orchestrator.config.models.groups` says how ranks are numbered."""
    return rank % num_positions(config)


def differences(
    config: Config,
    probes: Mapping[int, tuple[FunctionProbe, ...]],
    results: Mapping[Slot, FunctionResult],
    bound: Collection[str],
) -> tuple[str, ...]:
    """Difference of the witness from the rank that stands for it, in words; empty for none.

    Functions in ``bound`` hold on one rank alone, so nothing stands for them.
    """
    witness = max(probes)
    model = model_rank(witness, config)
    mine = {probe.function: probe for probe in probes[witness] if probe.function not in bound}
    theirs = {probe.function: probe for probe in probes[model] if probe.function not in bound}
    found = [f"{name}: only one of them calls it" for name in sorted(mine.keys() ^ theirs.keys())]
    for name in mine.keys() & theirs.keys():
        changes = changed_components(theirs[name].components, mine[name].components)
        if changes:
            found.append(f"{name}: {'; '.join(map(str, changes))}")
        elif results[witness, name].digest != results[model, name].digest:
            found.append(f"{name}: {results[witness, name].reason or 'its guards do not hold'}")
    return tuple(found)


def replica(manifest: PartitionManifest, rank: int, *, without: Collection[str] = ()) -> PartitionManifest:
    """The manifest of a rank for which another one stands, ``without`` functions that it does not share."""
    old, new = (f"world{manifest.world_size}global_rank{number}" for number in (manifest.rank, rank))
    # A partition's name goes on with the tensor-parallel and pipeline rank, which both share.
    here = re.compile(rf"(?<=/){old}(?=[/_])")
    return manifest.model_copy(
        update={
            "partition": new,
            "rank": rank,
            "requests": tuple(item for item in manifest.requests if item.function not in without),
            "artifacts": tuple(
                item.model_copy(update={"path": here.sub(new, item.path)})
                for item in manifest.artifacts
                if item.function not in without
            ),
        }
    )


_TRACED_WITH = ("python", "torch", "cuda")
_NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTarget:
    """The machines that are built for: components of their environment, and the source of these."""

    environment: Mapping[str, str]
    source: str


def target_here() -> BuildTarget:
    """Machines like this one."""
    return BuildTarget(
        environment=environment(), source="machines like this one (no --environment was given)"
    )


def read_target(path: Path) -> BuildTarget:
    """Read what `warmrank doctor --environment` wrote on a target machine, or raise `BadArgument`."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        msg = f"--environment {path}: {error}; expected what warmrank doctor --environment prints there"
        raise BadArgument(msg) from error
    known = set(environment())
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        msg = (
            f"--environment {path}: expected a JSON object of strings, as warmrank doctor "
            "--environment prints on a target machine"
        )
        raise BadArgument(msg)
    if odd := sorted(known ^ found.keys()):
        msg = (
            f"--environment {path}: components {', '.join(odd)} are missing there or unknown here; write it "
            "with the release of warmrank that builds"
        )
        raise BadArgument(msg)
    return BuildTarget(environment=found, source=f"the machines of {path}")


def check_target(config: Config, target: BuildTarget, *, real_tensors: bool) -> None:
    """Raise `BadArgument` for what cannot be built here, and say what to do."""
    require_workload(config, config.name)
    if isinstance(config.workload, ScriptWorkload):
        msg = f"workload.script {config.workload.script}: an offline build needs a workload.entrypoint"
        raise BadArgument(msg)
    here = environment()
    differing = [name for name in _TRACED_WITH if here[name] != target.environment[name]]
    if here["torch_npu"] not in (_NONE, target.environment["torch_npu"]):
        differing.append("torch_npu")
    if differing:
        parts = "; ".join(f"{name} here {here[name]}, there {target.environment[name]}" for name in differing)
        msg = f"the trace would be another one than on the machines that are built for: {parts}"
        raise BadArgument(msg)
    if config.device != "cpu" and target.environment["accelerator"] == _NONE:
        msg = (
            f"device kind {config.device}: {target.source} have no accelerator; run warmrank doctor "
            "--environment on a machine that has one, and name its output as --environment"
        )
        raise BadArgument(msg)
    if real_tensors and config.device != "cpu":
        msg = f"--real-tensors: there is no {config.device} here to hold them; only device cpu can have them"
        raise BadArgument(msg)
    if config.device == "npu" and here["torch_npu"] == _NONE:
        msg = (
            "device kind npu: torch_npu is not installed here, and it takes part in every trace (its methods "
            "of torch.Tensor, its switches), so no NPU would load what is built; build where torch_npu and "
            "CANN are installed, which needs no NPU"
        )
        raise BadArgument(msg)


BUILD_SCHEMA_VERSION = 1

ALWAYS_LATER = {
    "captured graphs": "every process captures its own, on its device",
    "the capture plan": "a launch notes what it captured, and the next one captures it first",
    "node artifacts": "the vendor's tools make them on the node, at its first launch",
    "verification": "nothing was run; a launch compares with the reference",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassReport:
    """One artifact, and the number of ranks whose partitions hold it."""

    function: str
    request_key: str
    digest: str
    size_bytes: int
    outcome: Outcome  # compiled in this build, or there before
    leader: int  # compiled it, or is the first that has it
    num_ranks: int
    trace_s: float  # 0 where nothing was compiled
    compile_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTotals:
    """Sums of a build; new is what the store, or the cache directory, did not have."""

    num_classes: int  # distinct pairs of function and artifact
    num_compiled: int
    num_artifacts: int
    artifact_bytes: int
    num_built_ranks: int  # whose model was built; the others got copies
    num_partitions_new: int
    published_bytes: int
    compile_s: float  # of all traces and compiles, one after the other
    wall_s: float
    rank_ms: float  # of each rank, beyond compiles and the start of processes


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """An offline build that ended with the partitions of all ranks; names as in a launch's report."""

    schema_version: int
    name: str
    launch_key: str
    identity: dict[str, str]
    environment: dict[str, str]  # of the machines that it is for
    environment_source: str
    world_size: int
    parallel: dict[str, int]
    device: str
    started: str
    cache_dir: str
    store: str  # empty where the cache directory has all partitions
    record: str
    classes: tuple[ClassReport, ...]
    not_built: dict[str, str]  # what a launch makes itself, and why
    assumed: tuple[str, ...]  # what was taken for granted, and is checked by a launch
    stages: tuple[StageReport, ...]
    totals: BuildTotals
    problems: tuple[str, ...]
    audits: tuple[AuditReport, ...] = ()


AUDIT_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RetraceReport:
    """One artifact, and the ranks that traced its function again with one outcome."""

    function: str
    ranks: tuple[int, ...]
    outcome: RetraceOutcome
    reason: str  # the first difference, or why nothing could be compared
    digest: str
    seconds: float  # summed over ranks
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCompared:
    """An artifact of the stored launch, in the partitions of some ranks, that no rank here traced again."""

    function: str
    digest: str
    ranks: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheAudit:
    """Outcome of an audit of a store or a cache directory; names as in a launch's report."""

    schema_version: int
    outcome: str  # fresh, stale (something differs) or incomplete (not all compared)
    name: str
    launch_key: str
    source: str  # the store or cache directory
    environment_source: str
    world_size: int
    num_retraced_ranks: int
    started: str
    functions: tuple[RetraceReport, ...]  # traced again, or should have been
    not_compared: tuple[NotCompared, ...]  # what else is stored, or left out
    problems: tuple[str, ...]
    wall_s: float
