"""Publishing many partitions that hold the same few artifacts, as an offline build makes them.

Invariants: those of `publish.publish_partition`, kept for all together: every blob is put once and durable
before the first manifest, all manifests are created in one batch, whose cost is one flush and not one for
each, and blobs are looked at again after it. A manifest that stands stays, as there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.digests import Digest, digest_bytes
from warmrank.cache_store.errors import StoreError, Untrusted, is_damage
from warmrank.cache_store.layout import manifest_name
from warmrank.cache_store.node.digest_index import DigestIndex
from warmrank.cache_store.publishing.local_blobs import LocalBlobs
from warmrank.cache_store.publishing.publish import conflicts_of
from warmrank.cache_store.publishing.reports import PublishReport
from warmrank.cache_store.records.documents import Documents, StandingManifest, quarantine
from warmrank.cache_store.records.manifest import PartitionManifest, PartitionRef, partition_key
from warmrank.cache_store.steps import Step, reached

logger = logging.getLogger(__name__)

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
    stood = _standing(documents, keyed)
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
    created = _write(documents, sealed)
    reached(Step.PUBLISH_MANIFEST)
    stood |= {key: documents.take_manifest(key) for key in keyed if key not in stood and key not in created}
    blobs.put_again(documents.backend, digests)
    reached(Step.PUBLISH_DONE)
    reports = [
        _report(key, manifest, created.get(key), stood.get(key), new if position == 0 else ())
        for position, (key, manifest) in enumerate(keyed.items())
    ]
    logger.info("Published %d partitions, %d of them new, %d new blobs", len(keyed), len(created), len(new))
    return tuple(reports)


def _standing(documents: Documents, keyed: Mapping[str, PartitionManifest]) -> dict[str, StandingManifest]:
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


def _write(documents: Documents, sealed: Mapping[str, bytes]) -> dict[str, str]:
    """Create manifests; the sha256 of the stored form of those that this call created, by key."""
    if not sealed:
        return {}
    files = {
        key: NewFile(name=manifest_name(key), source=data, expected=digest_bytes(data))
        for key, data in sealed.items()
    }
    names = set(documents.backend.put_new(list(files.values())))
    return {key: file.expected.sha256 for key, file in files.items() if file.name in names}


def _report(
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
