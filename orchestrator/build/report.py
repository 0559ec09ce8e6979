"""The report of an offline build: plain frozen values, as JSON with a version of its own.

Durations are in seconds, sizes in bytes. `BUILD_SCHEMA_VERSION` rises with any change that could break a
reader.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from pydantic import TypeAdapter

from warmrank.orchestrator.launch.events import AuditReport
from warmrank.orchestrator.launch.report import StageReport
from warmrank.worker.results import Outcome

BUILD_SCHEMA_VERSION = 1

ALWAYS_LATER = (
    ("captured graphs", "every process captures its own, on its device"),
    ("the capture plan", "a launch notes what it captured, and the next one captures it first"),
    ("node artifacts", "the vendor's tools make them on the node, at its first launch"),
    ("verification", "nothing was run; a launch compares with the reference"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassReport:
    """One artifact, and the ranks that have it.

    Attributes:
        function: name of the unit of work.
        request_key: what it asks for.
        digest: sha256 of the artifact.
        size_bytes: its size.
        outcome: ``compiled`` in this build; else it was there before.
        leader: the rank that compiled it; the first that has it, where none did.
        num_ranks: ranks whose partitions hold it.
        trace_s: seconds of its trace; 0 where nothing was compiled.
        compile_s: seconds of the compile after the trace.
    """

    function: str
    request_key: str
    digest: str
    size_bytes: int
    outcome: Outcome
    leader: int
    num_ranks: int
    trace_s: float
    compile_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NotBuilt:
    """What a launch still has to make."""

    what: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTotals:
    """Sums of a build.

    Attributes:
        num_classes: distinct pairs of function and artifact.
        num_compiled: of these, those that were compiled now.
        num_artifacts: distinct artifacts.
        artifact_bytes: their size.
        num_built_ranks: ranks whose model was built; the others got copies.
        num_partitions_new: partitions that the store or the cache directory did not have.
        published_bytes: bytes that were new to the store.
        compile_s: seconds of all traces and compiles, one after the other.
        wall_s: seconds of the build.
        rank_ms: milliseconds for each rank beyond the stage that compiles and the start of the processes.
    """

    num_classes: int
    num_compiled: int
    num_artifacts: int
    artifact_bytes: int
    num_built_ranks: int
    num_partitions_new: int
    published_bytes: int
    compile_s: float
    wall_s: float
    rank_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """An offline build that ended with the partitions of all ranks.

    Attributes:
        schema_version: `BUILD_SCHEMA_VERSION` of the writer.
        name: the launch's name.
        launch_key: hash of ``identity``.
        identity: named components of what is built for.
        environment: named components of the machines that it is for.
        environment_source: where these come from.
        world_size: number of ranks.
        parallel: sizes of the parallel axes, by name.
        device: device kind.
        started: ISO 8601 in UTC.
        cache_dir: where artifacts lie.
        store: the store's location; empty when there is none, and the cache directory has all partitions.
        record: key of the launch record in the store; empty without a store.
        classes: every artifact, in order of functions and ranks.
        not_built: what a launch makes itself.
        assumed: what was taken for granted, and is checked by a launch.
        stages: seconds of every stage.
        totals: sums.
        problems: what did not stop the build, but should be looked at.
        audits: ranks whose own trace was compared with an artifact, before anybody adopted that.
    """

    schema_version: int
    name: str
    launch_key: str
    identity: dict[str, str]
    environment: dict[str, str]
    environment_source: str
    world_size: int
    parallel: dict[str, int]
    device: str
    started: str
    cache_dir: str
    store: str
    record: str
    classes: tuple[ClassReport, ...]
    not_built: tuple[NotBuilt, ...]
    assumed: tuple[str, ...]
    stages: tuple[StageReport, ...]
    totals: BuildTotals
    problems: tuple[str, ...]
    audits: tuple[AuditReport, ...] = ()


@cache
def _adapter() -> TypeAdapter[BuildReport]:
    return TypeAdapter(BuildReport)


def to_json(report: BuildReport) -> str:
    """The report as indented JSON text, with a newline at its end."""
    return _adapter().dump_json(report, indent=2).decode() + "\n"


def from_json(text: str) -> BuildReport:
    """Read what `to_json` wrote.

    Raises:
        pydantic.ValidationError: the text is no report of this schema version.
    """
    return _adapter().validate_json(text)
