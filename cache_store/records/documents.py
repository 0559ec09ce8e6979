"""Sealed documents in a store: how they are written, read and judged, and which of several is the newest.

A document is returned only after its envelope was judged for the kind and key that were asked for. What is
damaged, whoever reads it, goes into quarantine; what is merely not trusted here stays until a publisher
replaces it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from typing import Final, NamedTuple, TypeVar

from warmrank.cache_store.backends.backend import FileInfo, GuardedFile, new_document
from warmrank.cache_store.backends.places import Places
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import (
    Conflict,
    Corrupt,
    NotInStore,
    StoreError,
    StoreUnavailable,
    outcome_of,
)
from warmrank.cache_store.layout import (
    DIRECTORIES,
    LAUNCHES,
    RecordKind,
    manifest_name,
    record_prefix,
    split_record_name,
)
from warmrank.cache_store.parallel import each
from warmrank.cache_store.parsing import MAX_DOCUMENT_BYTES
from warmrank.cache_store.records.manifest import (
    DirectoryListing,
    LaunchRecord,
    PartitionManifest,
    PartitionRef,
    listing_key,
    parse_launch_record,
    parse_listing,
    parse_manifest,
)
from warmrank.cache_store.signing.trust import DocumentKind, Trust, signer_id
from warmrank.cache_store.text import explain_miss, time_text

logger = logging.getLogger(__name__)
T = TypeVar("T")
READERS: Final = 8
_MAX_ENVELOPE_BYTES = MAX_DOCUMENT_BYTES + 4096
_USUAL_BYTES = 64 << 10  # a buffer of the limit's size would be mapped and unmapped for each of thousands


class StandingManifest(NamedTuple):
    """A manifest in the store."""

    manifest: PartitionManifest
    sha256: str  # of its stored form, which a launch record pins
    signer_id: str  # of the key that signed it; empty where nobody did

    def ref(self, key: str) -> PartitionRef:
        """The reference to this manifest, which stands under ``key``, in a launch record."""
        partition, rank = self.manifest.partition, self.manifest.rank
        return PartitionRef(partition=partition, rank=rank, manifest_key=key, manifest_sha256=self.sha256)


class StoredLaunch(NamedTuple):
    """A launch record and its name in the store."""

    name: str
    record: LaunchRecord
    sha256: str  # of its stored form

    @property
    def created(self) -> str:
        """The record's own date."""
        return self.record.created


class StoredListing(NamedTuple):
    """A listing and its name in the store."""

    name: str
    listing: DirectoryListing
    signer_id: str  # of the key that signed it; empty where nobody did

    @property
    def created(self) -> str:
        """The listing's own date."""
        return self.listing.created


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """Reads and writes the sealed documents of one store."""

    places: Places
    trust: Trust
    problems: list[str] = field(default_factory=list)  # a line for each document that was skipped
    repairs: bool = True  # what is damaged goes into quarantine

    def write(self, name: str, sealed: bytes) -> bool:
        """Create a sealed document; False when the name is taken."""
        return bool(self.places.put_new([new_document(name, sealed)]))

    def read(
        self, kind: DocumentKind, key: str, name: str, parse: Callable[[bytes, str], T]
    ) -> tuple[T, bytes]:
        """Read a document; return what ``parse`` makes of it, and its stored form.

        Raises:
            NotInStore: there is none.
            Corrupt, NewerFormat, Untrusted: as `Trust.open_envelope`.
        """

        def judge(file: GuardedFile) -> tuple[T, bytes]:
            sealed = _stored_form(file, name)
            return parse(self.trust.open_envelope(kind, key, sealed, where=name), name), sealed

        return self.places.read(name, judge, repairs=self.repairs)

    def read_record(
        self, kind: RecordKind, name: str, parse: Callable[[bytes, str], T], key_of: Callable[[T], str]
    ) -> tuple[T, bytes]:
        """Read the record that ``name`` announces, by its key and digest; raises as `read`."""
        parts = split_record_name(name)
        key, sha256 = (parts.key, parts.sha256) if parts else ("", "")

        def check(payload: bytes, name: str) -> T:
            check_sha256(kind, name, payload, sha256)
            record = parse(payload, name)
            if key_of(record) != key:
                raise Corrupt(what=kind, where=name, expected=f"key {key}", actual=key_of(record))
            return record

        return self.read(kind, key, name, check)

    def manifest(self, key: str, *, expected_sha256: str | None = None) -> StandingManifest:
        """Read the manifest of a partition key.

        Raises `Conflict` where it is not the one that a launch record pins, else as `read`.
        """
        manifest, sealed = self.read("manifest", key, name := manifest_name(key), parse_manifest)
        standing = StandingManifest(manifest, digest_bytes(sealed).sha256, signer_id(sealed))
        if expected_sha256 in (None, standing.sha256):
            return standing
        raise Conflict(
            what=f"manifest {key[:12]}",
            where=name,
            expected=f"the stored form {str(expected_sha256)[:12]}",
            actual=standing.sha256[:12],
            remedy="it was published again since; the next launch commits a record that fits",
        )

    def launch(self, name: str) -> StoredLaunch:
        """Read one launch record; raises as `read`."""
        record, sealed = self.read_record(
            "launch", name, parse_launch_record, lambda record: record.launch_key
        )
        return StoredLaunch(name, record, digest_bytes(sealed).sha256)

    def launches(self, launch_key: str | None = None) -> Iterator[StoredLaunch]:
        """All launch records that can be used, or those of one key; see `newest_first`."""
        prefix = LAUNCHES if launch_key is None else record_prefix("launch", launch_key)
        return self.newest_first(self.places.list(prefix), self.launch, lambda stored: stored.created)

    def newest_first(
        self,
        infos: Iterable[FileInfo],
        read: Callable[[str], T],
        created: Callable[[T], str],
        *,
        at_once: int = READERS,
    ) -> Iterator[T]:
        """The results of ``read`` for records that can be used, the newest first, a few read ``at_once``.

        Of those that cannot be used, each is a problem.
        """
        batch: dict[str, FileInfo] = {}
        newest = sorted(infos, key=lambda info: -info.written_s)
        for _, same_age in groupby(newest, lambda info: info.written_s):
            batch |= {info.name: info for info in same_age}
            if len(batch) >= at_once:
                yield from self._usable(batch, read, created)
                batch = {}
        yield from self._usable(batch, read, created)

    def _usable(
        self, infos: dict[str, FileInfo], read: Callable[[str], T], created: Callable[[T], str]
    ) -> list[T]:
        found: list[tuple[tuple[float, float, str], T]] = []
        outcomes = each(lambda name: outcome_of(lambda: read(name)), list(infos), num_threads=READERS)
        for info, outcome in zip(infos.values(), outcomes, strict=True):
            if not isinstance(outcome, StoreError):
                found.append((age(info, seconds_of(created(outcome))), outcome))
            elif not isinstance(
                outcome, NotInStore
            ):  # else evicted, or put into quarantine, since the listing
                logger.info("Skipped a document: %s", outcome)  # callers show the problems
                if str(outcome) not in self.problems:
                    self.problems.append(str(outcome))
        return [outcome for _, outcome in sorted(found, key=lambda item: item[0])]


