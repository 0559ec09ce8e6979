"""The documents of the store, a manifest, a launch record and a listing of a directory, with their types.

Layout: canonical JSON of the models below (field by field as declared), sealed by
`cache_store.signing.trust`.

    PartitionManifest   {"format":1,"partition":"world2global_rank0","rank":0,"world_size":2,
                         "environment":{...},"requests":[...],"artifacts":[...],"captures":[...],"created":"..."}
                        (format 2 has node artifacts: "scope":"node" in an entry; or runtime state)
    LaunchRecord        {"format":1,"launch_key":"...","identity":{...},"world_size":2,
                         "environment":{...},"partitions":[...],"created":"..."}
                        (format 2 has "others": the ranks of other environments than rank 0's)
    DirectoryListing    {"format":1,"tool":"vllm","components":{...},"root":"/root/.cache/vllm","files":[
                         {"path":"a/b","sha256":"...","size_bytes":N,"executable":false,"names_root":false}],
                         "created":"..."}

Every number, size and length has a limit, so that no document, not even a signed one, fills a node's disk or
memory. A document gives no modes, owners or links. Every path may be joined to a directory
(`cache_store.paths`), and names a variant, a file beside one or, of a node artifact only, a file of a node
cache. What format 1 cannot say is of format 2, so that an earlier release passes it over as newer; all else
is of format 1, with the bytes that it always had.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    model_serializer,
    model_validator,
)

from warmrank.cache_store.cache_dir.local import VARIANT_NAME, is_companion_name, is_variant_name
from warmrank.cache_store.cache_dir.node_files import NODE, NodeFile, kept_path, split_node_path
from warmrank.cache_store.canonical import canonical_json, key_of
from warmrank.cache_store.digests import Digest
from warmrank.cache_store.parsing import Strict, parse_document
from warmrank.cache_store.paths import collision, part_fault, path_fault, refusing, shown

MAX_ENTRIES = 10_000  # artifacts, requests and captures of one rank, each; a large model has some hundreds
MAX_RANKS = 1 << 16
MAX_FILE_BYTES = 16 << 30  # kernels that come with an artifact have at most some GiB
MAX_PARTITION_BYTES = 64 << 30
MAX_COMPONENTS = 10_000
MAX_NAME_CHARS = 4096  # of a function, or of a component, which may hold the path of a source file
MAX_LISTED_FILES = 100_000
MAX_ROOT_CHARACTERS = 4096
MAX_TEXT_CHARS = 1 << 20  # the value of a component, or the signature of a capture
OF_ONE_RUN: Final = "run"
"""Component of a listing that serves one run only: it is no newest of its key, and no directory of a tool."""


def _utc(text: str) -> str:
    if len(text) > 40 or datetime.fromisoformat(text).utcoffset() != timedelta(0):
        raise ValueError(f"{shown(text)} is no time in UTC")
    return text


HexKey = Annotated[str, Field(pattern=r"^[0-9a-f]{32,128}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Utc = Annotated[str, AfterValidator(_utc)]
PartitionName = Annotated[str, AfterValidator(refusing(part_fault, "partition"))]
Count = Annotated[int, Field(ge=0)]
FileSize = Annotated[int, Field(ge=0, le=MAX_FILE_BYTES)]
WorldSize = Annotated[int, Field(ge=1, le=MAX_RANKS)]
Name = Annotated[str, Field(max_length=MAX_NAME_CHARS)]
Text = Annotated[str, Field(max_length=MAX_TEXT_CHARS)]
Components = Annotated[dict[Name, Text], Field(max_length=MAX_COMPONENTS)]


class Document(Strict):
    """Base of every document in the store."""

    def to_bytes(self) -> bytes:
        """Canonical JSON of this document; equal documents have equal bytes."""
        # Not in pydantic's JSON mode: fields hold text, numbers and collections of them, whose keys are text.
        return canonical_json(self.model_dump(), keys_are_text=True)


def _without(field: str, usual: object) -> Any:
    """Leave a field out of a model's JSON where it has its usual value, as documents older than it do."""

    def serialize(self: Document, dump: SerializerFunctionWrapHandler) -> dict[str, object]:
        found: dict[str, object] = dump(self)
        if getattr(self, field) == usual:
            found.pop(field, None)
        return found

    return model_serializer(mode="wrap")(serialize)


