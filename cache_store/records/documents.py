"""Sealed documents in a backend: how they are written, read and judged, and which of several is the newest.

A document is returned only after its envelope was judged for the kind and key that were asked for. What is
damaged, whoever reads it, goes into quarantine; what is merely not trusted here stays until a publisher
replaces it. Of launch records many are read as summaries, few whole: a summary says nothing about the
partitions, so a record may turn out unusable when it is read whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import BinaryIO, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from warmrank.cache_store.backends.backend import BlobBackend, FileInfo, new_document
from warmrank.cache_store.backends.places import TieredBackend, read_from_any
from warmrank.cache_store.cache_dir.private_files import temporary_name
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import (
    Conflict,
    Corrupt,
    NotInStore,
    StoreError,
    StoreUnavailable,
    is_damage,
    os_errors_are_unavailable,
    outcome_of,
)
from warmrank.cache_store.layout import (
    LAUNCHES,
    RecordKind,
    manifest_name,
    quarantine_name,
    record_prefix,
    split_record_name,
)
from warmrank.cache_store.parallel import each
from warmrank.cache_store.parsing import MAX_DOCUMENT_BYTES, parse_document
from warmrank.cache_store.records.manifest import (
    Components,
    LaunchRecord,
    PartitionManifest,
    PartitionRef,
    Sha256,
    Utc,
    WorldSize,
    parse_launch_record,
    parse_manifest,
)
from warmrank.cache_store.signing.trust import DocumentKind, Trust, signer_id

logger = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R", LaunchRecord, "_Head")
L = TypeVar("L", "StoredLaunch", "LaunchSummary")
READERS: Final = 8
_RECORD = "launch record"
_MAX_ENVELOPE_BYTES = MAX_DOCUMENT_BYTES + 4096
_USUAL_BYTES = 64 << 10  # a buffer of the limit's size would be mapped and unmapped for each of thousands


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingManifest:
    """A manifest in the store."""

    manifest: PartitionManifest
    sha256: str  # of its stored form, which a launch record pins
    signer_id: str  # of the key that signed it; empty where nobody did

    def ref(self, key: str) -> PartitionRef:
        """The reference to this manifest, which stands under ``key``, in a launch record."""
        partition, rank = self.manifest.partition, self.manifest.rank
        return PartitionRef(partition=partition, rank=rank, manifest_key=key, manifest_sha256=self.sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """Reads and writes the sealed documents of one store."""

    backend: BlobBackend
    trust: Trust
    problems: list[str] = field(default_factory=list)  # a line for each document that was skipped

    def write(self, name: str, sealed: bytes) -> bool:
        """Create a sealed document; False when the name is taken."""
        return bool(self.backend.put_new([new_document(name, sealed)]))

    def read(self, kind: DocumentKind, key: str, name: str) -> tuple[bytes, bytes]:
        """Read a document without touching it; return its bytes and its stored form.

        Raises:
            NotInStore: there is none.
            Corrupt, NewerFormat, Untrusted: as `Trust.open_envelope`.
        """
        sealed = read_stored_form(self.backend, name)
        return self.trust.open_envelope(kind, key, sealed, where=name), sealed

    def read_record(self, kind: RecordKind, name: str) -> tuple[str, bytes, bytes]:
        """Read the record that ``name`` announces: its key, bytes and stored form; raises as `read`."""
        what, parts = _RECORD if kind == "launch" else "listing", split_record_name(name)
        if parts is None or parts.kind != kind:
            raise Corrupt(what=what, where=name, expected="a name of the layout", actual="another")
        payload, sealed = self.read(kind, parts.key, name)
        check_sha256(what, name, payload, parts.sha256)
        return parts.key, payload, sealed

    def read_manifest(self, key: str) -> StandingManifest:
        """Read the manifest of a partition key without touching it; raises as `read` does."""
        payload, sealed = self.read("manifest", key, name := manifest_name(key))
        manifest, sha256 = parse_manifest(payload, name), digest_bytes(sealed).sha256
        return StandingManifest(manifest=manifest, sha256=sha256, signer_id=signer_id(sealed))

    def take_manifest(self, key: str, *, expected_sha256: str | None = None) -> StandingManifest:
        """Read a manifest for use: what is damaged goes into quarantine.

        Raises `Conflict` where it is not the one that a launch record pins, else as `read_manifest`.
        """
        try:
            standing = self.read_manifest(key)
        except StoreError as error:
            quarantine_if_damaged(self.backend, manifest_name(key), error)
            raise
        if expected_sha256 in (None, standing.sha256):
            return standing
        raise Conflict(
            what=f"manifest {key[:12]}",
            where=manifest_name(key),
            expected=f"the stored form {str(expected_sha256)[:12]}",
            actual=standing.sha256[:12],
            remedy="it was published again since; the next launch commits a record that fits",
        )


def read_stored_form(backend: BlobBackend, name: str) -> bytes:
    """Read a document as it is stored, whatever it says; raises `Corrupt` for one that is too large."""

    def read(file: BinaryIO) -> bytes:
        with os_errors_are_unavailable("file", name):
            head = file.read(_USUAL_BYTES)
            if len(head) < _USUAL_BYTES:
                return head
            return head + file.read(_MAX_ENVELOPE_BYTES + 1 - _USUAL_BYTES)

    sealed = read_from_any(backend, name, read)
    if len(sealed) > _MAX_ENVELOPE_BYTES:
        expected = f"at most {_MAX_ENVELOPE_BYTES} bytes"
        raise Corrupt(what="document", where=name, expected=expected, actual="more")
    return sealed


def check_sha256(what: str, name: str, payload: bytes, sha256: str) -> None:
    """Make sure that a document is the one that its name announces; raises `Corrupt`."""
    if (actual := digest_bytes(payload).sha256) != sha256:
        raise Corrupt(what=what, where=name, expected=f"sha256 {sha256}", actual=actual)


def quarantine_if_damaged(backend: BlobBackend, name: str, error: StoreError) -> None:
    """Move a file away if ``error`` says that its bytes are wrong.

    A store that cannot be written is no reason to hide the fault that led here: that is only logged.
    """
    if is_damage(error):
        try:
            quarantine(backend, name, str(error))
        except StoreUnavailable as failure:
            logger.warning("%s stays where it is: %s", name, failure)


def quarantine(backend: BlobBackend, name: str, reason: str) -> None:
    """Move a file out of the way, with the reason beside it in that place, so that it can be put again.

    A name that is gone already is no error; one that cannot be moved is `StoreUnavailable`.
    """
    target = quarantine_name(name, temporary_name())
    if not backend.move(name, target):
        return
    logger.warning("Quarantined %s as %s: %s", name, target, reason)
    note = new_document(f"{target}.reason", f"{reason}\n".encode("utf-8", "replace"))
    for place in backend.alone() if isinstance(backend, TieredBackend) else (backend,):
        if place.stat([target]):
            place.put_new([note])


def take_usable(
    documents: Documents, names: Sequence[str], read: Callable[[Documents, str], T]
) -> tuple[T, ...]:
    """Results of ``read`` for the documents that can be used, in the order of ``names``, several at a time.

    Of those that cannot, the damaged go into quarantine, and ``documents`` notes each as a problem.
    """
    found: list[T] = []
    outcomes = each(lambda name: outcome_of(lambda: read(documents, name)), names, num_threads=READERS)
    for name, outcome in zip(names, outcomes, strict=True):
        if not isinstance(outcome, StoreError):
            found.append(outcome)
        elif not isinstance(outcome, NotInStore):  # else evicted, or put into quarantine, since the listing
            logger.info("Skipped a document: %s", outcome)  # callers show the problems
            if str(outcome) not in documents.problems:
                documents.problems.append(str(outcome))
            quarantine_if_damaged(documents.backend, name, outcome)
    return tuple(found)


def age(info: FileInfo, created_s: float) -> tuple[float, float, str]:
    """Sorts records, the newest first, by when the store got them, then by their own date (epoch seconds)."""
    return -info.written_s, -created_s, info.name


def seconds_of(created: str) -> float:
    """A document's own date in seconds since the epoch."""
    return datetime.fromisoformat(created).timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLaunch:
    """A launch record and its name in the store."""

    name: str
    record: LaunchRecord

    @property
    def created(self) -> str:
        """The record's own date."""
        return self.record.created


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSummary:
    """Name of a launch record in the store, and the fields by which launches are chosen."""

    name: str
    world_size: int
    environments: tuple[Mapping[str, str], ...]
    created: str
    payload: bytes = field(repr=False)  # the record, read once


