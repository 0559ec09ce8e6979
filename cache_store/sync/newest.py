"""Which listing of a directory counts: the newest that can be used."""

from __future__ import annotations

from datetime import datetime

from cache_store.digests import digest_bytes
from cache_store.errors import Corrupt, NotInStore
from cache_store.explain import explain_miss
from cache_store.layout import DIRECTORIES, directory_prefix, split_directory_name
from cache_store.records.directory_listing import DirectoryListing, listing_key, parse_listing
from cache_store.records.documents import Documents
from cache_store.records.taking import take_usable


def newest_listing(documents: Documents, key: str, problems: list[str]) -> tuple[str, DirectoryListing]:
    """Name and content of the newest listing under ``key``; what cannot be used goes to ``problems``.

    Raises:
        NotInStore: there is none.
        StoreUnavailable: the store cannot be listed.
    """
    found = _take_listings(documents, directory_prefix(key), problems)
    if not found:
        raise NotInStore(what=f"listing {key[:12]}", where=directory_prefix(key), remedy="push it first")
    return max(found, key=lambda named: datetime.fromisoformat(named[1].created))


def nearest_listing(documents: Documents, tool: str, components: dict[str, str]) -> str:
    """One line that says which components differ from the nearest listing of ``tool``."""
    candidates = [
        (f"the directory pushed {listing.created}", listing.components)
        for _, listing in _take_listings(documents, DIRECTORIES, [])
        if listing.tool == tool
    ]
    return explain_miss(components, candidates)


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


def _take_listings(
    documents: Documents, prefix: str, problems: list[str]
) -> tuple[tuple[str, DirectoryListing], ...]:
    names = [info.name for info in documents.backend.list(prefix)]
    return take_usable(documents.backend, names, lambda name: (name, read_listing(documents, name)), problems)
