"""Which listing of a directory counts: the newest that can be used."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime

from cache_store.digests import digest_bytes
from cache_store.errors import Corrupt, NotInStore, StoreError
from cache_store.explain import explain_miss
from cache_store.layout import DIRECTORIES, directory_prefix, split_directory_name
from cache_store.records.directory_listing import DirectoryListing, listing_key, parse_listing
from cache_store.records.documents import Documents, quarantine_if_damaged

logger = logging.getLogger(__name__)


def newest_listing(documents: Documents, key: str, problems: list[str]) -> DirectoryListing:
    """The newest listing under ``key``; what cannot be used is skipped and described in ``problems``.

    Raises:
        NotInStore: there is none.
        StoreUnavailable: the store cannot be listed.
    """
    found = [listing for _, listing in take_listings(documents, directory_prefix(key), problems)]
    if not found:
        raise NotInStore(what=f"listing {key[:12]}", where=directory_prefix(key), remedy="push it first")
    return max(found, key=lambda listing: datetime.fromisoformat(listing.created))


def nearest_listing(documents: Documents, tool: str, components: dict[str, str]) -> str:
    """One line that says which components differ from the nearest listing of ``tool``."""
    candidates = [
        (f"the directory pushed {listing.created}", listing.components)
        for _, listing in take_listings(documents, DIRECTORIES, [])
        if listing.tool == tool
    ]
    return explain_miss(components, candidates)


def take_listings(
    documents: Documents, prefix: str, problems: list[str]
) -> Iterator[tuple[str, DirectoryListing]]:
    """All listings below ``prefix`` with their names; a damaged one goes into quarantine."""
    for name in [info.name for info in documents.backend.list(prefix)]:
        try:
            yield name, read_listing(documents, name)
        except NotInStore:
            continue  # evicted, or put into quarantine by another reader, since the list was made
        except StoreError as error:
            logger.warning("Skipped a listing: %s", error)
            problems.append(str(error))
            quarantine_if_damaged(documents.backend, name, error)


def read_listing(documents: Documents, name: str) -> DirectoryListing:
    """Read one listing without touching it.

    Raises:
        NotInStore, Corrupt, NewerFormat, Untrusted: as `Documents.read`.
    """
    parts = split_directory_name(name)
    if parts is None:
        raise Corrupt(what="listing", where=name, expected="a name of the layout", actual="another")
    key, sha256 = parts
    payload, _ = documents.read("directory", key, name)
    listing = parse_listing(payload, name)
    actual = digest_bytes(payload).sha256
    if actual != sha256:
        raise Corrupt(what="listing", where=name, expected=f"sha256 {sha256}", actual=actual)
    if (made_for := listing_key(listing.tool, listing.components)) != key:
        raise Corrupt(what="listing", where=name, expected=f"key {key}", actual=made_for)
    return listing
