"""What writing, and fetching, mean where a store lies in several places.

Invariants: what is written goes to the farthest writable place alone first, by the same rules as if it were
the only one, because what a nearer place holds says nothing about it; then copies go into the nearer ones, as
far as possible. A nearer place gets a document as it stands in the farthest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.backends.tiers import TieredBackend
from warmrank.cache_store.digests import Digest, digest_bytes
from warmrank.cache_store.errors import StoreError
from warmrank.cache_store.fetch import fetch
from warmrank.cache_store.fetch.blobs import FetchOptions
from warmrank.cache_store.fetch.staging import FetchOutcome
from warmrank.cache_store.layout import blob_name, launch_name, manifest_name
from warmrank.cache_store.progress import while_asked
from warmrank.cache_store.publish import launches, publish
from warmrank.cache_store.publish import publish as many
from warmrank.cache_store.publish.publish import BlobReport, PublishReport
from warmrank.cache_store.records.documents import Documents, read_stored_form
from warmrank.cache_store.records.manifest import LaunchRecord, PartitionManifest, PartitionRef
from warmrank.cache_store.signing.trust import Trust

T = TypeVar("T")


def write(view: TieredBackend, trust: Trust, verb: Callable[[Documents], T]) -> T:
    """Do ``verb`` in the farthest writable place; raises as it and `TieredBackend.write_farthest`."""
    return view.write_farthest(lambda backend: verb(Documents(backend=backend, trust=trust)))


def put_blob(view: TieredBackend, trust: Trust, path: Path) -> BlobReport:
    """As `publish.put_blob`, and into the nearer places."""
    report = write(view, trust, lambda documents: publish.put_blob(documents.backend, path))
    if view.nearer():
        digest = report.digest
        view.fill([NewFile(name=blob_name(digest.sha256), source=path, expected=digest)])
    return report


def publish_partition(
    view: TieredBackend, trust: Trust, launch_key: str, manifest: PartitionManifest, root: Path
) -> PublishReport:
    """As `publish.publish_partition`, and into the nearer places.

    Not of a partition that another publisher compiled to other bytes: its manifest may name blobs that are
    not here. A fetch fills the nearer places with those.
    """
    report = write(
        view, trust, lambda documents: publish.publish_partition(documents, launch_key, manifest, root)
    )
    if view.nearer() and not report.conflicts:
        blobs = {e.sha256: _artifact(e.local_path(root), e.digest) for e in manifest.artifacts}
        fill(view, list(blobs.values()), [manifest_name(report.key)])
    return report


def publish_many(
    view: TieredBackend,
    trust: Trust,
    launch_key: str,
    manifests: Sequence[PartitionManifest],
    files: Mapping[str, Path],
    root: Path,
) -> tuple[PublishReport, ...]:
    """As `publish_many.publish_many`, and into the nearer places; not of partitions with conflicts."""
    reports = write(
        view, trust, lambda documents: many.publish_many(documents, launch_key, manifests, files, root)
    )
    if view.nearer():
        agreed = [
            (manifest, report)
            for manifest, report in zip(manifests, reports, strict=True)
            if not report.conflicts
        ]
        blobs = {
            entry.sha256: _artifact(files[entry.sha256], entry.digest)
            for manifest, _ in agreed
            for entry in manifest.artifacts
        }
        fill(view, list(blobs.values()), [manifest_name(report.key) for _, report in agreed])
    return reports


def commit_launch(view: TieredBackend, trust: Trust, record: LaunchRecord) -> str:
    """As `launches.commit_launch`, and into the nearer places."""
    sha256 = write(view, trust, lambda documents: launches.commit_launch(documents, record))
    if view.nearer():
        fill(view, [], [launch_name(record.launch_key, sha256)])
    return sha256


def fetch_partitions(
    view: TieredBackend,
    trust: Trust,
    refs: Sequence[PartitionRef],
    cache_root: Path,
    options: FetchOptions,
) -> FetchOutcome:
    """As `fetch.fetch_partitions`, whose caller hears nothing more once ``view`` was left."""
    documents = Documents(backend=view, trust=trust)
    options = replace(options, on_progress=while_asked(options.on_progress, view))
    return fetch.fetch_partitions(documents, refs, cache_root, options=options)


def fill(view: TieredBackend, blobs: Sequence[NewFile], documents: Iterable[str]) -> None:
    """Copy blobs and documents into the nearer places that lack them, as far as possible.

    Args:
        view: the places.
        blobs: verified local copies of all that the documents refer to, so that none stands without them.
        documents: names, each after those that it refers to.
    """
    wanted = list(documents)
    missing = set(view.missing_nearer([*(blob.name for blob in blobs), *wanted]))
    if missing:
        absent = [name for name in wanted if name in missing]
        view.fill([*blobs, *(file for name in absent if (file := _document(view, name)))])


def _artifact(path: Path, digest: Digest) -> NewFile:
    return NewFile(name=blob_name(digest.sha256), source=path, expected=digest)


def _document(view: TieredBackend, name: str) -> NewFile | None:
    try:
        sealed = read_stored_form(view, name)
    except StoreError:
        return None  # it was there a moment ago; a nearer place can do without
    return NewFile(name=name, source=sealed, expected=digest_bytes(sealed))
