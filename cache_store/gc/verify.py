"""Reading the whole store and saying everything that is wrong with it; repairs it where asked.

Without ``repair`` nothing is changed. With it, what is damaged goes into quarantine, and what is missing
comes back from the trash, from another place of the store, or from a cache directory. What was found damaged
is read again directly before it is moved, because a publisher may have put it again since.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from warmrank.cache_store.backends.backend import BlobBackend, FileInfo, NewFile
from warmrank.cache_store.backends.deadline import Tier, TierState
from warmrank.cache_store.backends.places import TieredBackend, in_each
from warmrank.cache_store.cache_dir.private_files import create_private
from warmrank.cache_store.digests import Digest, digest_stream
from warmrank.cache_store.errors import (
    Corrupt,
    NotInStore,
    StoreError,
    Untrusted,
    UnusableCache,
    is_damage,
    is_final,
    os_errors_are_unavailable,
)
from warmrank.cache_store.gc.trash import DEBRIS_S, list_debris, restore
from warmrank.cache_store.layout import (
    BLOBS,
    DIRECTORIES,
    LAUNCHES,
    MANIFESTS,
    blob_name,
    is_record,
    manifest_name,
    split_fanned_name,
)
from warmrank.cache_store.parallel import Meter, OnProgress, each, nothing
from warmrank.cache_store.records.directory_listing import read_listing
from warmrank.cache_store.records.documents import (
    READERS,
    Documents,
    StandingManifest,
    quarantine,
    read_launch,
    read_stored_form,
)
from warmrank.cache_store.records.manifest import LaunchRecord
from warmrank.cache_store.signing.trust import Trust

_ELSEWHERE = "this place is only read here: run `warmrank store verify --repair` where it may be written"
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

    def verify(tier: Tier, view: TieredBackend) -> VerifyReport:
        audit = Audit(
            documents=Documents(backend=view, trust=trust),
            repair=repair and tier.is_writable,
            is_whole=tier is tiers[-1],
            is_writable=tier.is_writable,
            places=[TieredBackend([other]) for other in tiers if other is not tier],
            cache_root=cache_root,
        )
        report = audit.run(on_progress)
        if len(tiers) == 1:
            return report
        faults = tuple(f"{tier.name}: {line}" for line in report.faults)
        return replace(report, faults=faults, repairs=tuple(f"{tier.name}: {x}" for x in report.repairs))

    reports, errors = in_each(tiers, verify)
    for _, error in errors:
        if is_final(error):
            raise error
    failed = [f"{tier.name}: {error}" for tier, error in errors]
    away = [f"{state.location}: {state.reason}" for state in left_out if state.state == "away"]
    return VerifyReport(
        num_blobs=sum(report.num_blobs for report in reports),
        num_manifests=sum(report.num_manifests for report in reports),
        num_launches=sum(report.num_launches for report in reports),
        num_listings=sum(report.num_listings for report in reports),
        bytes_hashed=sum(report.bytes_hashed for report in reports),
        faults=(*(line for report in reports for line in report.faults), *failed, *away),
        repairs=tuple(line for report in reports for line in report.repairs),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Hashes every blob of one place, judges every document, and follows every reference.

    A repair looks for good copies in other ``places`` of the store and in a cache directory.
    """

    documents: Documents
    repair: bool = False
    is_whole: bool = True  # what a document needs must be here; a near place may hold it in part
    is_writable: bool = True  # publishes write here too, so that they repair it
    places: Sequence[BlobBackend] = ()
    cache_root: Path | None = None
    faults: list[str] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)

    def run(
        self, on_progress: OnProgress | None = None, clock: Callable[[], float] = time.time
    ) -> VerifyReport:
        """Do it; ``clock`` is in epoch seconds, as the store's own would need a write."""
        now_s = clock()
        all_launches = self._read_records(LAUNCHES, read_launch)
        all_listings = self._read_records(DIRECTORIES, _read_listing)
        launches = {name: record for name, record in all_launches.items() if record is not None}
        listings = {name: blobs for name, blobs in all_listings.items() if blobs is not None}
        self._bring_back(
            manifest_name(ref.manifest_key) for record in launches.values() for ref in record.partitions
        )
        manifests = self._read_manifests(launches.values())
        entries = [entry for found in manifests.values() if found for entry in found.manifest.artifacts]
        needed = {blob_name(entry.sha256): entry.digest for entry in entries}
        needed |= {name: digest for blobs in listings.values() for name, digest in blobs.items()}
        self._bring_back(needed)
        sizes = self._hash_blobs(on_progress)
        self._put_again(needed)
        self._check_references(launches, manifests, listings, sizes)
        self._check_debris(now_s)
        return VerifyReport(
            num_blobs=len(sizes),
            num_manifests=len(manifests),
            num_launches=len(all_launches),
            num_listings=len(all_listings),
            bytes_hashed=sum(sizes.values()),
            faults=tuple(self.faults),
            repairs=tuple(self.repairs),
        )

    def _read_records(self, prefix: str, read: Callable[[Documents, str], _T]) -> dict[str, _T | None]:
        """Records by name; None for one that cannot be used."""
        names = [info.name for info in self.documents.backend.list(prefix)]
        if prefix == DIRECTORIES:
            self.faults.extend(f"{name}: no name of a listing" for name in names if not is_record(name))
            names = [name for name in names if is_record(name)]
        return self._judge_documents(names, read)

    def _read_manifests(self, records: Iterable[LaunchRecord]) -> dict[str, StandingManifest | None]:
        """Manifests by name, also those that only another place had; None where one cannot be used."""
        names = self._named(MANIFESTS, "manifest", self.documents.backend.list(MANIFESTS))
        found = self._judge_documents(list(names), _read_manifest)
        refs = {manifest_name(ref.manifest_key): ref for record in records for ref in record.partitions}
        for name in sorted(refs.keys() - names.keys()) if self.repair and self.is_whole else ():
            if (standing := self._taken_over(name, _read_manifest)) is not None:
                self.faults.append(f"{name}: missing")
                found[name] = standing
        return found

    def _hash_blobs(self, on_progress: OnProgress | None) -> dict[str, int]:
        """Sizes of all blobs by name, the damaged ones included."""
        listed = list(self.documents.backend.list(BLOBS))
        total_bytes = sum(info.content_bytes or info.stored_bytes for info in listed)
        meter = Meter("Verifying", total_bytes=total_bytes, total_files=len(listed), on_progress=on_progress)
        infos = self._named(BLOBS, "blob", listed)

        def count(name: str) -> None:
            meter.count(infos[name].content_bytes or infos[name].stored_bytes, 1)

        found = self._judge(list(infos), self._look_at_blob, self._restored, count)
        meter.finish()
        return {name: digest.size_bytes for name, digest in found.items() if digest is not None}

    def _named(self, prefix: str, what: str, infos: Iterable[FileInfo]) -> dict[str, FileInfo]:
        """Files by name; one whose name the layout does not give is a fault."""
        found: dict[str, FileInfo] = {}
        for info in infos:
            if split_fanned_name(prefix, info.name):
                found[info.name] = info
            else:
                self.faults.append(f"{info.name}: no name of a {what}")
        return found

    def _judge_documents(
        self, names: Sequence[str], read: Callable[[Documents, str], _T]
    ) -> dict[str, _T | None]:
        def look(name: str) -> tuple[_T | None, str, bool]:
            try:
                return read(self.documents, name), "", False
            except StoreError as error:
                is_revoked = isinstance(error, Untrusted) and error.reason == "revoked"
                return None, self._said(error), is_damage(error) or is_revoked

        return self._judge(names, look, lambda name: self._taken_over(name, read))

    def _judge(
        self,
        names: Sequence[str],
        look: Callable[[str], tuple[_T | None, str, bool]],
        replaced: Callable[[str], _T | None],
        count: Callable[[str], None] = nothing,
    ) -> dict[str, _T | None]:
        """Look at files: what each is, its fault, and whether a repair takes it away.

        What stays bad when it is looked at again is moved away, and replaced if it can be.
        """

        def judge(name: str) -> tuple[_T | None, str]:
            found, fault, goes_away = look(name)
            if goes_away and self.repair:
                found, fault, goes_away = look(name)
                if goes_away:
                    self._move_away(name, fault)
                    found = replaced(name) or found
            count(name)
            return found, fault

        answers = dict(zip(names, each(judge, names, num_threads=READERS), strict=True))
        self.faults.extend(fault for _, fault in answers.values() if fault)
        return {name: found for name, (found, _) in answers.items()}

    def _look_at_blob(self, name: str) -> tuple[Digest | None, str, bool]:
        answer = _digest(self.documents.backend, name)
        if isinstance(answer, NotInStore) and not self.documents.backend.stat([name]):
            return None, "", False  # another process moved it since the listing
        if isinstance(answer, StoreError):
            return None, self._said(answer), is_damage(answer)
        is_damaged = answer.sha256 != split_fanned_name(BLOBS, name)
        return answer, f"{name}: its bytes have {answer}" if is_damaged else "", is_damaged

    def _restored(self, name: str) -> Digest | None:
        """A good copy in the trash takes the place of a damaged blob."""
        if name not in restore(self.documents.backend, [name]):
            return None
        copy = _digest(self.documents.backend, name)
        if isinstance(copy, Digest) and copy.sha256 == split_fanned_name(BLOBS, name):
            self.repairs.append(f"{name}: restored from the trash")
            return copy
        self._move_away(name, "the copy in the trash was damaged too")
        return None

    def _taken_over(self, name: str, read: Callable[[Documents, str], _T]) -> _T | None:
        """A document that another place has whole, and this one now; None where none has."""
        for place in self.places:
            try:
                found = read(Documents(backend=place, trust=self.documents.trust), name)
            except StoreError:
                continue
            self.documents.write(name, read_stored_form(place, name))
            self.repairs.append(f"{name}: put again from another place of the store")
            return found
        return None

    def _put_again(self, needed: Mapping[str, Digest]) -> None:
        """Put blobs that are not there from wherever a good copy is."""
        backend = self.documents.backend
        if not (self.repair and self.is_whole):
            return
        standing = backend.stat(needed)
        missing = {name: digest for name, digest in needed.items() if name not in standing}
        files = self._files(missing.values())
        with tempfile.TemporaryDirectory() as directory:
            for name, digest in missing.items():
                fetched = (_copy_out(place, name, Path(directory)) for place in self.places)
                for path in filter(None, itertools.chain(files[digest.size_bytes], fetched)):
                    with contextlib.suppress(Corrupt, UnusableCache):  # then the file does not hold it
                        if backend.put_new([NewFile(name=name, source=path, expected=digest)]):
                            is_fetched = path.parent == Path(directory)
                            where = "another place of the store" if is_fetched else str(path)
                            self.repairs.append(f"{name}: put again from {where}")
                            break

    def _files(self, digests: Iterable[Digest]) -> dict[int, list[Path]]:
        """Files of the cache directory by their size, as far as it is that of one of ``digests``."""
        found: dict[int, list[Path]] = {digest.size_bytes: [] for digest in digests}
        for path in self.cache_root.rglob("*") if found and self.cache_root else ():
            with contextlib.suppress(OSError):  # gone meanwhile
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and status.st_size in found:
                    found[status.st_size].append(path)
        return found

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

    def _check_references(
        self,
        launches: Mapping[str, LaunchRecord],
        manifests: Mapping[str, StandingManifest | None],
        listings: Mapping[str, Iterable[str]],
        sizes: Mapping[str, int],
    ) -> None:
        for name, record in launches.items():
            for ref in record.partitions:
                manifest = manifest_name(ref.manifest_key)
                standing = manifests.get(manifest)
                if manifest not in manifests and self.is_whole:
                    self.faults.append(f"{name}: the manifest of {ref.partition} is missing")
                elif standing is not None and standing.sha256 != ref.manifest_sha256:
                    self.faults.append(f"{name}: the manifest of {ref.partition} is another one than it pins")
        for name, standing in manifests.items():
            for entry in standing.manifest.artifacts if standing else ():
                blob = blob_name(entry.sha256)
                if sizes.get(blob) != entry.size_bytes and (self.is_whole or blob in sizes):
                    actual = f"{sizes[blob]} bytes long" if blob in sizes else "missing"
                    needs = f"{entry.function} needs {blob} of {entry.size_bytes} bytes"
                    self.faults.append(f"{name}: {needs}, which is {actual}")
        for name, blobs in listings.items() if self.is_whole else ():
            missing = (blob for blob in blobs if blob not in sizes)
            self.faults.extend(f"{name}: needs {blob}, which is missing" for blob in missing)

    def _check_debris(self, now_s: float) -> None:
        found, _ = list_debris(self.documents.backend)  # what other users write now is no fault
        for info in found:
            if (age_s := now_s - info.modified_s) > DEBRIS_S:
                where = "" if self.is_writable else " where this place may be written"
                self.faults.append(
                    f"{info.name}: {info.stored_bytes} bytes on their way in for {age_s / 3600.0:.0f} h, "
                    f"by a process that must have died; `warmrank store evict` removes them{where}"
                )

    def _said(self, error: StoreError) -> str:
        """An error with the remedy that there is for it in this place."""
        if self.is_writable or not isinstance(error, Corrupt | Untrusted):
            return str(error)
        if isinstance(error, Untrusted) and error.reason == "unknown_signer":
            return str(error)
        return str(error.but(remedy=_ELSEWHERE))


def _read_manifest(documents: Documents, name: str) -> StandingManifest:
    return documents.read_manifest(split_fanned_name(MANIFESTS, name) or "")


def _read_listing(documents: Documents, name: str) -> dict[str, Digest]:
    listing = read_listing(documents, name).listing
    return {blob_name(file.sha256): file.digest for file in listing.files}


def _copy_out(place: BlobBackend, name: str, directory: Path) -> Path | None:
    """A private copy of a blob, not verified yet; None where it cannot be had."""
    path = directory / name.rpartition("/")[2]
    path.unlink(missing_ok=True)
    try:
        with place.open(name) as file, create_private(path) as target:
            shutil.copyfileobj(file, target)
    except (StoreError, OSError):
        return None
    return path


def _digest(backend: BlobBackend, name: str) -> Digest | StoreError:
    try:
        with backend.open(name) as file, os_errors_are_unavailable("blob", name):
            return digest_stream(file)
    except StoreError as error:
        return error
