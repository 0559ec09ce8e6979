"""Reading the whole store and saying everything that is wrong with it; repairs it where asked.

Without ``repair`` nothing is changed. With it, what is damaged goes into quarantine, and what is missing
comes back from the trash, from another place of the store, or from a cache directory. What was found damaged
is read again directly before it is moved, because a publisher may have put it again since.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from warmrank.cache_store.backends.backend import BlobBackend, NewFile
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
from warmrank.cache_store.parallel import Meter, OnProgress, each
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

    def verify(tier: Tier, view: TieredBackend) -> VerifyReport:
        audit = _Audit(
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
        faults, repairs = (
            tuple(f"{tier.name}: {line}" for line in lines) for lines in (report.faults, report.repairs)
        )
        return replace(report, faults=faults, repairs=repairs)

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
class _Audit:
    """Hashes every blob of one place, judges every document, and follows every reference."""

    documents: Documents
    repair: bool
    is_whole: bool  # what a document needs must be here; a near place may hold it in part
    is_writable: bool  # publishes write here too, so that they repair it
    places: Sequence[BlobBackend]  # other places of the store, where a repair looks for good copies
    cache_root: Path | None  # likewise
    faults: list[str] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)

    def run(self, on_progress: OnProgress | None) -> VerifyReport:
        """Read everything; ages go by this machine's clock, as the store's own would need a write."""
        now_s = time.time()
        launches = self._read_documents(LAUNCHES, read_launch)
        listings = self._read_documents(DIRECTORIES, _read_listing)
        records = {name: record for name, record in launches.items() if record is not None}
        refs = [ref for record in records.values() for ref in record.partitions]
        manifests = self._read_documents(
            MANIFESTS, _read_manifest, [manifest_name(ref.manifest_key) for ref in refs]
        )
        entries = [entry for found in manifests.values() if found for entry in found.manifest.artifacts]
        needed = {blob_name(entry.sha256): entry.digest for entry in entries}
        for blobs in listings.values():
            needed |= blobs or {}
        sizes = self._hash_blobs(needed, on_progress)
        self._check_references(records, manifests, listings, sizes)
        self._check_debris(now_s)
        return VerifyReport(
            num_blobs=len(sizes),
            num_manifests=len(manifests),
            num_launches=len(launches),
            num_listings=len(listings),
            bytes_hashed=sum(sizes.values()),
            faults=tuple(self.faults),
            repairs=tuple(self.repairs),
        )

    def _read_documents(
        self, prefix: str, read: Callable[[Documents, str], _T], needed: Iterable[str] = ()
    ) -> dict[str, _T | None]:
        """Documents by name; None for one that cannot be used."""

        def look(name: str) -> tuple[_T | None, str, bool]:
            try:
                return read(self.documents, name), "", False
            except StoreError as error:
                is_revoked = isinstance(error, Untrusted) and error.reason == "revoked"
                return None, self._said(error), is_damage(error) or is_revoked

        def put_again(name: str) -> str:
            for place in self.places:
                with contextlib.suppress(StoreError):
                    read(Documents(backend=place, trust=self.documents.trust), name)
                    self.documents.write(name, read_stored_form(place, name))
                    return "another place of the store"
            return ""

        listed = [info.name for info in self.documents.backend.list(prefix)]
        return self._judge(prefix, listed, frozenset(needed), look, put_again)

    def _hash_blobs(self, needed: Mapping[str, Digest], on_progress: OnProgress | None) -> dict[str, int]:
        """Sizes of all blobs by name, the damaged ones included."""
        backend = self.documents.backend
        listed = {
            info.name: info.content_bytes or info.stored_bytes for info in self.documents.backend.list(BLOBS)
        }
        meter = Meter(
            "Verifying",
            total_bytes=sum(listed.values()),
            total_files=len(listed),
            on_progress=on_progress,
        )

        def look(name: str) -> tuple[Digest | None, str, bool]:
            answer = _digest(backend, name)
            meter.count(listed.get(name, 0), 1)
            if isinstance(answer, NotInStore) and not backend.stat([name]):
                return None, "", False  # another process moved it since the listing
            if isinstance(answer, StoreError):
                return None, self._said(answer), is_damage(answer)
            is_damaged = answer.sha256 != split_fanned_name(BLOBS, name)
            return answer, f"{name}: its bytes have {answer}" if is_damaged else "", is_damaged

        @functools.cache
        def local_files() -> Mapping[int, Sequence[Path]]:
            return self._files({digest.size_bytes for digest in needed.values()})

        def put_again(name: str) -> str:
            if name not in needed:
                return ""
            files = local_files().get(needed[name].size_bytes, ())
            with tempfile.TemporaryDirectory() as directory:
                for path, where in self._copies(name, files, Path(directory)):
                    with contextlib.suppress(Corrupt, UnusableCache):  # then the file does not hold it
                        if backend.put_new([NewFile(name=name, source=path, expected=needed[name])]):
                            return where
            return ""

        found = self._judge(BLOBS, list(listed), needed.keys(), look, put_again)
        meter.finish()
        return {name: digest.size_bytes for name, digest in found.items() if digest is not None}

    def _judge(
        self,
        prefix: str,
        listed: Iterable[str],
        needed: AbstractSet[str],
        look: Callable[[str], tuple[_T | None, str, bool]],
        put_again: Callable[[str], str],
    ) -> dict[str, _T | None]:
        """Look at files: what each is, its fault, and whether it is damaged.

        A repair moves away what is still damaged when it is looked at again. Then comes back what was moved,
        or is ``needed`` and not there: from the trash, else from where ``put_again`` says that it found it.
        """
        found: dict[str, _T | None] = {}

        def judge(name: str) -> tuple[_T | None, str, bool]:
            answer = look(name)
            if answer[2] and self.repair:
                answer = look(name)
                if answer[2]:
                    quarantine(self.documents.backend, name, answer[1])
                    self.repairs.append(f"{name}: moved into quarantine")
            return answer

        def judge_all(names: Sequence[str]) -> set[str]:
            """Note what they are; return the damaged ones."""
            answers = dict(zip(names, each(judge, names, num_threads=READERS), strict=True))
            self.faults.extend(fault for _, fault, _ in answers.values() if fault)
            found.update({name: value for name, (value, _, _) in answers.items()})
            return {name for name, (_, _, is_damaged) in answers.items() if is_damaged}

        damaged = judge_all([name for name in listed if self._is_named(prefix, name)])
        if not self.repair:
            return found
        missing = needed - found.keys()
        back = restore(self.documents.backend, damaged | missing)
        self.repairs.extend(f"{name}: restored from the trash" for name in sorted(back))
        bad_copies = judge_all(sorted(back))
        for name in sorted(((damaged | missing) - back) | bad_copies):
            # A near place need not have it, unless it had.
            if (self.is_whole or name in found) and (where := put_again(name)):
                self.repairs.append(f"{name}: put again from {where}")
                found[name] = look(name)[0]
        self.faults.extend(f"{name}: missing" for name in sorted(missing & found.keys()))
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
        copy = directory / "copy"
        for place in self.places:
            copy.unlink(missing_ok=True)
            with contextlib.suppress(StoreError, OSError):
                with place.open(name) as file, create_private(copy) as target:
                    shutil.copyfileobj(file, target)
                yield copy, "another place of the store"

    def _check_references(
        self,
        launches: Mapping[str, LaunchRecord],
        manifests: Mapping[str, StandingManifest | None],
        listings: Mapping[str, Iterable[str] | None],
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
            missing = (blob for blob in blobs or () if blob not in sizes)
            self.faults.extend(f"{name}: needs {blob}, which is missing" for blob in missing)

    def _check_debris(self, now_s: float) -> None:
        found, _ = list_debris(self.documents.backend)  # what other users write now is no fault
        where = "" if self.is_writable else " where this place may be written"
        for info in found:
            if (age_s := now_s - info.modified_s) > DEBRIS_S:
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


def _digest(backend: BlobBackend, name: str) -> Digest | StoreError:
    try:
        with backend.open(name) as file, os_errors_are_unavailable("blob", name):
            return digest_stream(file)
    except StoreError as error:
        return error