def _set_format(document: PartitionManifest | LaunchRecord, *, is_newest: bool) -> None:
    """Find the format of a document that is being made, which is not frozen yet."""
    if "format" not in document.model_fields_set and is_newest:
        document.__dict__["format"] = NEWEST_FORMAT
        document.model_fields_set.add("format")


class BlobEntry(Document):
    """Digest and size, in a document, of a file whose bytes are a blob."""

    sha256: Sha256
    size_bytes: FileSize

    @property
    def digest(self) -> Digest:
        """Digest that the file's bytes must have."""
        return Digest(sha256=self.sha256, size_bytes=self.size_bytes)


FORMAT: Final = 1
NEWEST_FORMAT: Final = 2


def _artifact_path(path: str, entry: ValidationInfo) -> str:
    if fault := path_fault(path):
        raise ValueError(f"path {shown(path)} {fault}")
    if entry.data.get("scope") == NODE:
        parts = split_node_path(path)
        if parts is None or parts[0] != entry.data.get("function"):
            raise ValueError(f"path {shown(path)} is no file of the node cache that the entry names")
        return path
    if hidden := next((part for part in path.split("/") if part.startswith(".")), ""):
        raise ValueError(
            f"path {shown(path)} has the part {shown(hidden)}: dots begin the names of marks and locks"
        )
    name = path.rpartition("/")[2]
    if not (is_variant_name(name) or is_companion_name(name)) or "/" not in path:
        raise ValueError(f"path {shown(path)} is no {VARIANT_NAME} in a function's directory")
    return path


class ArtifactEntry(BlobEntry):
    """One artifact of one cached function, or of a node.

    Scope ``rank`` is left out of the JSON, as in documents that are older than the field.
    """

    scope: Literal["rank", "node"] = "rank"
    function: Name  # such as ``Llama.decode``; for a node's, its node cache
    # Posix, below the cache root; a node's as `node_files` calls it.
    path: Annotated[str, AfterValidator(_artifact_path)]
    request_key: HexKey
    provenance: HexKey  # digest of all that determined the bytes; for a node's, of the bytes themselves

    _without_usual_scope = _without("scope", "rank")

    def node_file(self) -> NodeFile | None:
        """The node artifact that this is; None for a rank's."""
        parts = split_node_path(self.path) if self.scope == "node" else None
        return NodeFile(cache=parts[0], relative=parts[1], digest=self.digest) if parts else None

    def local_path(self, cache_root: Path) -> Path:
        """Path of the bytes below a cache directory."""
        return kept_path(cache_root, self.sha256) if self.scope == "node" else cache_root / self.path


class RequestEntry(Document):
    """A request, kept so that a miss can be explained.

    ``key`` is that of the components; ``runtime_state``, what the function's module had declared, is no part
    of it, and left out of the JSON where it is empty, as in documents that are older than the field.
    """

    function: Name
    key: HexKey
    components: Components
    runtime_state: Components = Field(default_factory=dict)

    _without_empty_state = _without("runtime_state", {})


class CaptureEntry(Document):
    """One graph that a launch captured, and a later one captures before its first call."""

    function: Name  # the call of the workload, such as ``Llama.decode[1]``
    signature: Text  # its shapes; layout in `worker.capture.plan`


