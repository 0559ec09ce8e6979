"""Reading the whole store and saying everything that is wrong with it; changes nothing."""

from __future__ import annotations

from cache_store.backend import BlobBackend
from cache_store.digests import digest_stream
from cache_store.documents import Documents
from cache_store.errors import StoreError, os_errors_are_unavailable
from cache_store.launches import read_launch
from cache_store.layout import BLOBS, LAUNCHES, MANIFESTS, blob_name, split_fanned_name
from cache_store.reports import VerifyReport


def verify_store(documents: Documents) -> VerifyReport:
    """Hash every blob, judge every document, and follow every reference.

    Raises:
        StoreUnavailable: the store cannot be listed.
    """
    faults: list[str] = []
    sizes = _hash_blobs(documents.backend, faults)
    manifests = _check_manifests(documents, sizes, faults)
    num_launches = _check_launches(documents, manifests, faults)
    return VerifyReport(
        num_blobs=len(sizes),
        num_manifests=len(manifests),
        num_launches=num_launches,
        bytes_hashed=sum(sizes.values()),
        faults=tuple(faults),
    )


def _hash_blobs(backend: BlobBackend, faults: list[str]) -> dict[str, int]:
    """Sizes of all blobs by sha256, the damaged ones included."""
    sizes: dict[str, int] = {}
    for name in (info.name for info in backend.list(BLOBS)):
        sha256 = split_fanned_name(BLOBS, name)
        if sha256 is None:
            faults.append(f"{name}: no name of a blob")
            continue
        try:
            with backend.open(name) as file, os_errors_are_unavailable("blob", name):
                actual = digest_stream(file)
        except StoreError as error:
            faults.append(str(error))
            continue
        sizes[sha256] = actual.size_bytes
        if actual.sha256 != sha256:
            faults.append(f"{name}: its bytes have {actual}")
    return sizes


def _check_manifests(documents: Documents, sizes: dict[str, int], faults: list[str]) -> dict[str, str]:
    """Sha256 of the stored form of all manifests by key; empty for those that cannot be used."""
    manifests: dict[str, str] = {}
    for name in (info.name for info in documents.backend.list(MANIFESTS)):
        key = split_fanned_name(MANIFESTS, name)
        if key is None:
            faults.append(f"{name}: no name of a manifest")
            continue
        manifests[key] = ""
        try:
            standing = documents.read_manifest(key)
        except StoreError as error:
            faults.append(str(error))
            continue
        manifests[key] = standing.sha256
        faults.extend(
            f"{name}: {entry.function} needs {blob_name(entry.sha256)} of {entry.size_bytes} bytes, which is "
            f"{'missing' if entry.sha256 not in sizes else f'{sizes[entry.sha256]} bytes long'}"
            for entry in standing.manifest.artifacts
            if sizes.get(entry.sha256) != entry.size_bytes
        )
    return manifests


def _check_launches(documents: Documents, manifests: dict[str, str], faults: list[str]) -> int:
    num_launches = 0
    for name in (info.name for info in documents.backend.list(LAUNCHES)):
        num_launches += 1
        try:
            record = read_launch(documents, name)
        except StoreError as error:
            faults.append(str(error))
            continue
        for ref in record.partitions:
            if manifests.get(ref.manifest_key) is None:
                faults.append(f"{name}: the manifest of {ref.partition} is missing")
            elif manifests[ref.manifest_key] not in ("", ref.manifest_sha256):
                faults.append(f"{name}: the manifest of {ref.partition} is another one than it pins")
    return num_launches