class _Other(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")
    environment: Components


class _Head(BaseModel):
    """A launch record without its partitions, whose validation takes nine tenths of the time."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    format: Literal[1, 2]
    launch_key: Sha256
    world_size: WorldSize
    environment: Components
    others: tuple[_Other, ...] = ()
    created: Utc


def read_launch(documents: Documents, name: str) -> LaunchRecord:
    """Read one record without touching it; raises as `Documents.read`."""
    return _read(documents, name, parse_launch_record)[1]


def read_launches(documents: Documents, launch_key: str | None = None) -> tuple[StoredLaunch, ...]:
    """Read all records that can be used, or those of one key, newest first; see `take_usable`."""
    return _newest_first(documents, launch_key, _read_whole)


def take_launches(documents: Documents, summaries: Sequence[LaunchSummary]) -> tuple[StoredLaunch, ...]:
    """The records that were summarized, in their order; see `take_usable`."""
    payloads = {summary.name: summary.payload for summary in summaries}

    def parse(_: Documents, name: str) -> StoredLaunch:
        return StoredLaunch(name=name, record=parse_launch_record(payloads[name], name))

    return take_usable(documents, list(payloads), parse)


def summarize_launches(documents: Documents, launch_key: str) -> tuple[LaunchSummary, ...]:
    """Summaries of the records of one key, newest first; see `take_usable`."""
    return _newest_first(documents, launch_key, _summarize)


def launch_keys(documents: Documents) -> tuple[str, ...]:
    """All keys under which records stand, sorted."""
    names = (split_record_name(info.name) for info in documents.backend.list(LAUNCHES))
    return tuple(sorted({parts.key for parts in names if parts}))


def _newest_first(
    documents: Documents, launch_key: str | None, read: Callable[[Documents, str], L]
) -> tuple[L, ...]:
    prefix = LAUNCHES if launch_key is None else record_prefix("launch", launch_key)
    infos = {info.name: info for info in documents.backend.list(prefix)}
    found = take_usable(documents, list(infos), read)
    return tuple(sorted(found, key=lambda item: age(infos[item.name], seconds_of(item.created))))


def _read_whole(documents: Documents, name: str) -> StoredLaunch:
    return StoredLaunch(name=name, record=read_launch(documents, name))


def _summarize(documents: Documents, name: str) -> LaunchSummary:
    payload, head = _read(
        documents, name, lambda data, where: parse_document(_Head, data, what=_RECORD, where=where)
    )
    return LaunchSummary(
        name=name,
        world_size=head.world_size,
        environments=(head.environment, *(other.environment for other in head.others)),
        created=head.created,
        payload=payload,
    )


def _read(documents: Documents, name: str, parse: Callable[[bytes, str], R]) -> tuple[bytes, R]:
    key, payload, _ = documents.read_record("launch", name)
    record = parse(payload, name)
    if record.launch_key != key:
        raise Corrupt(what=_RECORD, where=name, expected=key, actual=record.launch_key)
    return payload, record