class PartitionManifest(Document):
    """All artifacts of one rank, and those of its node where it is the node's first.

    Format 2 is for what format 1 cannot say; found by itself where it is not given.
    """

    format: Literal[1, 2] = FORMAT
    partition: PartitionName
    rank: Count
    world_size: WorldSize
    environment: Components
    requests: Annotated[tuple[RequestEntry, ...], Field(max_length=MAX_ENTRIES)]
    artifacts: Annotated[tuple[ArtifactEntry, ...], Field(max_length=MAX_ENTRIES)]
    captures: Annotated[tuple[CaptureEntry, ...], Field(max_length=MAX_ENTRIES)]
    created: Utc

    @model_validator(mode="after")
    def _check(self) -> PartitionManifest:
        has_state = any(request.runtime_state for request in self.requests)
        _set_format(self, is_newest=has_state or any(entry.scope == NODE for entry in self.artifacts))
        if self.format == FORMAT and self.node_files():
            raise ValueError("node artifacts in a manifest of format 1")
        if self.rank >= self.world_size:
            raise ValueError(f"rank {self.rank} is not below world size {self.world_size}")
        for scope in ("rank", "node"):  # apart: a node's lie by their digests, whatever they are called
            if fault := collision(entry.path for entry in self.artifacts if entry.scope == scope):
                raise ValueError(fault)
        total = sum(entry.size_bytes for entry in self.artifacts)
        if total > MAX_PARTITION_BYTES:
            raise ValueError(f"artifacts of {total} bytes together, at most {MAX_PARTITION_BYTES}")
        return self

    def node_files(self) -> tuple[NodeFile, ...]:
        """The node artifacts, in their order."""
        found = (entry.node_file() for entry in self.artifacts)
        return tuple(file for file in found if file is not None)


class PartitionRef(Document):
    """Key of one rank's manifest in a launch record, and the digest of its exact bytes."""

    partition: PartitionName
    rank: Count
    manifest_key: Sha256
    manifest_sha256: Sha256


class RankEnvironment(Document):
    """An environment other than rank 0's, and the ranks of a launch that ran in it."""

    ranks: Annotated[tuple[Count, ...], Field(min_length=1, max_length=MAX_RANKS)]
    environment: Components


class Environments(Document):
    """The environments of a launch's ranks; ``others`` is left out of the JSON where there are none."""

    environment: Components  # of rank 0, and of every rank that ``others`` does not name
    others: Annotated[tuple[RankEnvironment, ...], Field(max_length=MAX_RANKS)] = ()

    @model_validator(mode="after")
    def _each_rank_once(self) -> Environments:
        ranks = [rank for other in self.others for rank in other.ranks]
        if len(set(ranks)) < len(ranks) or 0 in ranks:
            raise ValueError(f"ranks {_summary(ranks)} of other environments: each once, and never rank 0")
        return self

    _without_no_others = _without("others", ())

    @property
    def environments(self) -> tuple[Mapping[str, str], ...]:
        """Each environment once, rank 0's first."""
        return self.environment, *(other.environment for other in self.others)


def environments_of(ranks: Mapping[int, Mapping[str, str]]) -> Environments:
    """The environments of a launch, from each rank's own."""
    first = dict(ranks[min(ranks)])
    others: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for rank in sorted(ranks):
        if ranks[rank] != first:
            others.setdefault(tuple(sorted(ranks[rank].items())), []).append(rank)
    return Environments(
        environment=first,
        others=tuple(
            RankEnvironment(ranks=tuple(found), environment=dict(items)) for items, found in others.items()
        ),
    )


