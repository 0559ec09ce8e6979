"""The report of a launch: one document of plain frozen values, as JSON with a published, versioned schema.

Durations are in seconds, sizes in bytes. `SCHEMA_VERSION` rises with any change that could break a reader.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from warmrank.cache_store.backends.places import TierState
from warmrank.cache_store.records.manifest import RankEnvironment
from warmrank.orchestrator.causes import Cause
from warmrank.orchestrator.errors import BadArgument, ConfigError, ConfigProblem
from warmrank.orchestrator.launch.state import Course
from warmrank.orchestrator.nodes import NodeArtifacts
from warmrank.orchestrator.whole_file import write_whole
from warmrank.worker.results import Outcome, StageSeconds, Verification
from warmrank.worker.settings import settings

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 4

_NO_UNICODE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionReport:
    """Outcome of one cached function on one rank.

    Attributes:
        function: name of the cached function.
        outcome: how the rank got its artifact.
        reason: why this outcome; for a compile, why nothing could be loaded or adopted.
        request_key: hex key of what was asked; empty for a script workload.
        digest: sha256 hex of the artifact.
        size_bytes: size of the artifact.
        beside: SHA-256 and size of each file beside it, such as compiled kernels.
        path: where the artifact lies on the rank's node.
        seconds: seconds in each stage.
        num_captures: graphs captured for this function when its first call was through, in all its calls.
        pool_bytes: bytes of the pools that these graphs use, which other functions may share.
        runtime_state: declared values that the artifact was made with, name -> text.
    """

    function: str
    outcome: Outcome
    reason: str
    request_key: str
    digest: str
    size_bytes: int
    path: str
    seconds: StageSeconds
    num_captures: int = 0
    beside: tuple[tuple[str, int], ...] = ()
    pool_bytes: int = 0
    runtime_state: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """One rank: where it ran, and what became of each function.

    Attributes:
        rank: global rank.
        host: host name of its node.
        node_rank: index of its node.
        local_rank: index within its node.
        pid: its process.
        log: file that the rank's log and output went to; empty when it ran in the driver's process.
        functions: its cached functions, in call order.
        verification: comparison with the reference; none for a script workload.
    """

    rank: int
    host: str
    node_rank: int
    local_rank: int
    pid: int
    log: str
    functions: tuple[FunctionReport, ...]
    verification: Verification | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReport:
    """Wall seconds of one stage, summed over its rounds or steps."""

    stage: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFetch:
    """Transfer of one node from the store before its ranks were built.

    Attributes:
        node_rank: index of the node.
        host: its host name.
        found: a launch that fits was in the store.
        reason: why, in one line.
        num_partitions: partitions laid out.
        bytes_copied: bytes written to the node's cache directory.
        seconds: wall seconds.
    """

    node_rank: int
    host: str
    found: bool
    reason: str
    num_partitions: int
    bytes_copied: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePublish:
    """Publishing of one node's ranks.

    Attributes:
        node_rank: index of the node.
        host: its host name.
        num_partitions: partitions that are in the store now.
        num_blobs_new: blobs that the store did not have.
        bytes_new: their size.
        num_queued: partitions that wait on the node's disk, because the store was away.
    """

    node_rank: int
    host: str
    num_partitions: int
    num_blobs_new: int
    bytes_new: int
    num_queued: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """Outcome of the artifacts of one node.

    Attributes:
        node_rank: index of the node.
        host: its host name.
        artifacts: what became of them.
    """

    node_rank: int
    host: str
    artifacts: NodeArtifacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Nondeterministic:
    """A function that compiled to other bytes here than those that the store holds for the same request."""

    function: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """Outcome of the last stage: in the store, or waiting for it.

    Attributes:
        record: the launch record's key; empty when there is none in the store.
        publishes: every node whose ranks published or queued something, in order.
        nondeterministic: by function.
        queued_on: hosts on whose disks something waits to be published, in the order in which it must be.
        unsigned: why nothing can be signed here though signatures are asked for; empty otherwise.
    """

    record: str = ""
    publishes: tuple[NodePublish, ...] = ()
    nondeterministic: tuple[Nondeterministic, ...] = ()
    queued_on: tuple[str, ...] = ()
    unsigned: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over all ranks.

    Attributes:
        num_compiled: functions compiled; 0 in a warm launch.
        num_loaded: functions loaded from the rank's own partition.
        num_adopted: functions that use another rank's or another world's artifact.
        num_artifacts: distinct artifacts.
        num_files: these and the distinct files beside them.
        artifact_bytes: bytes of these files.
        num_nondeterministic: functions that compiled to other bytes than the store holds.
        fetched_bytes: bytes copied from the store, over all nodes.
        published_bytes: bytes that were new to the store, over all nodes.
        num_queued: partitions that wait on nodes' disks to be published.
        function_seconds: seconds in each stage, summed over ranks and functions.
        wall_s: wall seconds of the launch, from start to commit.
    """

    num_compiled: int
    num_loaded: int
    num_adopted: int
    num_artifacts: int
    num_files: int
    artifact_bytes: int
    num_nondeterministic: int
    fetched_bytes: int
    published_bytes: int
    num_queued: int
    function_seconds: StageSeconds
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Failure of a launch that did not end with every rank warm.

    Attributes:
        kind: name of the error's type.
        message: its text, as the command line prints it.
        stage: the stage that failed; empty where the error is not one of a stage.
        causes: equal causes grouped, those that others follow from first; empty likewise.
        silent: ranks that had not answered when the launch was stopped.
    """

    kind: str
    message: str
    stage: str = ""
    causes: tuple[Cause, ...] = ()
    silent: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A launch: one that ended with every rank warm, or one that failed, as far as it came.

    Attributes:
        schema_version: `SCHEMA_VERSION` of the writer.
        outcome: whether every rank is warm.
        exit_code: what the command line ends with.
        failure: why not every rank is warm; None where every rank is.
        course: attempts, classes of ranks, and when each stage ended where.
        name: the launch's name.
        launch_key: hash of ``identity``.
        identity: named components of what was launched.
        environment: named components of rank 0's environment; empty where no rank came up.
        other_environments: those of ranks that ran in others, with the ranks.
        world_size: number of ranks.
        parallel: sizes of the parallel axes, by name.
        started: ISO 8601 in UTC.
        cache_dir: the cache directory on each node.
        store: the store's location; empty when there is none.
        tiers: the store's places, nearest first.
        record: key of the launch record in the store; empty when nothing was committed.
        ranks: every rank, in order; those that had places, where the launch failed.
        fetches: every node, in order; empty without a store.
        node_artifacts: every node that has node caches, in order.
        publishes: every node that published something or wanted to, in order.
        nondeterministic: functions whose compile gave other bytes than the store holds.
        queued_on: hosts on which `warmrank store publish` has to be run when the store answers, in order.
        stages: every stage, in order.
        totals: sums.
        problems: what did not stop the launch, but should be looked at.
        config: the words that named the config on the command line, its path and each ``--set``; empty where
            none did.
        unsigned: why nothing can be signed here though signatures are asked for; empty otherwise.
    """

    schema_version: int
    outcome: Literal["warm", "failed"]
    exit_code: int
    failure: Failure | None
    course: Course
    name: str
    launch_key: str
    identity: dict[str, str]
    environment: dict[str, str]
    other_environments: tuple[RankEnvironment, ...]
    world_size: int
    parallel: dict[str, int]
    started: str
    cache_dir: str
    store: str
    tiers: tuple[TierState, ...]
    record: str
    ranks: tuple[RankReport, ...]
    fetches: tuple[NodeFetch, ...]
    publishes: tuple[NodePublish, ...]
    nondeterministic: tuple[Nondeterministic, ...]
    queued_on: tuple[str, ...]
    stages: tuple[StageReport, ...]
    totals: Totals
    problems: tuple[str, ...]
    node_artifacts: tuple[NodeReport, ...] = ()
    config: tuple[str, ...] = ()
    unsigned: str = ""


