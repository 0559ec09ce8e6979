"""A store's files, read once by whoever decides what may go, and what each document needs.

A document that cannot be read stops everything, because what it needs is not known, unless no signature
stands behind it that the policy asks for: that one is kept, and told. What another process moves meanwhile is
looked for in the store and its trash.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from warmrank.cache_store.backends.backend import BlobBackend, FileInfo
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Corrupt, EvictRefused, NewerFormat, NotInStore, StoreError
from warmrank.cache_store.gc.trash import last_uses, list_debris, trashed
from warmrank.cache_store.keys import key_of
from warmrank.cache_store.layout import (
    BLOBS,
    DIRECTORIES,
    LAUNCHES,
    MANIFESTS,
    PINS,
    QUARANTINE,
    USED,
    blob_name,
    manifest_name,
    split_directory_name,
    split_fanned_name,
    split_launch_name,
    split_pin_name,
)
from warmrank.cache_store.parallel import each
from warmrank.cache_store.records.directory_listing import parse_listing
from warmrank.cache_store.records.documents import read_stored_form
from warmrank.cache_store.records.manifest import created_at, parse_launch_record, parse_manifest
from warmrank.cache_store.signing.trust import DocumentKind, Trust, parse_envelope

UNSIGNED, SIGNED, TRUSTED = range(3)
"""By nobody, or with a signature that must not count; by a key not known here; by a key trusted here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What an evict must know of a document.

    Attributes:
        references: names that it needs.
        created_s: when it was made, by its maker's clock, in seconds since the epoch.
        environments: digests of those in which a launch's ranks ran; one empty text for other documents.
        trust_rank: `TRUSTED`, `SIGNED` or `UNSIGNED`; told of records only.
    """

    references: tuple[str, ...]
    created_s: float
    environments: tuple[str, ...] = ("",)
    trust_rank: int = TRUSTED


def is_record(name: str) -> bool:
    """Whether this is the name of a root: a launch record or a listing."""
    return bool(split_launch_name(name) or split_directory_name(name))


def record_group(name: str) -> str:
    """What records of one key have in common, such as ``launch/ab/<launch key>``."""
    return name.rpartition("/")[0]


def references(name: str, sealed: bytes) -> Document:
    """What the stored form of the record or manifest of that name needs, whoever signed it.

    Raises:
        Corrupt: it is damaged, or made for another name.
        NewerFormat: a later release wrote it.
    """
    environments: tuple[str, ...] = ("",)
    if parts := split_launch_name(name):
        payload = _payload(name, sealed, kind="launch", key=parts[0], sha256=parts[1])
        record = parse_launch_record(payload, name)
        needed = [manifest_name(ref.manifest_key) for ref in record.partitions]
        created_s = created_at(record).timestamp()
        environments = tuple(key_of(dict(environment)) for environment in record.environments)
    elif parts := split_directory_name(name):
        payload = _payload(name, sealed, kind="directory", key=parts[0], sha256=parts[1])
        listing = parse_listing(payload, name)
        needed = [blob_name(file.sha256) for file in listing.files]
        created_s = datetime.fromisoformat(listing.created).timestamp()
    else:
        payload = _payload(name, sealed, kind="manifest", key=split_fanned_name(MANIFESTS, name) or "")
        manifest = parse_manifest(payload, name)
        needed = [blob_name(entry.sha256) for entry in manifest.artifacts]
        created_s = created_at(manifest).timestamp()
    return Document(references=tuple(dict.fromkeys(needed)), created_s=created_s, environments=environments)


def _payload(name: str, sealed: bytes, *, kind: str, key: str, sha256: str | None = None) -> bytes:
    envelope = parse_envelope(sealed, what=kind, where=name)
    if (envelope.kind, envelope.key) != (kind, key):
        actual = f"{envelope.kind} {envelope.key[:12]}"
        raise Corrupt(what=kind, where=name, expected=f"one made for {kind} {key[:12]}", actual=actual)
    if sha256 is not None and (actual := digest_bytes(envelope.payload).sha256) != sha256:
        raise Corrupt(what=kind, where=name, expected=f"sha256 {sha256}", actual=actual)
    return envelope.payload


def made_for(name: str) -> tuple[DocumentKind, str]:
    """Kind and key of the document of that name."""
    if parts := split_launch_name(name):
        return "launch", parts[0]
    if parts := split_directory_name(name):
        return "directory", parts[0]
    return "manifest", split_fanned_name(MANIFESTS, name) or ""


READERS = 8
_UPGRADE = (
    "upgrade warmrank here, and evict with that release; "
    "where nobody uses a later one, remove that file by hand"
)
_REPAIR = "run `warmrank store verify --repair`, which moves it into quarantine, then evict again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """A store at one time.

    Attributes:
        now_s: the time, by the store's clock.
        files: every record, manifest and blob that stands, by name.
        documents: every record and manifest that stands, and what of the trash a standing record needs.
        trash: what lies in the trash, by former name.
        pins: names of the records that are pinned.
        uses: the newest mark of use of each record that has one.
        marks: all marks of use.
        quarantine: what is in quarantine.
        debris: what is on its way in, perhaps for ever.
        problems: what was left alone, one line each.
    """

    now_s: float
    files: Mapping[str, FileInfo]
    documents: Mapping[str, Document]
    trash: Mapping[str, tuple[FileInfo, ...]] = field(default_factory=dict)
    pins: frozenset[str] = frozenset()
    uses: Mapping[str, FileInfo] = field(default_factory=dict)
    marks: tuple[FileInfo, ...] = ()
    quarantine: tuple[FileInfo, ...] = ()
    debris: tuple[FileInfo, ...] = ()
    problems: tuple[str, ...] = ()


def take_inventory(
    backend: BlobBackend, now_s: float, *, trust: Trust, earlier: Inventory | None = None
) -> Inventory:
    """List a store and read its documents.

    Args:
        backend: one place of the store.
        trust: with which records are judged.
        now_s: the time by the store's clock, of before the call: a process that is stopped in here must not
            find that what it listed has aged.
        earlier: an inventory of before; documents that stand unchanged are not read again.

    Raises:
        EvictRefused: a document cannot be read, or the listing leaves out what is there.
        StoreUnavailable: the store cannot be listed or read.
    """
    # Roots last: a record that was committed meanwhile is seen, with manifests that were there before it.
    trash = trashed(backend)
    files = {info.name: info for info in backend.list(BLOBS) if split_fanned_name(BLOBS, info.name)}
    files |= {info.name: info for info in backend.list(MANIFESTS) if split_fanned_name(MANIFESTS, info.name)}
    marks = tuple(backend.list(USED))
    pins = frozenset(name for info in backend.list(PINS) if (name := split_pin_name(info.name)))
    for prefix in (LAUNCHES, DIRECTORIES):
        files |= {info.name: info for info in backend.list(prefix) if is_record(info.name)}
    uses = last_uses(marks)
    _check_listing(backend, {*pins, *uses} - files.keys())
    reader = _Reader(backend=backend, trust=trust, interned={name: name for name in files})
    documents = reader.read_documents(files, trash, earlier)
    debris, problem = list_debris(backend)
    return Inventory(
        now_s=now_s,
        files={name: info for name, info in files.items() if name.startswith(BLOBS) or name in documents},
        documents=documents,
        trash=trash,
        pins=pins,
        uses=uses,
        marks=marks,
        quarantine=tuple(backend.list(QUARANTINE)),
        debris=debris,
        problems=(*sorted(reader.problems.values()), *([problem] if problem else [])),
    )


def _check_listing(backend: BlobBackend, unlisted: Iterable[str]) -> None:
    """What is pinned or was used, and stands, must be in the listing."""
    if found := sorted(backend.stat(name for name in unlisted if is_record(name))):
        raise EvictRefused(
            what=f"{len(found)} records stand in the store but not in its listing",
            where=found[0],
            reason="a listing that leaves things out would make an evict take what is needed",
            remedy="evict again; if it stays, ask whoever runs this file system or object store",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """Reads the documents of one place.

    Attributes:
        backend: the place.
        trust: with which records are judged.
        interned: one string for each name, however many documents refer to it.
        problems: documents that were left alone, by name, one line each.
    """

    backend: BlobBackend
    trust: Trust
    interned: dict[str, str]
    problems: dict[str, str] = field(default_factory=dict)

    def read_documents(
        self,
        files: Mapping[str, FileInfo],
        trash: Mapping[str, tuple[FileInfo, ...]],
        earlier: Inventory | None,
    ) -> dict[str, Document]:
        standing = [name for name in files if not name.startswith(BLOBS)]
        documents = _unchanged(files, earlier)
        documents.update(self._read_all([(name, name) for name in standing if name not in documents]))
        gone = {
            name
            for record, document in documents.items()
            if is_record(record)
            for name in document.references
            if name.startswith(MANIFESTS) and name not in documents
        }
        # Another evict may be at work: what it took is in the trash, what it restored stands again.
        taken = [(name, trash[name][0].name if name in trash else name) for name in sorted(gone)]
        documents.update(self._read_all(taken))
        return documents

    def _read_all(self, names: Iterable[tuple[str, str]]) -> Iterator[tuple[str, Document]]:
        """Read documents, each by its own name and the place where it lies.

        What is gone is left out, and what cannot be read and nobody here needs to believe.
        """
        wanted = list(names)
        for (name, _), document in zip(wanted, each(self._read, wanted, num_threads=READERS), strict=True):
            if document is not None:
                yield name, document

    def _read(self, item: tuple[str, str]) -> Document | None:
        name, place = item
        try:
            sealed = read_stored_form(self.backend, place)
        except NotInStore:
            return None
        except Corrupt as error:
            if place != name:
                return None  # nobody can use it, so it needs nothing
            raise _unreadable(error) from error
        try:
            document = references(name, sealed)
        except Corrupt as error:
            if place != name:
                return None
            raise _unreadable(error) from error
        except NewerFormat as error:
            refusal = self._refusal(name, sealed)
            if refusal is None:
                raise _unreadable(error) from error
            self.problems[name] = f"{name} is kept, though what it needs is not known: {refusal}"
            return None
        needed = tuple(self.interned.setdefault(each_name, each_name) for each_name in document.references)
        rank = self._rank(name, sealed) if is_record(name) else TRUSTED
        return replace(document, references=needed, trust_rank=rank)

    def _rank(self, name: str, sealed: bytes) -> int:
        """Who signed a record, also where the policy does not ask."""
        kind, key = made_for(name)
        doubt = replace(self.trust, policy="require").refusal(kind, key, sealed, where=name)
        return TRUSTED if doubt is None else SIGNED if doubt.reason == "unknown_signer" else UNSIGNED

    def _refusal(self, name: str, sealed: bytes) -> StoreError | None:
        """Why this process must not use a document."""
        kind, key = made_for(name)
        try:
            return self.trust.refusal(kind, key, sealed, where=name)
        except NewerFormat:
            return None


def _unchanged(files: Mapping[str, FileInfo], earlier: Inventory | None) -> dict[str, Document]:
    if earlier is None:
        return {}
    return {
        name: document
        for name, document in earlier.documents.items()
        if name in files and files[name] == earlier.files.get(name)
    }


def _unreadable(error: StoreError) -> EvictRefused:
    is_newer = isinstance(error, NewerFormat)
    remedy = _UPGRADE if is_newer else _REPAIR
    reason = f"what it needs is not known, so nothing can be taken away ({error})"
    return EvictRefused(what=error.what, where=error.where, reason=reason, remedy=remedy)
