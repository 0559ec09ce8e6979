"""Reading the whole store and saying everything that is wrong with it; repairs it where asked.

Invariants: without ``repair`` nothing is changed. With it, what is damaged goes into quarantine, so that the
next publish can put it again, and what is missing and lies in the trash comes back; what a document says is
never changed. Several files are read at a time, each in pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from cache_store.backends.backend import BlobBackend, FileInfo
from cache_store.digests import Digest, digest_stream
from cache_store.errors import NotInStore, StoreError, is_damage, os_errors_are_unavailable
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
from cache_store.publishing.launches import read_launch
from cache_store.records.documents import Documents, StandingManifest, quarantine
from cache_store.records.manifest import LaunchRecord
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
) -> VerifyReport:
    """Hash every blob, judge every document, and follow every reference.

    Args:
        documents: the store's.
        repair: also move what is damaged away, and bring back what is missing and lies in the trash.
        is_whole: what a document needs must be here; a place nearer than the farthest may hold it in part.
        on_progress: told now and then how far it is.

    Raises:
        StoreUnavailable: the store cannot be listed, or, with ``repair``, not written.
    """
    return _Audit(documents=documents, repair=repair, is_whole=is_whole).run(on_progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Audit:
    documents: Documents
    repair: bool
    is_whole: bool
    faults: list[str] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)

    def run(self, on_progress: OnProgress | None) -> VerifyReport:
        launches, num_launches = self._read_launches()
        listings, num_listings = self._read_listings()
        pinned = {
            manifest_name(ref.manifest_key) for record in launches.values() for ref in record.partitions
        }
        self._bring_back(pinned)
        manifests = self._read_manifests()
        needed = {
            name: [entry.digest for entry in standing.manifest.artifacts]
            for name, standing in manifests.items()
            if standing is not None
        }
        self._bring_back(blob_name(digest.sha256) for digests in needed.values() for digest in digests)
        self._bring_back(name for names in listings.values() for name in names)
        sizes = self._hash_blobs(on_progress)
        self._check_launches(launches, manifests)
        self._check_manifests(manifests, sizes)
        for name, blobs in listings.items():
            self.faults.extend(
                f"{name}: needs {blob}, which is missing"
                for blob in blobs
                if self.is_whole and blob not in sizes
            )
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
            try:
                return read(name)
            except StoreError as error:
                return error

        found: dict[str, _T | None] = {}
        for name, answer in zip(names, each(judge, names, num_threads=READERS), strict=True):
            if isinstance(answer, StoreError):
                found[name] = None
                self.faults.append(str(answer))
                if is_damage(answer):
                    self._move_away(name, str(answer))
            else:
                found[name] = answer
        return found

    def _hash_blobs(self, on_progress: OnProgress | None) -> dict[str, int]:
        """Sizes of all blobs by name, the damaged ones included."""
        backend = self.documents.backend
        infos = list(backend.list(BLOBS))
        total_bytes = sum(info.content_bytes or info.stored_bytes for info in infos)
        meter = Meter("Verifying", total_bytes=total_bytes, total_files=len(infos), on_progress=on_progress)
        names = [info.name for info in infos]
        self.faults.extend(f"{name}: no name of a blob" for name in names if not _sha256_of(name))
        sizes: dict[str, int] = {}

        def digest(info: FileInfo) -> Digest | StoreError:
            answer = _digest(backend, info.name)
            meter.count(info.content_bytes or info.stored_bytes, 1)
            return answer

        blobs = [info for info in infos if _sha256_of(info.name)]
        for info, answer in zip(blobs, each(digest, blobs, num_threads=READERS), strict=True):
            if isinstance(answer, StoreError):
                self._unread(info.name, answer)
                continue
            sizes[info.name] = answer.size_bytes
            if answer.sha256 != _sha256_of(info.name):
                self.faults.append(f"{info.name}: its bytes have {answer}")
                self._replace(info.name, self.faults[-1], sizes)
        meter.finish()
        return sizes

    def _unread(self, name: str, error: StoreError) -> None:
        if isinstance(error, NotInStore):
            return  # another process moved it since the listing
        self.faults.append(str(error))
        if is_damage(error):
            self._move_away(name, str(error))

    def _replace(self, name: str, reason: str, sizes: dict[str, int]) -> None:
        """Move a damaged blob away; a good copy in the trash takes its place."""
        if not self.repair:
            return
        self._move_away(name, reason)
        if name in restore(self.documents.backend, [name]):
            copy = _digest(self.documents.backend, name)
            if isinstance(copy, Digest) and copy.sha256 == _sha256_of(name):
                sizes[name] = copy.size_bytes
                self.repairs.append(f"{name}: restored from the trash")
            else:
                self._move_away(name, "the copy in the trash was damaged too")

    def _move_away(self, name: str, reason: str) -> None:
        if self.repair:
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


def _digest(backend: BlobBackend, name: str) -> Digest | StoreError:
    try:
        with backend.open(name) as file, os_errors_are_unavailable("blob", name):
            return digest_stream(file)
    except StoreError as error:
        return error


def _sha256_of(name: str) -> str | None:
    return split_fanned_name(BLOBS, name)
