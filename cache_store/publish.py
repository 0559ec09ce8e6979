"""Publishing a partition: blobs first, its manifest last.

Invariants: a manifest is in the store only if all its blobs were durable before; it is created, never
overwritten, so the first publisher's stays, unless this process must not believe it: then it goes into
quarantine, because whoever can write to the store could stop every publish otherwise; every local file is
checked against the manifest that will vouch for it.
"""

from __future__ import annotations

import logging
from pathlib import Path

from cache_store.backend import BlobBackend, NewFile
from cache_store.digests import Digest
from cache_store.documents import Documents, StandingManifest, quarantine, quarantine_if_damaged
from cache_store.errors import Corrupt, NotInStore, StoreError, Untrusted, is_damage
from cache_store.layout import blob_name, manifest_name
from cache_store.manifest import PartitionManifest, PartitionRef, partition_key
from cache_store.private_files import digest_private, os_errors_are_unusable
from cache_store.reports import PublishReport

logger = logging.getLogger(__name__)


def put_blob(backend: BlobBackend, path: Path) -> Digest:
    """Add one private local file; durable on return.

    Raises:
        Corrupt: the file changed while it was read.
        UnusableCache: it is not there, or not private.
        StoreUnavailable: it could not be stored.
    """
    digest = _local_digest(path)
    put_blobs(backend, {path: digest})
    return digest


def put_blobs(backend: BlobBackend, digests: dict[Path, Digest]) -> tuple[Digest, ...]:
    """Add private local files, each once, and check all of them; raises as `put_blob`.

    A blob of the wrong size is moved into quarantine and put again, so a publish repairs it.

    Returns:
        The digests of those that were new.
    """
    new: dict[str, NewFile] = {}
    for path, digest in digests.items():
        name = blob_name(digest.sha256)
        if name not in new and not _holds(backend, name, digest):
            new[name] = NewFile(name=name, source=path, expected=digest)
        elif (actual := _local_digest(path)) != digest:
            raise _changed(path, expected=digest, actual=actual)
    if not new:
        return ()
    return tuple(new[name].expected for name in backend.put_new(list(new.values())))


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
    key = partition_key(launch_key, manifest)
    standing, refusal = _standing(documents, key)
    # Sealed before the first write: without a signing key nothing is published at all.
    sealed = None if standing else documents.trust.seal("manifest", key, manifest.to_bytes())
    conflicts = _conflicts(standing, manifest)
    agreed = [entry for entry in manifest.artifacts if entry.function not in conflicts]
    new = put_blobs(documents.backend, {root / entry.path: entry.digest for entry in agreed})
    if refusal:
        quarantine(documents.backend, manifest_name(key), str(refusal))
    created = sealed is not None and documents.write(manifest_name(key), sealed)
    if not standing:
        standing = documents.take_manifest(key)  # this one, or that of a publisher who was faster
        conflicts = _conflicts(standing, manifest)
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


def _conflicts(standing: StandingManifest | None, manifest: PartitionManifest) -> tuple[str, ...]:
    if standing is None:
        return ()
    digests = {(entry.function, entry.path): entry.sha256 for entry in standing.manifest.artifacts}
    differing = {
        entry.function
        for entry in manifest.artifacts
        if digests.get((entry.function, entry.path)) != entry.sha256
    }
    return tuple(sorted(differing))


def _holds(backend: BlobBackend, name: str, digest: Digest) -> bool:
    info = backend.stat([name]).get(name)
    if info is None or info.content_bytes in (None, digest.size_bytes):
        return info is not None
    expected, actual = f"{digest.size_bytes} bytes", f"{info.content_bytes} bytes"
    quarantine_if_damaged(backend, name, Corrupt(what="blob", where=name, expected=expected, actual=actual))
    return False


def _local_digest(path: Path) -> Digest:
    with os_errors_are_unusable("file", path):
        return digest_private(path)


def _ref(key: str, standing: StandingManifest) -> PartitionRef:
    manifest = standing.manifest
    return PartitionRef(
        partition=manifest.partition, rank=manifest.rank, manifest_key=key, manifest_sha256=standing.sha256
    )


def _changed(path: Path, *, expected: Digest, actual: Digest) -> Corrupt:
    remedy = "it changed after it was made; compile again"
    return Corrupt(
        what="artifact", where=str(path), expected=str(expected), actual=str(actual), remedy=remedy
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
