"""A store's files in one list, its trash, the marks of use, and what each document needs.

Layout: ``trash/<time of the evict>/<former name>``; ``used/<day>/<record>``, empty;
``tmp/<host>-<pid>-<random>/<file>``. Who relies on a name that is gone brings it back before writing what
refers to it, and looks again afterwards; a restored file counts as new. When a record was used is its mark's
age by the store's clock.

A document that cannot be read stops an evict, because what it needs is not known, unless no signature
stands behind it that the policy asks for: that one is kept, and told. What another process moves meanwhile is
looked for in the store and its trash.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from warmrank.cache_store.backends.backend import FileInfo
from warmrank.cache_store.backends.places import Places
from warmrank.cache_store.canonical import key_of
from warmrank.cache_store.errors import (
    Corrupt,
    EvictRefused,
    NewerFormat,
    NotInStore,
    StoreError,
    StoreUnavailable,
    Untrusted,
    is_final,
)
from warmrank.cache_store.layout import (
    BLOBS,
    DIRECTORIES,
    LAUNCHES,
    MANIFESTS,
    PINS,
    PROBE,
    QUARANTINE,
    TMP,
    TRASH,
    USED,
    blob_name,
    is_record,
    manifest_name,
    split_fanned_name,
    split_pin_name,
    split_record_name,
    split_trash_name,
    split_used_name,
)
from warmrank.cache_store.parallel import each
from warmrank.cache_store.records.documents import (
    READERS,
    Documents,
    check_sha256,
    read_stored_form,
    seconds_of,
)
from warmrank.cache_store.records.manifest import (
    OF_ONE_RUN,
    parse_launch_record,
    parse_listing,
    parse_manifest,
)
from warmrank.cache_store.signing.trust import DocumentKind, Trust, parse_envelope

logger = logging.getLogger(__name__)
RESOLUTION_S = 86400.0
"""A mark of use stands for any time up to so much later, because the next is made on the next day only."""
DEBRIS_S = 86400.0
"""No publisher takes longer from the first byte of a batch to its names."""
UNSIGNED, SIGNED, TRUSTED = range(3)
"""By nobody, or with a signature that must not count; by a key not known here; by a key trusted here."""
Trash = Mapping[str, tuple[FileInfo, ...]]
"""Files in the trash by their former names, the last that came first."""
_UPGRADE = (
    "upgrade warmrank here, and evict with that release; "
    "where nobody uses a later one, remove that file by hand"
)
_REPAIR = "run `warmrank store verify --repair`, which moves it into quarantine, then evict again"


def trashed(places: Places) -> Trash:
    """List the trash."""
    found: dict[str, list[FileInfo]] = {}
    for info in sorted(places.list(TRASH), key=lambda info: (-info.modified_s, info.name)):
        if former := split_trash_name(info.name):
            found.setdefault(former[0], []).append(info)
    return {name: tuple(infos) for name, infos in found.items()}


def restore(places: Places, names: Iterable[str], trash: Trash | None = None) -> frozenset[str]:
    """Bring back those of ``names`` that lie in the ``trash``, which is listed if need be.

    Return those that stand in the store now, whoever put them there.
    """
    wanted = frozenset(names)
    standing = frozenset(places.stat(wanted))
    if not (gone := wanted - standing):
        return standing
    trash = trashed(places) if trash is None else trash
    for name in sorted(gone & trash.keys()):
        # Of several evicts the last has the bytes that stood last; an older copy serves if that one is gone.
        if any(places.move(info.name, name) for info in trash[name]):
            logger.info("Restored %s from the trash", name)
    return standing | places.stat(gone & trash.keys()).keys()


def bring_back(places: Places, names: Iterable[str]) -> frozenset[str]:
    """As `restore`; a store that cannot be written restores nothing, unless it is required."""
    wanted = frozenset(names)
    try:
        return restore(places, wanted)
    except StoreUnavailable as error:
        if is_final(error):
            raise
        logger.warning("%d files cannot be looked for in the trash: %s", len(wanted), error)
        return frozenset()


def last_uses(marks: Iterable[FileInfo]) -> dict[str, FileInfo]:
    """The newest mark of every record that has one, by the record's name."""
    newest: dict[str, FileInfo] = {}
    for mark in sorted(marks, key=lambda mark: mark.modified_s):
        if parts := split_used_name(mark.name):
            newest[parts[0]] = mark
    return newest


