"""Publishing partitions, blobs first and manifests last, and committing launch records after those.

A manifest is created only after all its blobs are durable, a record only after every manifest that it names,
each pinned. Neither is ever overwritten: the first publisher's stays, unless this process must not believe
it, which goes into quarantine. An evict may take what is needed until it sees the document that needs it, so
that is looked at again afterwards, and brought back; where that fails a record is moved away again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from warmrank.cache_store.backends.backend import NewFile, new_document
from warmrank.cache_store.backends.places import Places
from warmrank.cache_store.cache_dir.private_files import digest_private, os_errors_are_unusable
from warmrank.cache_store.digests import Digest, digest_bytes
from warmrank.cache_store.errors import (
    Conflict,
    Corrupt,
    NewerFormat,
    NotInStore,
    StoreError,
    StoreUnavailable,
    Untrusted,
    is_damage,
)
from warmrank.cache_store.gc.inventory import Trash, references, restore, trashed
from warmrank.cache_store.layout import blob_name, manifest_name, record_name, used_name
from warmrank.cache_store.parallel import each
from warmrank.cache_store.records.documents import READERS, Documents, StandingManifest, read_stored_form
from warmrank.cache_store.records.manifest import LaunchRecord, PartitionManifest, PartitionRef, partition_key
from warmrank.cache_store.signing.trust import signer_id
from warmrank.cache_store.steps import Step, reached

logger = logging.getLogger(__name__)
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishReport:
    """Outcome of publishing one partition."""

    key: str
    ref: PartitionRef  # what a launch record says about the manifest that stands under ``key``
    created: bool  # this call created the manifest; otherwise one stood there, and it stays
    num_blobs_new: int
    bytes_new: int
    conflicts: tuple[str, ...]  # functions whose bytes differ from those that stand: nondeterministic


def put_blob(places: Places, path: Path) -> tuple[Digest, bool]:
    """Add one private local file, durable on return; its digest, and whether this call created the blob."""
    with os_errors_are_unusable("file", path):
        digest = digest_private(path)
    name = blob_name(digest.sha256)
    file = NewFile(name=name, source=path, expected=digest)
    return digest, name in put_blobs(places, {name: file}, make_durable=True)


def publish_partitions(
    documents: Documents,
    launch_key: str,
    manifests: Sequence[PartitionManifest],
    files: Mapping[str, Path] | None,
    root: Path,
) -> tuple[PublishReport, ...]:
    """Publish the artifacts of distinct partitions, which lie below the cache directory ``root``.

    Each lies where its manifest says, or, of many partitions of the same few artifacts, where ``files`` has a
    private file for each sha256. Reports come in the manifests' order; new blobs are counted in the first.

    Raises:
        Corrupt: a file of a new blob is not what the manifest says; nothing was published.
        Untrusted: there is no key to sign with, or somebody not trusted here was faster.
    """
    reached(Step.PUBLISH_STARTED)
    places = documents.places
    keyed = {partition_key(launch_key, manifest): manifest for manifest in manifests}
    standing, refused = _standing_manifests(documents, keyed)
    stood = standing.keys() | set()
    # Sealed before the first write: without a signing key nothing is published at all.
    sealed = {
        key: documents.trust.seal("manifest", key, manifest.to_bytes())
        for key, manifest in keyed.items()
        if key not in stood
    }
    conflicts = {key: _conflicts(standing.get(key), manifest) for key, manifest in keyed.items()}
    blobs: dict[str, NewFile] = {}
    for key, manifest in keyed.items():
        for entry in manifest.artifacts:
            if entry.function not in conflicts[key] and (name := blob_name(entry.sha256)) not in blobs:
                source = entry.local_path(root) if files is None else files[entry.sha256]
                blobs[name] = NewFile(name=name, source=source, expected=entry.digest)
    new = put_blobs(places, blobs, make_durable=bool(sealed))
    reached(Step.PUBLISH_BLOBS)
    for key, error in refused.items():
        places.quarantine(manifest_name(key), str(error))
    new_manifests = [new_document(manifest_name(key), data) for key, data in sealed.items()]
    created = frozenset(places.put_new(new_manifests) if new_manifests else ())
    reached(Step.PUBLISH_MANIFEST)
    for key, data in sealed.items():
        if manifest_name(key) in created:
            standing[key] = StandingManifest(keyed[key], digest_bytes(data).sha256, signer_id(data))
        else:
            standing[key] = documents.manifest(key)  # that of a publisher who was faster
            conflicts[key] = _conflicts(standing[key], keyed[key])
    # Blobs that were put after their manifest stood need no second look.
    _put_again(
        places,
        blobs,
        {
            blob_name(entry.sha256): entry.digest
            for key, found in standing.items()
            for entry in found.manifest.artifacts
            if key not in stood or entry.function in conflicts[key]
        },
    )
    reached(Step.PUBLISH_DONE)
    for key, functions in conflicts.items():
        for function in functions:
            said = "%s of %s compiled to other bytes than those published first: nondeterministic"
            logger.warning(said, function, keyed[key].partition)
    said = "Published %d partitions, %d new, %d new blobs: %s"
    names = ", ".join(manifest.partition for manifest in manifests[:_SHOWN])
    logger.info(said, len(keyed), len(created), len(new), names)
    bytes_new = sum(blobs[name].expected.size_bytes for name in new)
    return tuple(
        PublishReport(
            key=key,
            ref=standing[key].ref(key),
            created=manifest_name(key) in created,
            num_blobs_new=0 if position else len(new),
            bytes_new=0 if position else bytes_new,
            conflicts=conflicts[key],
        )
        for position, key in enumerate(keyed)
    )


def _standing_manifests(
    documents: Documents, keys: Iterable[str]
) -> tuple[dict[str, StandingManifest], dict[str, Untrusted]]:
    """The manifests that stand, and why others that do are not believed here."""
    found: dict[str, StandingManifest] = {}
    refused: dict[str, Untrusted] = {}
    names = {manifest_name(key): key for key in keys}
    present = documents.places.stat(names)
    for key in (key for name, key in names.items() if name in present):
        try:
            found[key] = documents.manifest(key)
        except StoreError as error:
            if isinstance(error, Untrusted) and not is_damage(error):
                refused[key] = error
            elif not is_damage(error) and not isinstance(error, NotInStore):
                raise  # what is damaged is in quarantine by now
    return found, refused


def _conflicts(standing: StandingManifest | None, manifest: PartitionManifest) -> tuple[str, ...]:
    """Functions for which the manifest that stands has other bytes than this one."""
    if standing is None:
        return ()
    known = {(entry.function, entry.path, entry.sha256) for entry in standing.manifest.artifacts}
    entries = ((entry.function, entry.path, entry.sha256) for entry in manifest.artifacts)
    return tuple(sorted({entry[0] for entry in entries if entry not in known}))


def put_blobs(
    places: Places, files: Mapping[str, NewFile], *, restores: bool = False, make_durable: bool = False
) -> frozenset[str]:
    """Add the blobs that a place lacks, given by name; return the names of the new ones.

    One of the wrong size makes way, so a publish repairs it. With ``restores`` what lies in the trash is
    brought back instead; ``make_durable`` is for the names of blobs that another publisher added, who may not
    have done it yet: needless where a manifest that names them stands.

    Raises:
        Corrupt, UnusableCache: a file that was read is not what was expected; nothing was added.
        StoreUnavailable: among others, a blob that was put is not there.
    """
    absent = _absent_blobs(places, {name: file.expected for name, file in files.items()}, restores=restores)
    wanted = [file for name, file in files.items() if make_durable or name in absent]
    created = frozenset(places.put_new(wanted)) if wanted else frozenset[str]()
    put = {name: files[name].expected for name in absent - created}
    if missing := sorted(_absent_blobs(places, put)):
        reason = "it was put, and is not there; something else stood in its place, or took it away"
        raise StoreUnavailable(what="blob", where=missing[0], reason=reason, remedy="publish again")
    return created


def _put_again(places: Places, files: Mapping[str, NewFile], needed: Mapping[str, Digest]) -> None:
    """Bring back the blobs that an evict took meanwhile, from the trash or from the files here."""
    absent = _absent_blobs(places, needed, restores=True)
    put_blobs(places, {name: files[name] for name in absent & files.keys()})
    gone = absent - files.keys()
    for name in sorted(gone - places.stat(gone).keys()):
        logger.warning("%s, which another publisher put, is gone; who has it must publish again", name)


def _absent_blobs(places: Places, wanted: Mapping[str, Digest], *, restores: bool = False) -> frozenset[str]:
    """Names of the blobs that a place lacks; one of the wrong size goes into quarantine."""
    whole: set[str] = set()
    for name, info in places.stat(wanted).items():
        size_bytes = wanted[name].size_bytes
        if info.is_regular and info.content_bytes in (None, size_bytes):
            whole.add(name)
            continue
        # Not only logged where that fails: nothing could be put in its place, and nothing said so.
        actual = f"{info.content_bytes} bytes" if info.is_regular else "no regular file"
        fault = Corrupt(what="blob", where=name, expected=f"{size_bytes} bytes", actual=actual)
        places.quarantine(name, str(fault))
    absent = frozenset(wanted.keys() - whole)
    return absent - restore(places, absent) if absent and restores else absent


def commit_launch(documents: Documents, record: LaunchRecord) -> str:
    """Put a record into the store, and return the sha256 that names it.

    A launch that found everything warm would commit what stands there already; then that record stays the
    one, and only a change is written.

    Raises:
        NotInStore: manifests that it names are missing (all are named), from the start or because an evict
            took them while this process was stopped; no record stands.
        Conflict: a manifest is another one than the record pins; nothing was written.
        Untrusted: the policy asks for a signature, and there is no key to sign with.
    """
    _check_manifests(documents, record)
    reached(Step.COMMIT_CHECKED)
    places = documents.places
    if standing := _standing_record(documents, record):
        mark_used(places, standing)
        _look_again(documents, record)
        if places.stat([standing]):
            return standing.rpartition("/")[2]
    payload = record.to_bytes()
    sha256 = digest_bytes(payload).sha256
    name = record_name("launch", record.launch_key, sha256)
    _write_record(documents, name, documents.trust.seal("launch", record.launch_key, payload))
    reached(Step.COMMIT_RECORD)
    try:
        _look_again(documents, record)
    except (NotInStore, Conflict, Corrupt) as error:
        places.quarantine(name, f"not whole: {error}")
        raise
    said = "Committed launch %s of %d ranks as %s"
    logger.info(said, record.launch_key[:12], record.world_size, sha256[:12])
    return sha256


def mark_used(places: Places, record_name: str) -> str:
    """Note that a record was used; best effort, at most one write for a record and a day (UTC).

    Return why it was not noted, for a report; empty where it was.
    """
    name = used_name(record_name, datetime.now(UTC).date().isoformat())
    try:
        if not places.stat([name]):
            places.put_new([new_document(name, b"")])
    except StoreError as error:
        logger.debug("The use of %s was not noted: %s", record_name, error)
        return (
            f"use not noted, so an evict may take {record_name} for unused: {error}; "
            "`warmrank store pin` keeps it, from where the store is writable"
        )
    return ""


def _write_record(documents: Documents, name: str, sealed: bytes) -> None:
    """Create a record; one under its name that cannot be believed here makes way, as a manifest does."""
    if documents.write(name, sealed):
        return
    try:
        documents.launch(name)
    except (Corrupt, Untrusted) as error:
        documents.places.quarantine(name, str(error))
        documents.write(name, sealed)


def _standing_record(documents: Documents, record: LaunchRecord) -> str | None:
    """Name of the newest usable record of this world and these environments, if it says the same."""
    # Only the newest counts: an older equal record must be made the newest again.
    for name, standing, _ in replace(documents, problems=[]).launches(record.launch_key):
        if (standing.world_size, standing.environments) == (record.world_size, record.environments):
            return name if standing == record.model_copy(update={"created": standing.created}) else None
    return None


def _look_again(documents: Documents, record: LaunchRecord) -> None:
    """Bring back the manifests that an evict took since they were checked; raises as `commit_launch`."""
    names = dict.fromkeys(manifest_name(ref.manifest_key) for ref in record.partitions)
    if len(documents.places.stat(names)) < len(names):
        _check_manifests(documents, record)


def _check_manifests(documents: Documents, record: LaunchRecord) -> None:
    """Make sure that the manifests stand that a record pins; those in the trash are brought back."""
    places, where = documents.places, f"launch {record.launch_key[:12]}"
    found = _stored_sha256(places, [ref.manifest_key for ref in record.partitions])
    missing = [ref for ref in record.partitions if found[ref.manifest_key] is None]
    if missing:
        trash = trashed(places)
        keys = [ref.manifest_key for ref in missing]
        found |= _stored_sha256(places, [key for key in keys if _restore_whole(places, key, trash)])
    if missing := [ref for ref in missing if found[ref.manifest_key] is None]:
        what = ", ".join(f"{ref.manifest_key[:12]} of {ref.partition}" for ref in missing)
        remedy = "publish these partitions, then commit again"
        raise NotInStore(what=f"manifests {what}", where=where, remedy=remedy)
    if differing := [
        ref.partition for ref in record.partitions if found[ref.manifest_key] != ref.manifest_sha256
    ]:
        raise Conflict(
            what=f"manifests of {', '.join(differing)}",
            where=where,
            expected="the stored form that the record pins",
            actual="another",
            remedy="publish these partitions again, and commit what that reports",
        )


def _stored_sha256(places: Places, keys: Iterable[str]) -> dict[str, str | None]:
    """Sha256 of the stored form of manifests by key, None where there is none; several are read at a time."""

    def read(key: str) -> str | None:
        try:
            return digest_bytes(read_stored_form(places, manifest_name(key))).sha256
        except NotInStore:
            return None

    distinct = list(dict.fromkeys(keys))
    return dict(zip(distinct, each(read, distinct, num_threads=READERS, size_bytes=0), strict=True))


def _restore_whole(places: Places, key: str, trash: Trash) -> bool:
    """Bring a manifest back from the trash, after its blobs; False where it or one of them is gone."""
    name = manifest_name(key)
    for info in trash.get(name, ()):
        try:
            needed = frozenset(references(name, read_stored_form(places, info.name)).references)
        except (NotInStore, Corrupt, NewerFormat) as error:
            logger.warning("The manifest in %s is of no use: %s", info.name, error)
            continue
        if restore(places, needed, trash) == needed:
            return bool(restore(places, [name], trash))
    return False