@cache
def _adapter() -> TypeAdapter[Report]:
    return TypeAdapter(Report)


def report_schema() -> dict[str, Any]:
    """The JSON Schema of a report."""
    schema = described(_adapter().json_schema())
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "warmrank launch report"
    schema["properties"]["schema_version"]["const"] = SCHEMA_VERSION
    return schema


def to_json(report: Report) -> str:
    """The report as indented JSON text, with a newline at its end."""
    try:
        return _adapter().dump_json(report, indent=2).decode() + "\n"
    except PydanticSerializationError:
        plain = _adapter().dump_python(report, mode="json")
        return spelled_out(json.dumps(plain, indent=2, ensure_ascii=False)) + "\n"


def spelled_out(json_text: str) -> str:
    r"""JSON text that can be written: of a file name that is no text, ``\udcff`` and the like stand there."""
    return _NO_UNICODE.sub(lambda found: rf"\\u{ord(found[0]):04x}", json_text)


def from_json(text: str) -> Report:
    """Read what `to_json` wrote.

    Raises:
        pydantic.ValidationError: the text is no report of this schema version.
    """
    return _adapter().validate_json(text)


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
    ranks: tuple[RankReport, ...], fetches: tuple[NodeFetch, ...], committed: Committed, wall_s: float
) -> Totals:
    """Sum up what the ranks report."""
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
        num_nondeterministic=len(committed.nondeterministic),
        published_bytes=sum(node.bytes_new for node in committed.publishes),
        num_queued=sum(node.num_queued for node in committed.publishes),
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


_ATTRIBUTE = re.compile(r"    (\w+): (.*)")
_MARKS = str.maketrans({"`": None})


def described(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema with descriptions for people in place of whole docstrings."""
    parts = {name: _with_words(part) for name, part in schema.get("$defs", {}).items()}
    return {**_with_words(schema), **({"$defs": parts} if parts else {})}


def _with_words(part: dict[str, Any]) -> dict[str, Any]:
    if "description" not in part:
        return part
    doc = inspect.cleandoc(part["description"])
    words = attributes(doc)
    known = part.get("properties", {})
    properties = {
        name: {**value, "description": words[name]} if name in words else value
        for name, value in known.items()
    }
    return {
        **part,
        "description": _one_line(doc.partition("\n\n")[0]),
        **({"properties": properties} if known else {}),
    }


def attributes(doc: str) -> dict[str, str]:
    """Attributes' descriptions in a docstring with cleaned indentation; lines that go on are joined."""
    found: dict[str, str] = {}
    name = ""
    for line in doc.partition("Attributes:\n")[2].splitlines():
        if match := _ATTRIBUTE.fullmatch(line):
            name = match[1]
            found[name] = match[2]
        elif name and line.startswith("     "):
            found[name] += f" {line.strip()}"
        else:
            break
    return {name: _one_line(text) for name, text in found.items()}


def _one_line(text: str) -> str:
    return " ".join(text.translate(_MARKS).split())
