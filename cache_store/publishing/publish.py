"""Publishing a partition: blobs first, its manifest last.

Invariants: a manifest is in the store only if all its blobs were durable before; it is created, never
overwritten, so the first publisher's stays, unless this process must not believe it: then it goes into
quarantine, because whoever can write to the store could stop every publish otherwise; every local file is
checked against the manifest that will vouch for it. An evict may take blobs until it can see the manifest, so
they are looked at again after it, and brought back.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from warmrank.cache_store.backends.backend import BlobBackend, NewFile
from warmrank.cache_store.errors import NotInStore, StoreError, Untrusted, is_damage
from warmrank.cache_store.layout import blob_name, manifest_name
from warmrank.cache_store.node.digest_index import DigestIndex
from warmrank.cache_store.node.private_files import digest_private, os_errors_are_unusable
from warmrank.cache_store.publishing.local_blobs import LocalBlobs, absent_blobs, check_standing
from warmrank.cache_store.publishing.reports import BlobReport, PublishReport
from warmrank.cache_store.records.documents import Documents, StandingManifest, quarantine
from warmrank.cache_store.records.manifest import PartitionManifest, PartitionRef, partition_key
from warmrank.cache_store.steps import Step, reached

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
    """The manifest that stands, or why the one that stands is not believed here.

    Raises:
        NewerFormat: a later release wrote it, and somebody trusted here signed it, or nobody needs to.
    """
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
    """Bring back what an evict took before it could see the manifest that needs it.

    Args:
        documents: the store.
        blobs: those of this publisher.
        standing: the manifest.
        of: only the blobs of these functions; None is all.
    """
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