def read_stored_form(places: Places, name: str) -> bytes:
    """Read a document as it is stored, whatever it says; raises `Corrupt` for one that is too large."""
    return places.read(name, lambda file: _stored_form(file, name), repairs=False)


def _stored_form(file: GuardedFile, name: str) -> bytes:
    sealed = file.read(_USUAL_BYTES)
    if len(sealed) == _USUAL_BYTES:
        sealed += file.read(_MAX_ENVELOPE_BYTES + 1 - _USUAL_BYTES)
    if len(sealed) > _MAX_ENVELOPE_BYTES:
        expected = f"at most {_MAX_ENVELOPE_BYTES} bytes"
        raise Corrupt(what="document", where=name, expected=expected, actual="more")
    return sealed


def check_sha256(what: str, name: str, payload: bytes, sha256: str) -> None:
    """Make sure that a document is the one that its name announces; raises `Corrupt`."""
    if (actual := digest_bytes(payload).sha256) != sha256:
        raise Corrupt(what=what, where=name, expected=f"sha256 {sha256}", actual=actual)


def age(info: FileInfo, created_s: float) -> tuple[float, float, str]:
    """Sorts records, the newest first, by when the store got them, then by their own date (epoch seconds)."""
    return -info.written_s, -created_s, info.name


def seconds_of(created: str) -> float:
    """A document's own date in seconds since the epoch."""
    return datetime.fromisoformat(created).timestamp()


def newest_listing(documents: Documents, key: str) -> StoredListing:
    """The newest usable listing under ``key``.

    Older ones are not read: each may have many MiB.

    Raises:
        NotInStore: there is none.
        StoreUnavailable: none can be used, and one could not be read.
    """
    where = record_prefix("directory", key)
    unread: list[StoreUnavailable] = []
    if found := _newest_of(documents, documents.places.list(where), unread):
        return found
    if unread:
        raise unread[0]
    raise NotInStore(what=f"listing {key[:12]}", where=where, remedy="push it first")


def nearest_listing(documents: Documents, tool: str, components: dict[str, str]) -> str:
    """One line that says which components differ from the nearest of the newest listings of ``tool``."""
    candidates = [
        (f"the directory pushed {time_text(found.created)}", found.listing.components)
        for found in newest_listings(replace(documents, problems=[]))
        if found.listing.tool == tool
    ]
    return explain_miss(components, candidates)


def newest_listings(documents: Documents) -> tuple[StoredListing, ...]:
    """The newest usable listing of each key."""
    infos = sorted(documents.places.list(DIRECTORIES), key=lambda info: info.name)
    newest = (
        _newest_of(documents, same_key)
        for _, same_key in groupby(infos, lambda info: info.name.rpartition("/")[0])
    )
    return tuple(found for found in newest if found is not None)


def _newest_of(
    documents: Documents, infos: Iterable[FileInfo], unread: list[StoreUnavailable] | None = None
) -> StoredListing | None:
    def read(name: str) -> StoredListing:
        try:
            return read_listing(documents, name)
        except StoreUnavailable as error:
            if unread is not None:
                unread.append(error)
            raise

    return next(documents.newest_first(infos, read, lambda stored: stored.created, at_once=1), None)


def read_listing(documents: Documents, name: str) -> StoredListing:
    """Read one listing; raises as `Documents.read`."""
    listing, sealed = documents.read_record(
        "directory", name, parse_listing, lambda made: listing_key(made.tool, made.components)
    )
    return StoredListing(name, listing, signer_id(sealed))
