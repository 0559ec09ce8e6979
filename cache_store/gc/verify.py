"""Reading the whole store and saying everything that is wrong with it; repairs it where asked.

Without ``repair`` nothing is changed. With it, what is damaged goes into quarantine, and what is missing
comes back from the trash, from another place of the store, from a cache directory, or from quarantine, where
its bytes are what a believed document names. What was found damaged is read again directly before it is
moved, because a publisher may have put it again since.
"""

from __future__ import annotations

import contextlib
import functools
import stat
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.backends.deadline import Tier, TierState
from warmrank.cache_store.backends.places import Places, in_each
from warmrank.cache_store.cache_dir.private_files import create_private
from warmrank.cache_store.digests import Digest, copy_and_digest, digest_bytes, digest_stream
from warmrank.cache_store.errors import (
    Corrupt,
    NotInStore,
    StoreError,
    Untrusted,
    UnusableCache,
    is_damage,
    is_final,
)
from warmrank.cache_store.gc.inventory import DEBRIS_S, list_debris, restore
from warmrank.cache_store.layout import (
    BLOBS,
    DIRECTORIES,
    LAUNCHES,
    MANIFESTS,
    PINS,
    QUARANTINE,
    blob_name,
    is_record,
    manifest_name,
    split_fanned_name,
    split_pin_name,
    split_quarantine_name,
)
from warmrank.cache_store.parallel import Meter, OnProgress, each
from warmrank.cache_store.records.documents import (
    READERS,
    Documents,
    StandingManifest,
    read_listing,
    read_stored_form,
)
from warmrank.cache_store.records.manifest import LaunchRecord, PartitionManifest, parse_manifest
from warmrank.cache_store.signing.trust import Trust

_KINDS = {LAUNCHES: "record", DIRECTORIES: "record", MANIFESTS: "manifest", BLOBS: "blob"}
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """Outcome of reading the whole store; what stands in two of its places was read twice, and counts twice.

    Faults and repairs have one line each; a whole store has no faults.
    """

    num_blobs: int
    num_manifests: int
    num_launches: int
    num_listings: int
    bytes_hashed: int
    faults: tuple[str, ...]
    repairs: tuple[str, ...] = ()


def verify_places(
    tiers: Sequence[Tier],
    trust: Trust,
    *,
    repair: bool = False,
    cache_root: Path | None = None,
    left_out: Sequence[TierState] = (),
    on_progress: OnProgress | None = None,
) -> VerifyReport:
    """Read every place of a store again, the farthest first; where there are several, faults name theirs.

    A repair also takes what is good in ``cache_root``; of ``left_out`` those that are away are faults.
    """

    def verify(tier: Tier, alone: Places) -> _Audit:
        audit = _Audit(
            documents=Documents(places=alone, trust=trust, repairs=False),
            repair=repair and tier.is_writable,
            is_whole=tier.is_farthest,
            is_writable=tier.is_writable,
            others=[Places([other]) for other in tiers if other is not tier],
            cache_root=cache_root,
        )
        audit.run(on_progress)
        return audit

    audits, errors = in_each(tiers, verify)
    for _, error in errors:
        if is_final(error):
            raise error
    failed = [f"{tier.name}: {error}" for tier, error in errors]
    away = [f"{state.location}: {state.reason}" for state in left_out if state.state == "away"]

    def said(lines: Callable[[_Audit], list[str]]) -> Iterator[str]:
        for audit in audits:
            prefix = f"{audit.documents.places.tiers[0].name}: " if len(tiers) > 1 else ""
            yield from (f"{prefix}{line}" for line in lines(audit))

    counts = sum((audit.counts for audit in audits), Counter[str]())
    return VerifyReport(
        num_blobs=counts[BLOBS],
        num_manifests=counts[MANIFESTS],
        num_launches=counts[LAUNCHES],
        num_listings=counts[DIRECTORIES],
        bytes_hashed=counts["bytes"],
        faults=(*said(lambda audit: audit.faults), *failed, *away),
        repairs=tuple(said(lambda audit: audit.repairs)),
    )


