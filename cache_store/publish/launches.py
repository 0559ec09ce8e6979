"""Committing launch records: after every manifest that they name, each pinned, and never overwritten.

After a record was written its manifests are looked at again: what an evict took meanwhile comes back from the
trash, blobs first; where that fails the record is moved away again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from warmrank.cache_store.backends.backend import BlobBackend, FileInfo
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Conflict, Corrupt, NewerFormat, NotInStore, Untrusted
from warmrank.cache_store.gc.inventory import references
from warmrank.cache_store.gc.trash import mark_used, restore_from, trashed
from warmrank.cache_store.layout import launch_name, manifest_name
from warmrank.cache_store.parallel import each_short
from warmrank.cache_store.records.documents import READERS, Documents, quarantine, read_stored_form
from warmrank.cache_store.records.launches import read_launch, summarize_launches, take_launches
from warmrank.cache_store.records.manifest import LaunchRecord
from warmrank.cache_store.steps import Step, reached

logger = logging.getLogger(__name__)


def commit_launch(documents: Documents, record: LaunchRecord) -> str:
    """Put a record into the store.

    A launch that found everything warm would commit what stands there already; then that record stays the
    one, and only a change is written.

    Returns:
        The sha256 that names the record.

    Raises:
        NotInStore: manifests that it names are missing (all are named), from the start or because an evict
            took them while this process was stopped; no record stands.
        Conflict: a manifest is another one than the record pins; nothing was written.
        Untrusted: the policy asks for a signature, and there is no key to sign with.
    """
    _check_manifests(documents, record)
    reached(Step.COMMIT_CHECKED)
    if (standing := _standing(documents, record)) and _stays(documents, standing, record):
        return standing.rpartition("/")[2]
    payload = record.to_bytes()
    sha256 = digest_bytes(payload).sha256
    name = launch_name(record.launch_key, sha256)
    _write(documents, name, documents.trust.seal("launch", record.launch_key, payload))
    reached(Step.COMMIT_RECORD)
    try:
        _look_again(documents, record)
    except (NotInStore, Conflict, Corrupt) as error:
        quarantine(documents.backend, name, f"not whole: {error}")
        raise
    logger.info(
        "Committed launch %s of %d ranks as %s", record.launch_key[:12], record.world_size, sha256[:12]
    )
    return sha256


def _write(documents: Documents, name: str, sealed: bytes) -> None:
    """Create a record; one under its name that cannot be believed here makes way, as a manifest does."""
    if documents.write(name, sealed):
        return
    try:
        read_launch(documents, name)
    except (Corrupt, Untrusted) as error:
        quarantine(documents.backend, name, str(error))
        documents.write(name, sealed)


def _standing(documents: Documents, record: LaunchRecord) -> str | None:
    # Only the newest counts: an older equal record must be made the newest again.
    wanted = (record.world_size, record.environments)
    for summary in summarize_launches(documents, record.launch_key, []):
        if (summary.world_size, summary.environments) != wanted:
            continue
        # Its name is the digest of its bytes: an equal one need not be read.
        same = record.model_copy(update={"created": summary.created})
        name = launch_name(record.launch_key, digest_bytes(same.to_bytes()).sha256)
        if summary.name == name:
            return name
        if take_launches(documents, [summary.name], []):
            return None  # another one, and usable
    return None


def _stays(documents: Documents, name: str, record: LaunchRecord) -> bool:
    """Whether a record that stood stays: its use is noted, then it is looked at again."""
    mark_used(documents.backend, name)
    _look_again(documents, record)
    return bool(documents.backend.stat([name]))


def _look_again(documents: Documents, record: LaunchRecord) -> None:
    """Bring back the manifests that an evict took since they were checked; raises as `commit_launch`."""
    names = dict.fromkeys(manifest_name(ref.manifest_key) for ref in record.partitions)
    if len(documents.backend.stat(names)) < len(names):
        _check_manifests(documents, record)


def _check_manifests(documents: Documents, record: LaunchRecord) -> None:
    found = _stored_sha256(documents.backend, [ref.manifest_key for ref in record.partitions])
    missing = [ref for ref in record.partitions if found[ref.manifest_key] is None]
    if missing:
        contents = trashed(documents.backend)
        keys = [ref.manifest_key for ref in missing]
        restored = [key for key in keys if _restore_whole(documents.backend, key, contents)]
        found |= _stored_sha256(documents.backend, restored)
    where = f"launch {record.launch_key[:12]}"
    if missing := [ref for ref in missing if found[ref.manifest_key] is None]:
        what = ", ".join(f"{ref.manifest_key[:12]} of {ref.partition}" for ref in missing)
        remedy = "publish these partitions, then commit again"
        raise NotInStore(what=f"manifests {what}", where=where, remedy=remedy)
    if differing := [ref for ref in record.partitions if found[ref.manifest_key] != ref.manifest_sha256]:
        raise Conflict(
            what=f"manifests of {', '.join(ref.partition for ref in differing)}",
            where=where,
            expected="the stored form that the record pins",
            actual="another",
            remedy="publish these partitions again, and commit what that reports",
        )


def _stored_sha256(backend: BlobBackend, keys: Sequence[str]) -> dict[str, str | None]:
    """Sha256 of the stored form of manifests by key, None where there is none; several are read at a time."""

    def read(key: str) -> str | None:
        try:
            return digest_bytes(read_stored_form(backend, manifest_name(key))).sha256
        except NotInStore:
            return None

    distinct = list(dict.fromkeys(keys))
    return dict(zip(distinct, each_short(read, distinct, num_threads=READERS), strict=True))


def _restore_whole(backend: BlobBackend, key: str, contents: Mapping[str, tuple[FileInfo, ...]]) -> bool:
    """Bring a manifest back from the trash, after its blobs; False where it or one of them is gone."""
    name = manifest_name(key)
    for info in contents.get(name, ()):
        try:
            needed = frozenset(references(name, read_stored_form(backend, info.name)).references)
        except (NotInStore, Corrupt, NewerFormat) as error:
            logger.warning("The manifest in %s is of no use: %s", info.name, error)
            continue
        if restore_from(backend, needed, contents) == needed:
            return bool(restore_from(backend, frozenset([name]), contents))
    return False
