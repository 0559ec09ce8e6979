"""What a record or manifest needs, by its structure alone, whoever signed it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Corrupt
from warmrank.cache_store.keys import key_of
from warmrank.cache_store.layout import (
    MANIFESTS,
    blob_name,
    manifest_name,
    split_directory_name,
    split_fanned_name,
    split_launch_name,
)
from warmrank.cache_store.records.directory_listing import parse_listing
from warmrank.cache_store.records.manifest import created_at, parse_launch_record, parse_manifest
from warmrank.cache_store.signing.envelope import parse_envelope
from warmrank.cache_store.signing.trust import DocumentKind

UNSIGNED, SIGNED, TRUSTED = range(3)
"""By nobody, or with a signature that must not count; by a key not known here; by a key trusted here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What an evict must know of a document.

    Attributes:
        references: names that it needs.
        created_s: when it was made, by its maker's clock, in seconds since the epoch.
        environments: digests of those in which a launch's ranks ran; one empty text for other documents.
        trust_rank: `TRUSTED`, `SIGNED` or `UNSIGNED`; told of records only.
    """

    references: tuple[str, ...]
    created_s: float
    environments: tuple[str, ...] = ("",)
    trust_rank: int = TRUSTED


def is_record(name: str) -> bool:
    """Whether this is the name of a root: a launch record or a listing."""
    return bool(split_launch_name(name) or split_directory_name(name))


def record_group(name: str) -> str:
    """What records of one key have in common, such as ``launch/ab/<launch key>``."""
    return name.rpartition("/")[0]


def references(name: str, sealed: bytes) -> Document:
    """What the stored form of the record or manifest of that name needs, whoever signed it.

    Raises:
        Corrupt: it is damaged, or made for another name.
        NewerFormat: a later release wrote it.
    """
    environments: tuple[str, ...] = ("",)
    if parts := split_launch_name(name):
        payload = _payload(name, sealed, kind="launch", key=parts[0], sha256=parts[1])
        record = parse_launch_record(payload, name)
        needed = [manifest_name(ref.manifest_key) for ref in record.partitions]
        created_s = created_at(record).timestamp()
        environments = tuple(key_of(dict(environment)) for environment in record.environments)
    elif parts := split_directory_name(name):
        payload = _payload(name, sealed, kind="directory", key=parts[0], sha256=parts[1])
        listing = parse_listing(payload, name)
        needed = [blob_name(file.sha256) for file in listing.files]
        created_s = datetime.fromisoformat(listing.created).timestamp()
    else:
        payload = _payload(name, sealed, kind="manifest", key=split_fanned_name(MANIFESTS, name) or "")
        manifest = parse_manifest(payload, name)
        needed = [blob_name(entry.sha256) for entry in manifest.artifacts]
        created_s = created_at(manifest).timestamp()
    return Document(references=tuple(dict.fromkeys(needed)), created_s=created_s, environments=environments)


def _payload(name: str, sealed: bytes, *, kind: str, key: str, sha256: str | None = None) -> bytes:
    envelope = parse_envelope(sealed, what=kind, where=name)
    if (envelope.kind, envelope.key) != (kind, key):
        actual = f"{envelope.kind} {envelope.key[:12]}"
        raise Corrupt(what=kind, where=name, expected=f"one made for {kind} {key[:12]}", actual=actual)
    if sha256 is not None and (actual := digest_bytes(envelope.payload).sha256) != sha256:
        raise Corrupt(what=kind, where=name, expected=f"sha256 {sha256}", actual=actual)
    return envelope.payload


def made_for(name: str) -> tuple[DocumentKind, str]:
    """Kind and key of the document of that name."""
    if parts := split_launch_name(name):
        return "launch", parts[0]
    if parts := split_directory_name(name):
        return "directory", parts[0]
    return "manifest", split_fanned_name(MANIFESTS, name) or ""
