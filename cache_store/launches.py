"""Launch records: what makes a launch whole in the store.

Invariants: a record is committed after every manifest that it names, each pinned by its digest; several
records may stand under one launch key (other worlds, other environments, later sources), and none is
overwritten.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from cache_store.digests import digest_bytes
from cache_store.documents import Documents, quarantine_if_damaged
from cache_store.errors import Conflict, Corrupt, NotInStore, StoreError
from cache_store.layout import LAUNCHES, launch_name, launch_prefix, manifest_name, split_launch_name
from cache_store.manifest import LaunchRecord, PartitionRef, created_at, parse_launch_record

logger = logging.getLogger(__name__)


def commit_launch(documents: Documents, record: LaunchRecord) -> str:
    """Put a record into the store.

    A launch that found everything warm would commit what stands there already; then that record stays the
    one, and only a change is written.

    Returns:
        The sha256 that names the record.

    Raises:
        NotInStore: manifests that it names are missing (all are named); nothing was written.
        Conflict: a manifest is another one than the record pins; nothing was written.
        Untrusted: the policy asks for a signature, and there is no key to sign with.
    """
    _check_manifests(documents, record)
    if standing := _standing(documents, record):
        return standing
    payload = record.to_bytes()
    sha256 = digest_bytes(payload).sha256
    documents.write(
        launch_name(record.launch_key, sha256), documents.trust.seal("launch", record.launch_key, payload)
    )
    logger.info(
        "Committed launch %s of %d ranks as %s", record.launch_key[:12], record.world_size, sha256[:12]
    )
    return sha256


def read_launch(documents: Documents, name: str) -> LaunchRecord:
    """Read one record without touching it.

    Raises:
        NotInStore, Corrupt, NewerFormat, Untrusted: as `Documents.read`.
    """
    key_and_sha256 = split_launch_name(name)
    if key_and_sha256 is None:
        raise Corrupt(what="launch record", where=name, expected="a name of the layout", actual="another")
    launch_key, sha256 = key_and_sha256
    payload, _ = documents.read("launch", launch_key, name)
    actual = digest_bytes(payload).sha256
    if actual != sha256:
        raise Corrupt(what="launch record", where=name, expected=f"sha256 {sha256}", actual=actual)
    record = parse_launch_record(payload, name)
    if record.launch_key != launch_key:
        raise Corrupt(what="launch record", where=name, expected=launch_key, actual=record.launch_key)
    return record


def read_launches(
    documents: Documents, launch_key: str | None, problems: list[str]
) -> tuple[LaunchRecord, ...]:
    """Read all records, or those of one key, newest first.

    A record that cannot be used is skipped, logged, and described in ``problems``; a damaged one goes into
    quarantine.

    Raises:
        StoreUnavailable: the store cannot be listed.
    """
    found = _take_launches(documents, launch_key, problems)
    return tuple(record for _, record in sorted(found, key=_newest_first))


def launch_keys(documents: Documents) -> tuple[str, ...]:
    """All keys under which records stand, sorted."""
    names = (split_launch_name(info.name) for info in documents.backend.list(LAUNCHES))
    return tuple(sorted({parts[0] for parts in names if parts}))


def _take_launches(
    documents: Documents, launch_key: str | None, problems: list[str]
) -> Iterator[tuple[str, LaunchRecord]]:
    prefix = LAUNCHES if launch_key is None else launch_prefix(launch_key)
    for name in [info.name for info in documents.backend.list(prefix)]:
        try:
            yield name, read_launch(documents, name)
        except NotInStore:
            continue  # another reader put it into quarantine since the listing
        except StoreError as error:
            logger.warning("Skipped a launch record: %s", error)
            problems.append(str(error))
            quarantine_if_damaged(documents.backend, name, error)


def _newest_first(item: tuple[str, LaunchRecord]) -> tuple[float, str]:
    name, record = item
    return -created_at(record).timestamp(), name


def _standing(documents: Documents, record: LaunchRecord) -> str | None:
    # Only the newest counts: an older equal record must be made the newest again.
    found = sorted(_take_launches(documents, record.launch_key, []), key=_newest_first)
    for name, other in found:
        if (other.world_size, other.environment) == (record.world_size, record.environment):
            same = other.model_copy(update={"created": record.created}) == record
            parts = split_launch_name(name)
            return parts[1] if same and parts else None
    return None


def _check_manifests(documents: Documents, record: LaunchRecord) -> None:
    missing: list[str] = []
    differing: list[PartitionRef] = []
    for ref in record.partitions:
        try:
            actual = digest_bytes(documents.read_sealed(manifest_name(ref.manifest_key))).sha256
        except NotInStore:
            missing.append(f"{ref.manifest_key[:12]} of {ref.partition}")
            continue
        if actual != ref.manifest_sha256:
            differing.append(ref)
    where = f"launch {record.launch_key[:12]}"
    if missing:
        remedy = "publish these partitions, then commit again"
        raise NotInStore(what=f"manifests {', '.join(missing)}", where=where, remedy=remedy)
    if differing:
        raise Conflict(
            what=f"manifests of {', '.join(ref.partition for ref in differing)}",
            where=where,
            expected="the stored form that the record pins",
            actual="another",
            remedy="publish these partitions again, and commit what that reports",
        )
