"""Sealed documents in a backend: manifests and launch records as they are stored and read back.

Invariants: a document is returned only after its envelope was judged for the kind and key that were asked
for; what is damaged, whoever reads it, goes into quarantine, what is merely not trusted here
stays until a publisher replaces it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import BinaryIO

from warmrank.cache_store.backends.backend import BlobBackend, NewFile
from warmrank.cache_store.backends.reading import read_from_any
from warmrank.cache_store.backends.tiers import TieredBackend
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import (
    Corrupt,
    StoreError,
    StoreUnavailable,
    is_damage,
    os_errors_are_unavailable,
)
from warmrank.cache_store.layout import manifest_name, quarantine_name
from warmrank.cache_store.node.private_files import temporary_name
from warmrank.cache_store.records.fields import MAX_DOCUMENT_BYTES
from warmrank.cache_store.records.manifest import PartitionManifest, parse_manifest
from warmrank.cache_store.signing.envelope import signer_id
from warmrank.cache_store.signing.trust import DocumentKind, Trust

logger = logging.getLogger(__name__)

_MAX_ENVELOPE_BYTES = MAX_DOCUMENT_BYTES + 4096
_USUAL_BYTES = 64 << 10  # a buffer of the limit's size would be mapped and unmapped for each of thousands


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingManifest:
    """A manifest in the store.

    Attributes:
        manifest: its contents.
        sha256: digest of its stored form, which a launch record pins.
        signer_id: id of the key that signed it; empty where nobody did.
    """

    manifest: PartitionManifest
    sha256: str
    signer_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """Reads and writes the sealed documents of one store."""

    backend: BlobBackend
    trust: Trust

    def write(self, name: str, sealed: bytes) -> bool:
        """Create a sealed document; False when the name is taken."""
        return bool(self.backend.put_new([NewFile(name=name, source=sealed, expected=digest_bytes(sealed))]))

    def read(self, kind: DocumentKind, key: str, name: str) -> tuple[bytes, str]:
        """Read a document without touching it.

        Returns:
            The document's bytes, and the sha256 of its stored form.

        Raises:
            NotInStore: there is none.
            Corrupt, NewerFormat, Untrusted: as `Trust.open_envelope`.
        """
        sealed = self.read_sealed(name)
        return self.trust.open_envelope(kind, key, sealed, where=name), digest_bytes(sealed).sha256

    def read_sealed(self, name: str) -> bytes:
        """Read a stored form, whatever it says; raises as `read_stored_form`."""
        return read_stored_form(self.backend, name)

    def read_manifest(self, key: str) -> StandingManifest:
        """Read the manifest of a partition key without touching it; raises as `read` does."""
        name = manifest_name(key)
        sealed = self.read_sealed(name)
        payload = self.trust.open_envelope("manifest", key, sealed, where=name)
        return StandingManifest(
            manifest=parse_manifest(payload, name),
            sha256=digest_bytes(sealed).sha256,
            signer_id=signer_id(sealed),
        )

    def take_manifest(self, key: str) -> StandingManifest:
        """Read a manifest for use: as `read_manifest`, but what is damaged goes into quarantine."""
        try:
            return self.read_manifest(key)
        except StoreError as error:
            quarantine_if_damaged(self.backend, manifest_name(key), error)
            raise


def read_stored_form(backend: BlobBackend, name: str) -> bytes:
    """Read a document as it is stored, whatever it says.

    Raises:
        NotInStore: there is none.
        Corrupt: it is too large.
        StoreUnavailable: it cannot be read.
    """

    def read(file: BinaryIO) -> bytes:
        with os_errors_are_unavailable("file", name):
            head = file.read(_USUAL_BYTES)
            if len(head) < _USUAL_BYTES:
                return head
            return head + file.read(_MAX_ENVELOPE_BYTES + 1 - _USUAL_BYTES)

    sealed = read_from_any(backend, name, read)
    if len(sealed) > _MAX_ENVELOPE_BYTES:
        expected = f"at most {_MAX_ENVELOPE_BYTES} bytes"
        raise Corrupt(what="document", where=name, expected=expected, actual="more")
    return sealed


def quarantine_if_damaged(backend: BlobBackend, name: str, error: StoreError) -> None:
    """Move a file away if ``error`` says that its bytes are wrong.

    A store that cannot be written is no reason to hide the fault that led here: that is only logged.
    """
    if not is_damage(error):
        return
    try:
        quarantine(backend, name, str(error))
    except StoreUnavailable as failure:
        logger.warning("%s stays where it is: %s", name, failure)


def quarantine(backend: BlobBackend, name: str, reason: str) -> None:
    """Move a file out of the way, with the reason beside it in that place, so that it can be put again.

    A name that is gone already is no error: another process was faster.

    Raises:
        StoreUnavailable: it cannot be moved.
    """
    target = quarantine_name(name, temporary_name())
    if not backend.move(name, target):
        return
    logger.warning("Quarantined %s as %s: %s", name, target, reason)
    note = f"{reason}\n".encode("utf-8", "replace")
    file = NewFile(name=f"{target}.reason", source=note, expected=digest_bytes(note))
    for place in backend.alone() if isinstance(backend, TieredBackend) else (backend,):
        if place.stat([target]):
            place.put_new([file])
