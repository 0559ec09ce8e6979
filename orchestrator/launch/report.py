"""The report of a launch: one document of plain frozen values, as JSON with a published, versioned schema.

Durations are in seconds, sizes in bytes. `SCHEMA_VERSION` rises with any change that could break a reader.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
from collections.abc import Container, Iterable, Mapping, Sized
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from warmrank.cache_store.backends.deadline import TierState
from warmrank.cache_store.records.manifest import RankEnvironment
from warmrank.orchestrator.errors import BadArgument, Cause, ConfigError, ConfigProblem, about
from warmrank.orchestrator.launch.events import Timeline
from warmrank.orchestrator.nodes import NodeArtifacts
from warmrank.worker.results import Outcome, StageSeconds, Verification
from warmrank.worker.settings import settings

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 5

_NO_UNICODE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionReport:
    """Outcome of one cached function on one rank."""

    function: Annotated[str, about("name of the cached function.")]
    outcome: Annotated[Outcome, about("how the rank got its artifact.")]
    reason: Annotated[str, about("why this outcome; for a compile, why nothing could be loaded or adopted.")]
    request_key: Annotated[str, about("hex key of what was asked; empty for a script workload.")]
    digest: Annotated[str, about("sha256 hex of the artifact.")]
    size_bytes: Annotated[int, about("size of the artifact.")]
    path: Annotated[str, about("where the artifact lies on the rank's node.")]
    seconds: Annotated[StageSeconds, about("seconds in each stage.")]
    num_captures: Annotated[int, about("graphs captured by the end of its first call, in all its calls.")] = 0
    beside: Annotated[tuple[tuple[str, int], ...], about("SHA-256 and size of each file beside it.")] = ()
    pool_bytes: Annotated[int, about("bytes of these graphs' pools, which others may share.")] = 0
    runtime_state: Annotated[dict[str, str], about("declared, name -> text.")] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """One rank: where it ran, and what became of each function."""

    rank: Annotated[int, about("global rank.")]
    host: Annotated[str, about("host name of its node.")]
    node_rank: Annotated[int, about("index of its node.")]
    local_rank: Annotated[int, about("index within its node.")]
    pid: Annotated[int, about("its process.")]
    log: Annotated[str, about("file of its log and output; empty when it ran in the driver's process.")]
    functions: Annotated[tuple[FunctionReport, ...], about("its cached functions, in call order.")]
    verification: Annotated[Verification | None, about("comparison with the reference; none for a script.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReport:
    """Wall seconds of one stage, summed over its rounds or steps."""

    stage: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFetch:
    """Transfer of one node from the store before its ranks were built."""

    node_rank: Annotated[int, about("index of the node.")]
    host: Annotated[str, about("its host name.")]
    found: Annotated[bool, about("a launch that fits was in the store.")]
    reason: Annotated[str, about("why, in one line.")]
    num_partitions: Annotated[int, about("partitions laid out.")]
    bytes_copied: Annotated[int, about("bytes written to the node's cache directory.")]
    seconds: Annotated[float, about("wall seconds.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePublish:
    """Publishing of one node's ranks."""

    node_rank: Annotated[int, about("index of the node.")]
    host: Annotated[str, about("its host name.")]
    num_partitions: Annotated[int, about("partitions that are in the store now.")]
    num_blobs_new: Annotated[int, about("blobs that the store did not have.")]
    bytes_new: Annotated[int, about("their size.")]
    num_queued: Annotated[int, about("partitions that wait on the node's disk, because the store was away.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """Outcome of the artifacts of one node."""

    node_rank: Annotated[int, about("index of the node.")]
    host: Annotated[str, about("its host name.")]
    artifacts: Annotated[NodeArtifacts, about("what became of them.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Nondeterministic:
    """A function that compiled to other bytes here than those that the store holds for the same request."""

    function: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over all ranks; of a launch that failed, what ranks of its last attempt had told."""

    num_compiled: Annotated[int, about("functions compiled; 0 in a warm launch.")]
    num_loaded: Annotated[int, about("functions loaded from the rank's own partition.")]
    num_adopted: Annotated[int, about("functions that use another rank's or another world's artifact.")]
    num_artifacts: Annotated[int, about("distinct artifacts.")]
    num_files: Annotated[int, about("these and the distinct files beside them.")]
    artifact_bytes: Annotated[int, about("bytes of these files.")]
    num_nondeterministic: Annotated[int, about("functions that compiled to other bytes than are stored.")]
    fetched_bytes: Annotated[int, about("bytes copied from the store, over all nodes.")]
    published_bytes: Annotated[int, about("bytes that were new to the store, over all nodes.")]
    num_queued: Annotated[int, about("partitions that wait on nodes' disks to be published.")]
    function_seconds: Annotated[StageSeconds, about("in each stage, summed over ranks and functions.")]
    wall_s: Annotated[float, about("wall seconds of the launch, from start to commit.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Failure of a launch that did not end with every rank warm."""

    kind: Annotated[str, about("name of the error's type.")]
    message: Annotated[str, about("its text, as the command line prints it.")]
    stage: Annotated[str, about("the stage that failed; empty where the error is not one of a stage.")] = ""
    causes: Annotated[
        tuple[Cause, ...], about("equal ones together; those that others follow from first")
    ] = ()
    silent: Annotated[tuple[int, ...], about("ranks that had not answered when the launch was stopped.")] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A launch: one that ended with every rank warm, or one that failed, as far as it came."""

    schema_version: Annotated[int, about("SCHEMA_VERSION of the writer.")]
    outcome: Annotated[Literal["warm", "failed"], about("whether every rank is warm.")]
    exit_code: Annotated[int, about("what the command line ends with.")]
    failure: Annotated[Failure | None, about("why not every rank is warm; None where every rank is.")]
    timeline: Annotated[Timeline, about("attempts, classes of ranks, and when each stage ended where.")]
    name: Annotated[str, about("the launch's name.")]
    launch_key: Annotated[str, about("hash of identity.")]
    identity: Annotated[dict[str, str], about("named components of what was launched.")]
    environment: Annotated[dict[str, str], about("named components of rank 0's; empty where none came up.")]
    other_environments: Annotated[tuple[RankEnvironment, ...], about("of ranks that ran in others.")]
    world_size: Annotated[int, about("number of ranks.")]
    parallel: Annotated[dict[str, int], about("sizes of the parallel axes, by name.")]
    started: Annotated[str, about("ISO 8601 in UTC.")]
    cache_dir: Annotated[str, about("the cache directory on each node.")]
    store: Annotated[str, about("the store's location; empty when there is none.")]
    tiers: Annotated[tuple[TierState, ...], about("the store's places, nearest first.")]
    record: Annotated[str, about("key of the launch record in the store; empty when nothing was committed.")]
    ranks: Annotated[tuple[RankReport, ...], about("in order; of a launch that failed, those with places.")]
    fetches: Annotated[tuple[NodeFetch, ...], about("every node, in order; empty without a store.")]
    publishes: Annotated[tuple[NodePublish, ...], about("every node that published or wanted to.")]
    nondeterministic: Annotated[tuple[Nondeterministic, ...], about("functions that made other bytes.")]
    queued_on: Annotated[tuple[str, ...], about("hosts for warmrank store publish, in order.")]
    stages: Annotated[tuple[StageReport, ...], about("every stage, in order.")]
    totals: Annotated[Totals, about("sums.")]
    problems: Annotated[tuple[str, ...], about("what did not stop the launch, but should be looked at.")]
    node_artifacts: Annotated[tuple[NodeReport, ...], about("of nodes that have node caches, in order.")] = ()
    config: Annotated[tuple[str, ...], about("words that named it: its path and each --set; or none.")] = ()
    unsigned: Annotated[str, about("why nothing can be signed, though it is asked for; else empty.")] = ""


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def report_schema() -> dict[str, Any]:
    """The JSON Schema of a report."""
    schema = _adapter(Report).json_schema()
    for part in (schema, *schema["$defs"].values()):
        if "description" in part:  # the first paragraph of a docstring
            part["description"] = " ".join(part["description"].partition("\n\n")[0].split())
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "warmrank launch report"
    schema["properties"]["schema_version"]["const"] = SCHEMA_VERSION
    return schema


def to_json(report: Any) -> str:
    """A report of any command as indented JSON text, with a newline at its end."""
    kind: Any = type(report)
    adapter = _adapter(kind)
    try:
        return adapter.dump_json(report, indent=2).decode() + "\n"
    except PydanticSerializationError:
        plain = adapter.dump_python(report, mode="json")
        return spelled_out(json.dumps(plain, indent=2, ensure_ascii=False)) + "\n"


def spelled_out(json_text: str) -> str:
    r"""JSON text that can be written: of a file name that is no text, ``\udcff`` and the like stand there."""
    return _NO_UNICODE.sub(lambda found: rf"\\u{ord(found[0]):04x}", json_text)


def from_json(text: str) -> Report:
    """Read what `to_json` wrote.

    Raises:
        pydantic.ValidationError: the text is no report of this schema version.
    """
    report: Report = _adapter(Report).validate_json(text)
    return report


def sum_seconds(parts: Iterable[StageSeconds]) -> StageSeconds:
    """Seconds by stage, summed."""
    sums = dict.fromkeys((field.name for field in fields(StageSeconds)), 0.0)
    for part in parts:
        for name in sums:
            sums[name] += getattr(part, name)
    return StageSeconds(**sums)


def config_words(report: Report) -> str:
    """The config as a command names it: as the launch's own did."""
    return shlex.join(report.config) or "CONFIG"


def held_bytes(report: Report) -> int:
    """Bytes of artifacts and files beside them, as if every rank had its own."""
    return sum(
        function.size_bytes + sum(size for _, size in function.beside)
        for rank in report.ranks
        for function in rank.functions
    )


def totals(
    ranks: tuple[RankReport, ...],
    *,
    fetches: Iterable[NodeFetch] = (),
    publishes: Iterable[NodePublish] = (),
    nondeterministic: Sized = (),
    wall_s: float = 0.0,
) -> Totals:
    """Sum up what the ranks and nodes of a launch report."""
    functions = [function for rank in ranks for function in rank.functions]
    outcomes = [function.outcome for function in functions]
    artifacts = {function.digest: function.size_bytes for function in functions if function.digest}
    files = artifacts | {sha256: size for function in functions for sha256, size in function.beside}
    return Totals(
        num_compiled=outcomes.count("compiled"),
        num_loaded=outcomes.count("loaded"),
        num_adopted=outcomes.count("adopted"),
        num_artifacts=len(artifacts),
        num_files=len(files),
        artifact_bytes=sum(files.values()),
        num_nondeterministic=len(nondeterministic),
        published_bytes=sum(node.bytes_new for node in publishes),
        num_queued=sum(node.num_queued for node in publishes),
        fetched_bytes=sum(fetch.bytes_copied for fetch in fetches),
        function_seconds=sum_seconds(function.seconds for function in functions),
        wall_s=wall_s,
    )


def keep_last(report: Report) -> None:
    """Keep the report of this launch as the last one; without a home, or room in it, there is none."""
    path = settings().last_report
    try:
        if path is not None:
            write_whole(path, to_json(report))
    except OSError as error:
        logger.debug("Report of the last launch not kept: %s", error)


def read_last() -> Report:
    """Read what `keep_last` kept.

    Raises:
        BadArgument: no launch of this user's ended on this machine.
        ConfigError: its report is of another version.
    """
    path = settings().last_report
    if path is None or not path.is_file():
        msg = (
            f"no launch of this user is known on this machine (no file {path}); name a report that "
            "launch --json wrote, or launch first"
        )
        raise BadArgument(msg)
    return read_report(path)


def read_report(path: Path) -> Report:
    """Read what ``launch --json`` wrote.

    Raises:
        ConfigError: there is no such file, or it holds no report of this version.
    """
    expected = f"a report of schema version {SCHEMA_VERSION}, as launch --json of this version writes it"
    try:
        report = from_json(path.read_text(encoding="utf-8"))
        if report.schema_version == SCHEMA_VERSION:
            return report
        found = f"schema version {report.schema_version}"
    except OSError as error:
        found = error.strerror or str(error)
    except UnicodeDecodeError:
        found = "bytes that are no text"
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        found = f"{first['msg']} at {place}" if place else first["msg"]
    problem = ConfigProblem(place=str(path), key="", found=found, expected=expected)
    raise ConfigError([problem], document="report")


def make_way(files: Mapping[str, Path], *, kept: Container[str] = ()) -> None:
    """Remove older files, by their options, but those ``kept``: none stands for a launch that is killed.

    Raises:
        ConfigError: one cannot be written, or holds what is not warmrank's; none was removed.
    """
    expected = "a file that can be written, or - for stdout; of older files, only reports are overwritten"
    faults = {option: _fault_of(path) for option, path in files.items()}
    problems = [
        ConfigProblem(place=option, key="", found=f"{files[option]} ({fault})", expected=expected)
        for option, fault in faults.items()
        if fault
    ]
    if problems:
        raise ConfigError(problems, document="file")
    for option, path in files.items():
        if option not in kept and not _is_stream(path):
            Path(os.path.realpath(path)).unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Write a file, in a directory that is made where there is none; a device or a pipe is written to."""
    if _is_stream(path):
        with path.open("a", encoding="utf-8") as stream:
            stream.write(text)
        return
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft_of(target)
    draft.write_text(text, encoding="utf-8")
    draft.replace(target)


_OPENED = re.compile(r"/(proc|dev(?!/shm))/")
"""Begins the names of devices and of open files, whatever those are."""

_HEADS = (
    b'"schema_version"',
    b'{\n  "exit_code"',
    b'content="warmrank"',
    b'"otherData":{"launch"',
    b"# HELP warmrank_",
)
"""Each begins an output: JSON of a launch or build, of exec, a page, a trace, metrics."""


def _is_stream(path: Path) -> bool:
    return bool(_OPENED.match(str(path.absolute()))) or (path.exists() and not path.is_file())


def _fault_of(path: Path) -> str:
    """The reason why an output cannot be written at a path; empty where it can."""
    try:
        if _is_stream(path):
            is_open = os.access(path, os.W_OK) and not (path.is_dir() or path.is_socket())
            return "" if is_open else "no file, and nothing that can be written to"
        target = Path(os.path.realpath(path))
        if target.exists():
            with target.open("rb") as older:
                head = older.read(4096)
            if head and not any(mark in head for mark in _HEADS):
                return "a file that is none of warmrank's reports"
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = _draft_of(target)
        draft.touch()
        draft.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _draft_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")
