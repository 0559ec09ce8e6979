"""Manifests for use: each reference's once, checked against the digest that a launch record pins."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import NotInStore, StoreError, outcome_of
from warmrank.cache_store.gc.trash import bring_back
from warmrank.cache_store.keys import canonical_json
from warmrank.cache_store.layout import manifest_name
from warmrank.cache_store.parallel import each
from warmrank.cache_store.records.documents import READERS, Documents, StandingManifest
from warmrank.cache_store.records.manifest import PartitionManifest, PartitionRef

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned(Generic[T]):
    """Results of reading manifests, in the order asked for, errors of others, and ids of the signers."""

    kept: dict[PartitionRef, T]
    errors: dict[PartitionRef, StoreError]
    signers: frozenset[str] = frozenset()


def take_pinned(
    documents: Documents, refs: Sequence[PartitionRef], keep: Callable[[PartitionRef, StandingManifest], T]
) -> Pinned[T]:
    """Read the manifests of several references, each once, a few at a time.

    What an evict just took away is brought back from the trash. Of several references to one key, as those of
    launches before and after it was published again, one that can be taken is enough. ``keep`` says what to
    keep of a manifest; thousands of whole ones would not fit into memory.
    """
    distinct = list(dict.fromkeys(refs))
    signers: set[str] = set()

    def take(ref: PartitionRef) -> T:
        standing = documents.take_manifest(ref.manifest_key, expected_sha256=ref.manifest_sha256)
        signers.add(standing.signer_id)
        return keep(ref, standing)

    def take_each(some: Sequence[PartitionRef]) -> dict[PartitionRef, T | StoreError]:
        found = each(lambda ref: outcome_of(lambda: take(ref)), some, num_threads=READERS, size_bytes=0)
        return dict(zip(some, found, strict=True))

    answers = take_each(distinct)
    gone = [ref for ref, answer in answers.items() if isinstance(answer, NotInStore)]
    back = bring_back(documents.backend, (manifest_name(ref.manifest_key) for ref in gone))
    again = [ref for ref in gone if manifest_name(ref.manifest_key) in back]
    answers |= take_each(again)
    errors = {ref: answer for ref, answer in answers.items() if isinstance(answer, StoreError)}
    kept = {ref: answer for ref, answer in answers.items() if not isinstance(answer, StoreError)}
    taken = {ref.manifest_key for ref in kept}
    return Pinned(
        kept=kept,
        errors={ref: error for ref, error in errors.items() if ref.manifest_key not in taken},
        signers=frozenset(signers - {""}),
    )


def distinct_partitions(documents: Documents, refs: Sequence[PartitionRef]) -> Pinned[str]:
    """Of references whose partitions hold the same artifacts, the first; raises as `take_pinned`."""
    pinned = take_pinned(documents, refs, lambda _, found: artifacts_key(found.manifest))
    first: dict[str, PartitionRef] = {}
    for ref, key in pinned.kept.items():
        first.setdefault(key, ref)
    return Pinned(kept={ref: key for key, ref in first.items()}, errors=pinned.errors)


def standing_refs(documents: Documents, keys: Sequence[str]) -> dict[str, PartitionRef]:
    """References, as in a launch record, to the manifests under ``keys``; absent ones are left out."""
    refs: dict[str, PartitionRef] = {}
    for key in keys:
        with contextlib.suppress(NotInStore):
            refs[key] = documents.take_manifest(key).ref(key)
    return refs


def artifacts_key(manifest: PartitionManifest) -> str:
    """Equal for partitions that hold the same artifacts; those of the node do not count."""
    entries = (entry for entry in manifest.artifacts if entry.scope == "rank")
    artifacts = sorted([entry.function, entry.sha256] for entry in entries)
    return digest_bytes(canonical_json(artifacts)).sha256