def list_debris(places: Places) -> tuple[FileInfo, ...]:
    """The files on their way in, however old; not those in private directories of other users."""
    return tuple(info for info in places.list(TMP) if info.name != PROBE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The parts of a document that an evict must know."""

    references: tuple[str, ...]  # names that it needs
    created_s: float  # by its maker's clock, in seconds since the epoch
    # Number and environments of a launch's ranks; none for what serves one run, else one empty text.
    groups: tuple[str, ...] = ("",)
    trust_rank: int = TRUSTED  # told of roots only


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """A store at one time, by the store's clock."""

    now_s: float
    files: Mapping[str, FileInfo]  # every record, manifest and blob that stands
    documents: Mapping[str, Document]  # those that stand, and what of the trash a standing record needs
    trash: Trash = field(default_factory=dict)
    pins: frozenset[str] = frozenset()  # names of records
    uses: Mapping[str, FileInfo] = field(default_factory=dict)  # the newest mark of use of each record
    spent: tuple[FileInfo, ...] = ()  # the other marks of use, and of records that are gone
    quarantine: tuple[FileInfo, ...] = ()
    debris: tuple[FileInfo, ...] = ()  # on its way in, perhaps for ever
    problems: tuple[str, ...] = ()  # what was left alone, one line each
    is_farthest: bool = True  # what records need is here; a nearer place may hold it in part

    def roots(self) -> list[str]:
        """The records; in a nearer place also what no document there needs."""
        if self.is_farthest:
            return [name for name in self.files if is_record(name)]
        needed = {name for document in self.documents.values() for name in document.references}
        return [name for name in self.files if name not in needed]

    def closure(self, records: Iterable[str], *, besides: AbstractSet[str] = frozenset()) -> set[str]:
        """These records, and all that they need ``besides`` an earlier closure."""
        found = set(records)
        for _ in range(2):  # the manifests of launches, then blobs
            known = [self.documents[name] for name in found if name in self.documents]
            found.update(name for document in known for name in document.references if name not in besides)
        return found


def _made_for(name: str) -> tuple[DocumentKind, str, str]:
    """Kind and key of the document of that name, and its sha256 where the name tells it."""
    return split_record_name(name) or ("manifest", split_fanned_name(MANIFESTS, name) or "", "")


def references(name: str, sealed: bytes) -> Document:
    """Parse the stored form of the record or manifest of that name, whoever signed it."""
    kind, key, sha256 = _made_for(name)
    envelope = parse_envelope(sealed, what=kind, where=name)
    if (envelope.header.kind, envelope.header.key) != (kind, key):
        actual = f"{envelope.header.kind} {envelope.header.key[:12]}"
        raise Corrupt(what=kind, where=name, expected=f"one made for {kind} {key[:12]}", actual=actual)
    if sha256:
        check_sha256(kind, name, envelope.payload, sha256)
    groups: tuple[str, ...] = ("",)
    if kind == "launch":
        record = parse_launch_record(envelope.payload, name)
        created = record.created
        needed = [manifest_name(ref.manifest_key) for ref in record.partitions]
        groups = tuple(f"{record.world_size} {key_of(dict(each))}" for each in record.environments)
    elif kind == "directory":
        listing = parse_listing(envelope.payload, name)
        created, needed = listing.created, [blob_name(file.sha256) for file in listing.files]
        groups = () if OF_ONE_RUN in listing.components else groups
    else:
        manifest = parse_manifest(envelope.payload, name)
        created, needed = manifest.created, [blob_name(entry.sha256) for entry in manifest.artifacts]
    names = tuple(map(sys.intern, dict.fromkeys(needed)))  # one text, however many documents refer to it
    return Document(references=names, created_s=seconds_of(created), groups=groups)


def take_inventory(places: Places, now_s: float, *, trust: Trust) -> Inventory:
    """List one place of a store and read its documents; ``trust`` judges the records.

    ``now_s`` is of before the call: a process that is stopped in here must not find that what it listed has
    aged.

    Raises:
        EvictRefused: a document cannot be read, or the listing leaves out what is there.
    """
    # Roots last: a record that was committed meanwhile is seen, with manifests that were there before it.
    trash = trashed(places)
    files: dict[str, FileInfo] = {}
    for prefix in (BLOBS, MANIFESTS):
        files |= {info.name: info for info in places.list(prefix) if split_fanned_name(prefix, info.name)}
    marks = places.list(USED)
    pins = frozenset(name for info in places.list(PINS) if (name := split_pin_name(info.name)))
    for prefix in (LAUNCHES, DIRECTORIES):
        files |= {info.name: info for info in places.list(prefix) if is_record(info.name)}
    uses = last_uses(marks)
    _check_listing(places, {*pins, *uses} - files.keys())
    current = {mark.name for record, mark in uses.items() if record in files}
    source = Documents(places=places, trust=trust)
    documents = _read_documents(source, files, trash)
    return Inventory(
        now_s=now_s,
        files={name: info for name, info in files.items() if name.startswith(BLOBS) or name in documents},
        documents=documents,
        trash=trash,
        pins=pins,
        uses=uses,
        spent=tuple(mark for mark in marks if mark.name not in current),
        quarantine=tuple(places.list(QUARANTINE)),
        debris=list_debris(places),
        problems=tuple(sorted(source.problems)),
        is_farthest=places.tiers[-1].is_farthest,
    )


def _check_listing(places: Places, unlisted: Iterable[str]) -> None:
    """Refuse a listing without records that are pinned or were used, and stand."""
    if found := sorted(places.stat(name for name in unlisted if is_record(name))):
        what = f"{len(found)} records stand in the store but not in its listing"
        reason = "a listing that leaves things out would make an evict take what is needed"
        remedy = "evict again; if it stays, ask whoever runs this file system or object store"
        raise EvictRefused(what=what, where=found[0], reason=reason, remedy=remedy)


def _read_documents(source: Documents, files: Mapping[str, FileInfo], trash: Trash) -> dict[str, Document]:
    def read(lying: Mapping[str, str]) -> dict[str, Document]:
        """Read documents, given the names under which they lie by their own, without useless ones."""
        answers = each(lambda item: _read(source, *item), list(lying.items()), num_threads=READERS)
        return {name: found for name, found in zip(lying, answers, strict=True) if found is not None}

    documents = read({name: name for name in files if not name.startswith(BLOBS)})
    needed = {name for record in filter(is_record, documents) for name in documents[record].references}
    gone = {name for name in needed - documents.keys() if name.startswith(MANIFESTS)}
    # Another evict may be at work: what it took is in the trash, what it restored stands again.
    return documents | read({name: trash[name][0].name if name in trash else name for name in sorted(gone)})


def _read(source: Documents, name: str, lying: str) -> Document | None:
    try:
        sealed = read_stored_form(source.places, lying)
        document = references(name, sealed)
    except NotInStore:
        return None
    except Corrupt as error:
        if lying != name:
            return None  # nobody can use it, so it needs nothing
        raise _unreadable(error, _REPAIR) from error
    except NewerFormat as error:
        refusal = _refusal(name, sealed, source.trust)
        if refusal is None:
            raise _unreadable(error, _UPGRADE) from error
        source.problems.append(f"{name} is kept, though what it needs is not known: {refusal}")
        return None
    if not is_record(name) and source.places.tiers[-1].is_farthest:
        return document
    doubt = _refusal(name, sealed, replace(source.trust, policy="require"))
    rank = TRUSTED if doubt is None else SIGNED if doubt.reason == "unknown_signer" else UNSIGNED
    return replace(document, trust_rank=rank)


def _refusal(name: str, sealed: bytes, trust: Trust) -> Untrusted | None:
    """Reason why this process must not use a document."""
    kind, key, _ = _made_for(name)
    try:
        trust.open_envelope(kind, key, sealed, where=name)
    except Untrusted as error:
        return error
    except NewerFormat:
        pass
    return None


def _unreadable(error: StoreError, remedy: str) -> EvictRefused:
    reason = f"what it needs is not known, so nothing can be taken away ({error})"
    return EvictRefused(what=error.what, where=error.where, reason=reason, remedy=remedy)
