"""Reading the whole store and saying everything that is wrong with it; repairs it where asked.

Invariants: without ``repair`` nothing is changed. With it, what is damaged goes into quarantine, so that the
next publish can put it again, and what is missing and lies in the trash comes back; what a document says is
never changed. What was found damaged is read again directly before it is moved, because a publisher may have
put it again since. Several files are read at a time, each in pieces.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from cache_store.backends.backend import BlobBackend, FileInfo
from cache_store.digests import Digest, digest_stream
from cache_store.errors import NotInStore, StoreError, Untrusted, is_damage, os_errors_are_unavailable
from cache_store.fetching.progress import Meter, OnProgress
from cache_store.layout import (
    BLOBS,
    DIRECTORIES,
    LAUNCHES,
    MANIFESTS,
    blob_name,
    manifest_name,
    split_directory_name,
    split_fanned_name,
)
from cache_store.parallel import each
from cache_store.publishing.stored_launches import read_launch
from cache_store.records.documents import Documents, StandingManifest, quarantine
from cache_store.records.manifest import LaunchRecord
from cache_store.retention.debris import DEBRIS_S, list_debris
from cache_store.retention.marks import references
from cache_store.retention.trash import restore
from cache_store.upkeep.reports import VerifyReport

READERS = 8
_T = TypeVar("_T")


def verify_store(
    documents: Documents,
    *,
    repair: bool = False,
    is_whole: bool = True,
    on_progress: OnProgress | None = None,
    clock: Callable[[], float] = time.time,
) -> VerifyReport:
    """Hash every blob, judge every document, and follow every reference.

    Args:
        documents: the store's.
        repair: also move what is damaged away, and bring back what is missing and lies in the trash.
        is_whole: what a document needs must be here; a place nearer than the farthest may hold it in part.
        on_progress: told now and then how far it is.
        clock: seconds since the epoch; the store's own would need a write.

    Raises:
        StoreUnavailable: the store cannot be listed, or, with ``repair``, not written.
    """
    return _Audit(documents=documents, repair=repair, is_whole=is_whole).run(on_progress, clock())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Audit:
    documents: Documents
    repair: bool
    is_whole: bool
    faults: list[str] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)

    def run(self, on_progress: OnProgress | None, now_s: float) -> VerifyReport:
        launches, num_launches = self._read_launches()
        listings, num_listings = self._read_listings()
        self._bring_back(
            manifest_name(ref.manifest_key) for record in launches.values() for ref in record.partitions
        )
        manifests = self._read_manifests()
        self._bring_back(
            blob_name(entry.sha256)
            for standing in manifests.values()
            for entry in (standing.manifest.artifacts if standing else ())
        )
        self._bring_back(name for names in listings.values() for name in names)
        sizes = self._hash_blobs(on_progress)
        self._check_launches(launches, manifests)
        self._check_manifests(manifests, sizes)
        self._check_listings(listings, sizes)
        self._check_debris(now_s)
        return VerifyReport(
            num_blobs=len(sizes),
            num_manifests=len(manifests),
            num_launches=num_launches,
            num_listings=num_listings,
            bytes_hashed=sum(sizes.values()),
            faults=tuple(self.faults),
            repairs=tuple(self.repairs),
        )

    def _read_launches(self) -> tuple[dict[str, LaunchRecord], int]:
        names = [info.name for info in self.documents.backend.list(LAUNCHES)]
        found = self._judge(names, lambda name: read_launch(self.documents, name))
        return {name: record for name, record in found.items() if record is not None}, len(names)

    def _read_listings(self) -> tuple[dict[str, tuple[str, ...]], int]:
        """Names of the blobs that each listing needs."""
        names = [info.name for info in self.documents.backend.list(DIRECTORIES)]
        good = [name for name in names if split_directory_name(name)]
        self.faults.extend(f"{name}: no name of a listing" for name in names if name not in set(good))
        found = self._judge(good, self._read_listing)
        return {name: blobs for name, blobs in found.items() if blobs is not None}, len(names)

    def _read_listing(self, name: str) -> tuple[str, ...]:
        parts = split_directory_name(name)
        self.documents.read("directory", parts[0] if parts else "", name)  # the signature
        return references(name, self.documents.read_sealed(name)).references

    def _read_manifests(self) -> dict[str, StandingManifest | None]:
        """Manifests by name; None where one cannot be used."""
        names = [info.name for info in self.documents.backend.list(MANIFESTS)]
        keys = {name: key for name in names if (key := split_fanned_name(MANIFESTS, name))}
        self.faults.extend(f"{name}: no name of a manifest" for name in names if name not in keys)
        return self._judge(list(keys), lambda name: self.documents.read_manifest(keys[name]))

    def _judge(self, names: Sequence[str], read: Callable[[str], _T]) -> dict[str, _T | None]:
        """Read documents; one that cannot be used is a fault, and None."""

        def judge(name: str) -> _T | StoreError:
            answer = _attempt(read, name)
            if isinstance(answer, StoreError) and _goes_away(answer) and self.repair:
                answer = _attempt(read, name)
                if isinstance(answer, StoreError) and _goes_away(answer):
                    self._move_away(name, str(answer))
            return answer

        found: dict[str, _T | None] = {}
        for name, answer in zip(names, each(judge, names, num_threads=READERS), strict=True):
            found[name] = None if isinstance(answer, StoreError) else answer
            if isinstance(answer, StoreError):
                self.faults.append(str(answer))
        return found

    def _hash_blobs(self, on_progress: OnProgress | None) -> dict[str, int]:
        """Sizes of all blobs by name, the damaged ones included."""
        backend = self.documents.backend
        infos = list(backend.list(BLOBS))
        total_bytes = sum(info.content_bytes or info.stored_bytes for info in infos)
        meter = Meter("Verifying", total_bytes=total_bytes, total_files=len(infos), on_progress=on_progress)
        strangers = [info.name for info in infos if not _sha256_of(info.name)]
        self.faults.extend(f"{name}: no name of a blob" for name in strangers)

        def judge(info: FileInfo) -> tuple[Digest | None, str]:
            found = self._judge_blob(info.name)
            meter.count(info.content_bytes or info.stored_bytes, 1)
            return found

        blobs = [info for info in infos if _sha256_of(info.name)]
        sizes: dict[str, int] = {}
        for info, (digest, fault) in zip(blobs, each(judge, blobs, num_threads=READERS), strict=True):
            if digest is not None:
                sizes[info.name] = digest.size_bytes
            if fault:
                self.faults.append(fault)
        meter.finish()
        return sizes

    def _judge_blob(self, name: str) -> tuple[Digest | None, str]:
        """What a blob is, and what is wrong with it; one that stays damaged is moved away."""
        digest, fault, is_damaged = self._look_at_blob(name)
        if not (is_damaged and self.repair):
            return digest, fault
        again, fault_again, is_damaged = self._look_at_blob(name)
        if not is_damaged:
            return again, fault_again
        self._move_away(name, fault_again)
        return self._restored(name) or digest, fault_again

    def _look_at_blob(self, name: str) -> tuple[Digest | None, str, bool]:
        answer = _digest(self.documents.backend, name)
        if isinstance(answer, NotInStore) and not self.documents.backend.stat([name]):
            return None, "", False  # another process moved it since the listing
        if isinstance(answer, StoreError):
            return None, str(answer), is_damage(answer)
        is_damaged = answer.sha256 != _sha256_of(name)
        return answer, f"{name}: its bytes have {answer}" if is_damaged else "", is_damaged

    def _restored(self, name: str) -> Digest | None:
        """A good copy in the trash takes the place of a damaged blob."""
        if name not in restore(self.documents.backend, [name]):
            return None
        copy = _digest(self.documents.backend, name)
        if isinstance(copy, Digest) and copy.sha256 == _sha256_of(name):
            self.repairs.append(f"{name}: restored from the trash")
            return copy
        self._move_away(name, "the copy in the trash was damaged too")
        return None

    def _move_away(self, name: str, reason: str) -> None:
        quarantine(self.documents.backend, name, reason)
        self.repairs.append(f"{name}: moved into quarantine")

    def _bring_back(self, names: Iterable[str]) -> None:
        """Restore what is missing from the trash; what comes back is judged as everything else."""
        if not self.repair:
            return
        wanted = frozenset(names)
        missing = wanted - self.documents.backend.stat(wanted).keys()
        for name in sorted(restore(self.documents.backend, missing)) if missing else ():
            self.faults.append(f"{name}: missing")
            self.repairs.append(f"{name}: restored from the trash")

    def _check_manifests(self, manifests: dict[str, StandingManifest | None], sizes: dict[str, int]) -> None:
        for name, standing in manifests.items():
            for entry in standing.manifest.artifacts if standing else ():
                blob = blob_name(entry.sha256)
                if sizes.get(blob) != entry.size_bytes and (self.is_whole or blob in sizes):
                    actual = f"{sizes[blob]} bytes long" if blob in sizes else "missing"
                    self.faults.append(
                        f"{name}: {entry.function} needs {blob} of {entry.size_bytes} bytes, "
                        f"which is {actual}"
                    )

    def _check_listings(self, listings: Mapping[str, Sequence[str]], sizes: Mapping[str, int]) -> None:
        for name, blobs in listings.items():
            missing = [blob for blob in blobs if self.is_whole and blob not in sizes]
            self.faults.extend(f"{name}: needs {blob}, which is missing" for blob in missing)

    def _check_debris(self, now_s: float) -> None:
        found, _ = list_debris(self.documents.backend)  # what other users write now is no fault
        for info in found:
            if (age_s := now_s - info.modified_s) > DEBRIS_S:
                self.faults.append(
                    f"{info.name}: {info.stored_bytes} bytes on their way in for {age_s / 3600.0:.0f} h, "
                    f"by a process that must have died; `warmrank evict` removes them"
                )

    def _check_launches(
        self, launches: dict[str, LaunchRecord], manifests: dict[str, StandingManifest | None]
    ) -> None:
        for name, record in launches.items():
            for ref in record.partitions:
                manifest = manifest_name(ref.manifest_key)
                standing = manifests.get(manifest)
                if manifest not in manifests and self.is_whole:
                    self.faults.append(f"{name}: the manifest of {ref.partition} is missing")
                elif standing is not None and standing.sha256 != ref.manifest_sha256:
                    self.faults.append(f"{name}: the manifest of {ref.partition} is another one than it pins")


def _attempt(read: Callable[[str], _T], name: str) -> _T | StoreError:
    try:
        return read(name)
    except StoreError as error:
        return error


def _digest(backend: BlobBackend, name: str) -> Digest | StoreError:
    try:
        with backend.open(name) as file, os_errors_are_unavailable("blob", name):
            return digest_stream(file)
    except StoreError as error:
        return error


def _sha256_of(name: str) -> str | None:
    return split_fanned_name(BLOBS, name)


def _goes_away(error: StoreError) -> bool:
    """Whether a repair takes the document away: it is damaged, or of a key that was revoked."""
    return is_damage(error) or (isinstance(error, Untrusted) and error.reason == "revoked")