class _Look(NamedTuple, Generic[_T]):
    """Kind of a file, its fault, and if it is damaged."""

    value: _T | None = None
    fault: str = ""
    is_damaged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Audit:
    """Hashes every blob of one place, judges every document, and follows every reference."""

    documents: Documents
    repair: bool
    is_whole: bool  # what a document needs must be here; a near place may hold it in part
    is_writable: bool  # publishes write here too, so that they repair it
    others: Sequence[Places]  # where a repair looks for good copies
    cache_root: Path | None  # likewise
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    quarantined: dict[str, list[str]] = field(default_factory=dict)  # names there, by the former ones

    def run(self, on_progress: OnProgress | None) -> None:
        """Read everything; ages go by this machine's clock, as the store's own would need a write."""
        now_s = time.time()
        for info in self.documents.places.list(QUARANTINE) if self.repair else ():
            self.quarantined.setdefault(split_quarantine_name(info.name), []).append(info.name)
        records = self._read_documents(LAUNCHES, lambda documents, name: documents.launch(name).record)
        listings = self._read_documents(DIRECTORIES, _read_listing)
        refs = [ref for record in records.values() if record for ref in record.partitions]
        wanted = defaultdict[str, set[str]](set)
        for ref in refs:
            wanted[manifest_name(ref.manifest_key)].add(ref.manifest_sha256)
        manifests = self._read_documents(
            MANIFESTS, lambda documents, name: documents.manifest(_key_of(name)), wanted
        )
        entries = [entry for found in manifests.values() if found for entry in found.manifest.artifacts]
        needed = {blob_name(entry.sha256): entry.digest for entry in entries}
        for blobs in listings.values():
            needed |= blobs or {}
        sizes = self._hash_blobs(needed, on_progress)
        self.counts["bytes"] += sum(sizes.values())
        self._check_references(records, manifests, listings, sizes)
        self._check_debris(now_s)

    def _read_documents(
        self,
        prefix: str,
        read: Callable[[Documents, str], _T],
        needed: Mapping[str, AbstractSet[str]] = MappingProxyType({}),
    ) -> dict[str, _T | None]:
        """Documents by name; None for one that cannot be used; ``needed`` has sha256 of manifests."""

        def look(name: str) -> _Look[_T]:
            try:
                return _Look(read(self.documents, name))
            except StoreError as error:
                is_revoked = isinstance(error, Untrusted) and error.reason == "revoked"
                return _Look(None, str(error), is_damage(error) or is_revoked)

        def put_again(name: str) -> str:
            for place in self.others:
                with contextlib.suppress(StoreError):
                    read(Documents(places=place, trust=self.documents.trust, repairs=False), name)
                    self.documents.write(name, read_stored_form(place, name))
                    return "another place of the store"
            for stored in self.quarantined.get(name, ()) if name in needed else ():
                with contextlib.suppress(StoreError):
                    _, sealed = self.documents.read("manifest", _key_of(name), stored, parse_manifest)
                    if digest_bytes(sealed).sha256 in needed[name] and self.documents.write(name, sealed):
                        return "quarantine"
            return ""

        listed = [info.name for info in self.documents.places.list(prefix)]
        return self._judge(prefix, listed, needed.keys(), look, put_again)

    def _hash_blobs(self, needed: Mapping[str, Digest], on_progress: OnProgress | None) -> dict[str, int]:
        """Sizes of all blobs by name, the damaged ones included."""
        places = self.documents.places
        listed = {info.name: info.content_bytes or info.stored_bytes for info in places.list(BLOBS)}
        total_bytes, total_files = sum(listed.values()), len(listed)
        meter = Meter("Verifying", total_bytes=total_bytes, total_files=total_files, on_progress=on_progress)

        def look(name: str) -> _Look[int]:
            try:
                digest = places.read(name, digest_stream, repairs=False)
            except NotInStore as error:
                # Without a file: another process moved it since the listing.
                return _Look(None, str(error) if places.stat([name]) else "")
            except StoreError as error:
                return _Look(None, str(error), is_damage(error))
            finally:
                meter.count(listed.get(name, 0), 1)
            is_damaged = digest.sha256 != split_fanned_name(BLOBS, name)
            return _Look(digest.size_bytes, f"{name}: its bytes have {digest}" * is_damaged, is_damaged)

        @functools.cache
        def local_files() -> Mapping[int, Sequence[Path]]:
            return self._files({digest.size_bytes for digest in needed.values()})

        def put_again(name: str) -> str:
            if name not in needed:
                return ""
            with tempfile.TemporaryDirectory() as directory:
                known = local_files().get(needed[name].size_bytes, ())
                for path, where in self._copies(name, known, Path(directory)):
                    with contextlib.suppress(Corrupt, UnusableCache):  # then the file does not hold it
                        if places.put_new([NewFile(name=name, source=path, expected=needed[name])]):
                            return where
            return ""

        found = self._judge(BLOBS, list(listed), needed.keys(), look, put_again)
        meter.finish()
        return {name: size for name, size in found.items() if size is not None}

    def _judge(
        self,
        prefix: str,
        listed: Iterable[str],
        needed: AbstractSet[str],
        look: Callable[[str], _Look[_T]],
        put_again: Callable[[str], str],
    ) -> dict[str, _T | None]:
        """Look at files.

        A repair moves away what is still damaged when it is looked at again. Then comes back what was moved,
        or is ``needed`` and not there: from the trash, else from where ``put_again`` says that it found it.
        """
        found: dict[str, _T | None] = {}
        places = self.documents.places

        def judge(name: str) -> _Look[_T]:
            answer = look(name)
            if answer.is_damaged and self.repair and (answer := look(name)).is_damaged:
                places.quarantine(name, answer.fault)
                self.repairs.append(f"{name}: moved into quarantine")
            return answer

        def judge_all(names: Sequence[str]) -> set[str]:
            """Note what they are; return the damaged ones."""
            answers = dict(zip(names, each(judge, names, num_threads=READERS), strict=True))
            self.faults.extend(answer.fault for answer in answers.values() if answer.fault)
            found.update({name: answer.value for name, answer in answers.items()})
            return {name for name, answer in answers.items() if answer.is_damaged}

        damaged = judge_all([name for name in listed if self._is_named(prefix, name)])
        if self.repair:
            missing = needed - found.keys()
            back = restore(places, damaged | missing)
            self.repairs.extend(f"{name}: restored from the trash" for name in sorted(back))
            bad_copies = judge_all(sorted(back))
            for name in sorted(((damaged | missing) - back) | bad_copies):
                # A near place need not have it, unless it had.
                if (self.is_whole or name in found) and (where := put_again(name)):
                    self.repairs.append(f"{name}: put again from {where}")
                    found[name] = look(name).value
            self.faults.extend(f"{name}: missing" for name in sorted(missing & found.keys()))
        self.counts[prefix] += sum(prefix != BLOBS or value is not None for value in found.values())
        return found

    def _is_named(self, prefix: str, name: str) -> bool:
        """Return True for a name that the layout gives; another one is a fault."""
        is_known = is_record(name) if _KINDS[prefix] == "record" else split_fanned_name(prefix, name)
        if not is_known:
            self.faults.append(f"{name}: no name of a {_KINDS[prefix]}")
        return bool(is_known)

    def _files(self, sizes: AbstractSet[int]) -> dict[int, list[Path]]:
        """Files of the cache directory by their size, if it is one of ``sizes``."""
        found: dict[int, list[Path]] = {}
        for path in self.cache_root.rglob("*") if self.cache_root else ():
            with contextlib.suppress(OSError):  # gone meanwhile
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and status.st_size in sizes:
                    found.setdefault(status.st_size, []).append(path)
        return found

    def _copies(self, name: str, files: Iterable[Path], directory: Path) -> Iterator[tuple[Path, str]]:
        """Files that may be a blob, not verified yet, and how people know them."""
        for path in files:
            yield path, str(path)
        sources = [(place, name, "another place of the store") for place in self.others]
        sources += [(self.documents.places, it, "quarantine") for it in self.quarantined.get(name, ())]
        for number, (place, stored, where) in enumerate(sources):
            copy = directory / str(number)
            with contextlib.suppress(StoreError, OSError):
                with create_private(copy) as target:
                    place.read(stored, lambda file, to=target: copy_and_digest(file, to), repairs=False)  # type: ignore[misc]
                yield copy, where

    def _check_references(
        self,
        records: Mapping[str, LaunchRecord | None],
        manifests: Mapping[str, StandingManifest | None],
        listings: Mapping[str, Iterable[str] | None],
        sizes: Mapping[str, int],
    ) -> None:
        readable = {name: record for name, record in records.items() if record}
        faults = {name: [*self._unpinned(record, manifests)] for name, record in readable.items()}
        lacks = {name: [*self._lacking(found.manifest, sizes)] for name, found in manifests.items() if found}
        unusable = {name for name in manifests if lacks.get(name, True)}
        whole = {
            _whose(record)
            for name, record in readable.items()
            if not faults[name]
            and unusable.isdisjoint(manifest_name(ref.manifest_key) for ref in record.partitions)
        }
        pins = {split_pin_name(info.name) for info in self.documents.places.list(PINS)} if self.repair else ()
        for name, found in faults.items():
            self.faults.extend(f"{name}: {fault}" for fault in found)
            # Launched again, it was recorded anew.
            if found and self.repair and name not in pins and _whose(readable[name]) in whole:
                self.documents.places.quarantine(name, found[0])
                self.repairs.append(f"{name}: moved into quarantine; another record of this launch is whole")
        self.faults.extend(f"{name}: {fault}" for name, found in lacks.items() for fault in found)
        for name, blobs in listings.items() if self.is_whole else ():
            missing = (blob for blob in blobs or () if blob not in sizes)
            self.faults.extend(f"{name}: needs {blob}, which is missing" for blob in missing)

    def _unpinned(
        self, record: LaunchRecord, manifests: Mapping[str, StandingManifest | None]
    ) -> Iterator[str]:
        """Faults of the manifests that a record pins."""
        for ref in record.partitions:
            manifest = manifest_name(ref.manifest_key)
            standing = manifests.get(manifest)
            if manifest not in manifests and self.is_whole:
                yield f"the manifest of {ref.partition} is missing"
            elif standing is not None and standing.sha256 != ref.manifest_sha256:
                yield f"the manifest of {ref.partition} is another one than it pins"

    def _lacking(self, manifest: PartitionManifest, sizes: Mapping[str, int]) -> Iterator[str]:
        """Faults of the blobs that a manifest needs."""
        for entry in manifest.artifacts:
            blob = blob_name(entry.sha256)
            if sizes.get(blob) != entry.size_bytes and (self.is_whole or blob in sizes):
                actual = f"{sizes[blob]} bytes long" if blob in sizes else "missing"
                yield f"{entry.function} needs {blob} of {entry.size_bytes} bytes, which is {actual}"

    def _check_debris(self, now_s: float) -> None:
        where = "" if self.is_writable else " where this place may be written"
        for info in list_debris(self.documents.places):
            if (age_s := now_s - info.modified_s) > DEBRIS_S:
                self.faults.append(
                    f"{info.name}: {info.stored_bytes} bytes on their way in for {age_s / 3600.0:.0f} h, "
                    f"by a process that must have died; `warmrank store evict` removes them{where}"
                )


def _whose(record: LaunchRecord) -> str:
    """Equal for records that replace each other: those of one launch, its partitions and environments."""
    names = {"__all__": {"rank", "partition"}}
    return record.model_dump_json(
        include={"launch_key": True, "environment": True, "others": True, "partitions": names}
    )


def _key_of(manifest: str) -> str:
    return split_fanned_name(MANIFESTS, manifest) or ""


def _read_listing(documents: Documents, name: str) -> dict[str, Digest]:
    listing = read_listing(documents, name).listing
    return {blob_name(file.sha256): file.digest for file in listing.files}
