"""Publishing partitions: blobs first, manifests last.

A manifest is created only after all its blobs are durable, and never overwritten: the first publisher's
stays, unless this process must not believe it, which goes into quarantine. An evict may take blobs until it
sees the manifest, so they are looked at again after it, and brought back.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from warmrank.cache_store.backends.backend import BlobBackend, NewFile
from warmrank.cache_store.cache_dir.digest_index import DigestIndex
from warmrank.cache_store.cache_dir.private_files import digest_private, os_errors_are_unusable
from warmrank.cache_store.digests import Digest, digest_bytes
from warmrank.cache_store.errors import NotInStore, StoreError, Untrusted, is_damage
from warmrank.cache_store.layout import blob_name, manifest_name
from warmrank.cache_store.publish.local_blobs import LocalBlobs, absent_blobs, check_standing
from warmrank.cache_store.records.documents import Documents, StandingManifest, quarantine
from warmrank.cache_store.records.manifest import PartitionManifest, PartitionRef, partition_key
from warmrank.cache_store.steps import Step, reached


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobReport:
    """Outcome of adding one file.

    Attributes:
        digest: its digest, which names the blob.
        created: this call added the blob; otherwise it was there.
    """

    digest: Digest
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishReport:
    """Outcome of publishing one partition.

    Attributes:
        key: the partition's key.
        ref: what a launch record says about the manifest that stands in the store under ``key``.
        created: this call created the manifest; otherwise one stood there, and it stays.
        num_blobs_new: blobs that this call added.
        bytes_new: their size.
        conflicts: functions for which the standing manifest has other bytes: their compile is not
            deterministic.
    """

    key: str
    ref: PartitionRef
    created: bool
    num_blobs_new: int
    bytes_new: int
    conflicts: tuple[str, ...]


logger = logging.getLogger(__name__)


def put_blob(backend: BlobBackend, path: Path) -> BlobReport:
    """Add one private local file; durable on return.

    Raises:
        Corrupt: the file changed while it was read.
        UnusableCache: it is not there, or not private.
        StoreUnavailable: it could not be stored.
    """
    with os_errors_are_unusable("file", path):
        digest = digest_private(path)
    name = blob_name(digest.sha256)
    absent_blobs(backend, {name: digest})  # a blob of the wrong size goes out of the way
    created = backend.put_new([NewFile(name=name, source=path, expected=digest)])
    if not created:
        check_standing(backend, {name: digest})
    return BlobReport(digest=digest, created=bool(created))


def publish_partition(
    documents: Documents, launch_key: str, manifest: PartitionManifest, root: Path
) -> PublishReport:
    """Publish the artifacts of ``manifest``, which lie below the cache directory ``root``.

    Raises:
        Corrupt: a file is not what the manifest says; nothing was published.
        Untrusted: there is no key to sign with, or somebody not trusted here was faster.
        UnusableCache: a file is not there, or not private.
        StoreUnavailable: the store cannot be written; to try again is safe.
    """
    reached(Step.PUBLISH_STARTED)
    key = partition_key(launch_key, manifest)
    stood, refusal = _standing(documents, key)
    # Sealed before the first write: without a signing key nothing is published at all.
    sealed = None if stood else documents.trust.seal("manifest", key, manifest.to_bytes())
    conflicts = conflicts_of(stood, manifest)
    blobs = _local_blobs(manifest, root, without=conflicts)
    new = blobs.put(documents.backend, make_durable=stood is None)
    blobs.index.save()
    reached(Step.PUBLISH_BLOBS)
    if refusal:
        quarantine(documents.backend, manifest_name(key), str(refusal))
    created = sealed is not None and documents.write(manifest_name(key), sealed)
    reached(Step.PUBLISH_MANIFEST)
    standing = stood
    if standing is None:
        standing = documents.take_manifest(key)  # this one, or that of a publisher who was faster
        conflicts = conflicts_of(standing, manifest)
    # Blobs that were put after their manifest stood need no second look.
    _look_again(documents, blobs, standing, of=conflicts if stood else None)
    reached(Step.PUBLISH_DONE)
    report = PublishReport(
        key=key,
        ref=_ref(key, standing),
        created=created,
        num_blobs_new=len(new),
        bytes_new=sum(digest.size_bytes for digest in new),
        conflicts=conflicts,
    )
    _log(report, manifest.partition)
    return report


def _standing(documents: Documents, key: str) -> tuple[StandingManifest | None, Untrusted | None]:
    """The manifest that stands, or why the one that stands is not believed here."""
    try:
        return documents.take_manifest(key), None
    except NotInStore:
        return None, None
    except Untrusted as error:
        # What is damaged (a bad signature too) is in quarantine by now.
        return None, None if is_damage(error) else error
    except StoreError as error:
        if is_damage(error):
            return None, None
        raise


def conflicts_of(standing: StandingManifest | None, manifest: PartitionManifest) -> tuple[str, ...]:
    """Functions for which the manifest that stands has other bytes than this one."""
    if standing is None:
        return ()
    digests = {(entry.function, entry.path): entry.sha256 for entry in standing.manifest.artifacts}
    differing = {
        entry.function
        for entry in manifest.artifacts
        if digests.get((entry.function, entry.path)) != entry.sha256
    }
    return tuple(sorted(differing))


def _local_blobs(manifest: PartitionManifest, root: Path, *, without: Collection[str]) -> LocalBlobs:
    entries = [entry for entry in manifest.artifacts if entry.function not in without]
    return LocalBlobs(
        digests={str(entry.local_path(root)): entry.digest for entry in entries},
        index=DigestIndex.open(root, manifest.partition),
    )


def _look_again(
    documents: Documents, blobs: LocalBlobs, standing: StandingManifest, *, of: Collection[str] | None
) -> None:
    """Bring back what an evict took before it could see the manifest; ``of`` names functions, None is all."""
    needed = [entry.digest for entry in standing.manifest.artifacts if of is None or entry.function in of]
    if not needed:
        return
    for name in sorted(blobs.put_again(documents.backend, needed)):
        logger.warning("%s, which another publisher put, is gone; who has it must publish again", name)


def _ref(key: str, standing: StandingManifest) -> PartitionRef:
    manifest = standing.manifest
    return PartitionRef(
        partition=manifest.partition, rank=manifest.rank, manifest_key=key, manifest_sha256=standing.sha256
    )


def _log(report: PublishReport, partition: str) -> None:
    logger.info(
        "Published %s as %s: %d new blobs, %d bytes, manifest %s",
        partition,
        report.key[:12],
        report.num_blobs_new,
        report.bytes_new,
        "created" if report.created else "stood there",
    )
    for function in report.conflicts:
        logger.warning(
            "%s of %s compiled to other bytes than those published first: nondeterministic",
            function,
            partition,
        )


_INDEX = "offline_build"


def publish_many(
    documents: Documents,
    launch_key: str,
    manifests: Sequence[PartitionManifest],
    files: Mapping[str, Path],
    root: Path,
) -> tuple[PublishReport, ...]:
    """Publish partitions whose artifacts lie somewhere below the cache directory ``root``.

    Args:
        documents: the store.
        launch_key: the launch's.
        manifests: of distinct partitions.
        files: for each sha256 that the manifests name, a private file with those bytes.
        root: the cache directory, which keeps the index of digests.

    Returns:
        A report for each manifest, in their order; new blobs are counted in the first.

    Raises:
        Corrupt: a file is not what the manifests say; nothing was published.
        Untrusted: there is no key to sign with.
        UnusableCache: a file is not there, or not private.
        StoreUnavailable: the store cannot be written; to try again is safe.
    """
    reached(Step.PUBLISH_STARTED)
    keyed = {partition_key(launch_key, manifest): manifest for manifest in manifests}
    stood = _standing_of_all(documents, keyed)
    # Sealed before the first write: without a signing key nothing is published at all.
    sealed = {
        key: documents.trust.seal("manifest", key, manifest.to_bytes())
        for key, manifest in keyed.items()
        if key not in stood
    }
    digests = _digests(manifests)
    blobs = LocalBlobs(
        digests={str(files[digest.sha256]): digest for digest in digests},
        index=DigestIndex.open(root, _INDEX),
    )
    new = blobs.put(documents.backend, make_durable=bool(sealed))
    blobs.index.save()
    reached(Step.PUBLISH_BLOBS)
    created = _write_manifests(documents, sealed)
    reached(Step.PUBLISH_MANIFEST)
    stood |= {key: documents.take_manifest(key) for key in keyed if key not in stood and key not in created}
    blobs.put_again(documents.backend, digests)
    reached(Step.PUBLISH_DONE)
    reports = [
        _report_of(key, manifest, created.get(key), stood.get(key), new if position == 0 else ())
        for position, (key, manifest) in enumerate(keyed.items())
    ]
    logger.info("Published %d partitions, %d of them new, %d new blobs", len(keyed), len(created), len(new))
    return tuple(reports)


def _standing_of_all(
    documents: Documents, keyed: Mapping[str, PartitionManifest]
) -> dict[str, StandingManifest]:
    """The manifests that stand and can be believed; those that cannot be make way."""
    found: dict[str, StandingManifest] = {}
    present = documents.backend.stat(manifest_name(key) for key in keyed)
    for key in keyed:
        if manifest_name(key) not in present:
            continue
        try:
            found[key] = documents.take_manifest(key)
        except StoreError as error:
            if isinstance(error, Untrusted) and not is_damage(error):
                quarantine(documents.backend, manifest_name(key), str(error))
            elif not is_damage(error):  # what is damaged is in quarantine by now
                raise
    return found


def _digests(manifests: Sequence[PartitionManifest]) -> tuple[Digest, ...]:
    found = {entry.sha256: entry.digest for manifest in manifests for entry in manifest.artifacts}
    return tuple(found.values())


def _write_manifests(documents: Documents, sealed: Mapping[str, bytes]) -> dict[str, str]:
    """Create manifests; the sha256 of the stored form of those that this call created, by key."""
    if not sealed:
        return {}
    files = {
        key: NewFile(name=manifest_name(key), source=data, expected=digest_bytes(data))
        for key, data in sealed.items()
    }
    names = set(documents.backend.put_new(list(files.values())))
    return {key: file.expected.sha256 for key, file in files.items() if file.name in names}


def _report_of(
    key: str,
    manifest: PartitionManifest,
    created_sha256: str | None,
    stood: StandingManifest | None,
    new: Sequence[Digest],
) -> PublishReport:
    standing = stood.manifest if stood is not None else manifest
    sha256 = created_sha256 or (stood.sha256 if stood is not None else "")
    return PublishReport(
        key=key,
        ref=PartitionRef(
            partition=standing.partition, rank=standing.rank, manifest_key=key, manifest_sha256=sha256
        ),
        created=created_sha256 is not None,
        num_blobs_new=len(new),
        bytes_new=sum(digest.size_bytes for digest in new),
        conflicts=conflicts_of(stood, manifest) if created_sha256 is None else (),
    )