class LaunchRecord(Environments):
    """All partitions of one launch; committed last, so a launch is whole in the store or absent.

    Format 2 is for what format 1 cannot say; found by itself where it is not given.
    """

    format: Literal[1, 2] = FORMAT
    launch_key: Sha256
    identity: Components
    world_size: WorldSize
    partitions: Annotated[tuple[PartitionRef, ...], Field(max_length=MAX_RANKS)]
    created: Utc

    @model_validator(mode="after")
    def _check(self) -> LaunchRecord:
        _set_format(self, is_newest=bool(self.others))
        if self.format == FORMAT and self.others:
            raise ValueError("several environments in a launch record of format 1")
        if any(rank >= self.world_size for other in self.others for rank in other.ranks):
            raise ValueError(f"environments of ranks that are not below world size {self.world_size}")
        ranks = [ref.rank for ref in self.partitions]
        if sorted(ranks) != list(range(self.world_size)):
            raise ValueError(f"ranks {_summary(ranks)} are not each of 0..{self.world_size - 1} once")
        names = Counter(ref.partition for ref in self.partitions)
        if twice := sorted(name for name, count in names.items() if count > 1):
            raise ValueError(f"partition {twice[0]!r} appears twice")
        return self

    def made_in(self, environment: Mapping[str, str]) -> tuple[PartitionRef, ...]:
        """The partitions of ranks that ran in an environment."""
        others = {rank: other.environment for other in self.others for rank in other.ranks}
        return tuple(ref for ref in self.partitions if others.get(ref.rank, self.environment) == environment)


def _summary(ranks: list[int]) -> str:
    shown = ", ".join(map(str, sorted(ranks)[:8]))
    return f"[{shown}{', ...' if len(ranks) > 8 else ''}]"


class ListedFile(BlobEntry):
    """One file of a directory, by its posix path below that."""

    path: Annotated[str, AfterValidator(refusing(path_fault, "path"))]
    executable: bool  # by its owner
    names_root: bool  # its bytes contain the directory's absolute path


class DirectoryListing(Document):
    """All files of a directory, sorted by path.

    ``tool`` says how it may be relocated; ``components`` must be equal for it to be restored; ``root`` is its
    absolute path where it was read.
    """

    format: Literal[1] = 1
    tool: Annotated[str, AfterValidator(refusing(part_fault, "name"))]
    components: Components
    root: Annotated[str, Field(max_length=MAX_ROOT_CHARACTERS)]
    files: Annotated[tuple[ListedFile, ...], Field(max_length=MAX_LISTED_FILES)]
    created: Utc

    @model_validator(mode="after")
    def _check(self) -> DirectoryListing:
        if fault := collision(file.path for file in self.files):
            raise ValueError(fault)
        return self

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)


def listing_key(tool: str, components: dict[str, str]) -> str:
    """Key under which listings of ``tool`` with these components stand."""
    return key_of({"tool": tool, **{f"component {name}": value for name, value in components.items()}})


def utc_now() -> str:
    """The current time as the documents spell it, such as ``2026-01-31T12:00:00.000000+00:00``."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def partition_key(launch_key: str, manifest: PartitionManifest) -> str:
    """Key of a manifest: what determined its artifacts' bytes, never the bytes themselves.

    So two publishers with one key and different digests have found a compile that is not deterministic. Files
    beside a variant are left out: their names come from their bytes, which the variant's bytes tell as well.
    A node artifact counts with its bytes: another set is another manifest, so that later ones are kept too.
    """
    entries = sorted(
        [entry.function, entry.path, entry.provenance]
        for entry in manifest.artifacts
        if not is_companion_name(entry.path.rpartition("/")[2])
    )
    return key_of(
        {
            "launch_key": launch_key,
            "partition": manifest.partition,
            "artifacts": canonical_json(entries).decode("utf-8"),
        }
    )


def parse_manifest(data: bytes, where: str) -> PartitionManifest:
    """Read a manifest's canonical JSON; raises as `parse_document`."""
    return parse_document(PartitionManifest, data, what="manifest", where=where)


def parse_launch_record(data: bytes, where: str) -> LaunchRecord:
    """Read a launch record's canonical JSON; raises as `parse_document`."""
    return parse_document(LaunchRecord, data, what="launch record", where=where)


def parse_listing(data: bytes, where: str) -> DirectoryListing:
    """Read a listing's canonical JSON; raises as `parse_document`."""
    return parse_document(DirectoryListing, data, what="listing", where=where)
