"""Which listing of a directory counts: the newest, by the store's clock, that can be used."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from warmrank.cache_store.gc.inventory import record_group

from warmrank.cache_store.backends.backend import FileInfo
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Corrupt, NotInStore
from warmrank.cache_store.keys import explain_miss
from warmrank.cache_store.layout import DIRECTORIES, directory_prefix, split_directory_name
from warmrank.cache_store.records.directory_listing import DirectoryListing, listing_key, parse_listing
from warmrank.cache_store.records.documents import Documents, age, dated_ahead, seconds_of, take_usable
from warmrank.cache_store.signing.trust import signer_id


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredListing:
    """A listing in the store.

    Attributes:
        name: its name there.
        listing: what it says.
        signer_id: id of the key that signed it; empty where nobody did.
    """

    name: str
    listing: DirectoryListing
    signer_id: str


def newest_listing(documents: Documents, key: str, problems: list[str]) -> StoredListing:
    """The newest usable listing under ``key``; what is newer and cannot be used goes to ``problems``.

    Older ones are not read: each may have many MiB.

    Raises:
        NotInStore: there is none.
        StoreUnavailable: the store cannot be listed.
    """
    infos = {info.name: info for info in documents.backend.list(directory_prefix(key))}
    if found := _newest(documents, infos.values(), problems):
        dates = {found.name: seconds_of(found.listing.created)}
        problems += dated_ahead(infos, dates)
        return found
    raise NotInStore(what=f"listing {key[:12]}", where=directory_prefix(key), remedy="push it first")


def nearest_listing(documents: Documents, tool: str, components: dict[str, str]) -> str:
    """One line that says which components differ from the nearest of the newest listings of ``tool``."""
    candidates = [
        (f"the directory pushed {found.listing.created}", found.listing.components)
        for found in newest_listings(documents, [])
        if found.listing.tool == tool
    ]
    return explain_miss(components, candidates)


def newest_listings(documents: Documents, problems: list[str]) -> tuple[StoredListing, ...]:
    """The newest usable listing of each key; what cannot be used goes to ``problems``."""
    infos = sorted(documents.backend.list(DIRECTORIES), key=lambda info: info.name)
    newest = (_newest(documents, same_key, problems) for _, same_key in groupby(infos, _group))
    return tuple(found for found in newest if found is not None)


def _group(info: FileInfo) -> str:
    return record_group(info.name)


def _newest(documents: Documents, infos: Iterable[FileInfo], problems: list[str]) -> StoredListing | None:
    newest_first = sorted(infos, key=lambda info: (-info.written_s, info.name))
    for _, at_once in groupby(newest_first, lambda info: info.written_s):
        by_name = {info.name: info for info in at_once}
        found = take_usable(
            documents.backend, list(by_name), lambda name: read_listing(documents, name), problems
        )
        if found:
            return min(found, key=lambda one: age(by_name[one.name], seconds_of(one.listing.created)))
    return None


def read_listing(documents: Documents, name: str) -> StoredListing:
    """Read one listing without touching it.

    Raises:
        NotInStore, Corrupt, NewerFormat, Untrusted: as `Documents.read`.
    """
    parts = split_directory_name(name)
    if parts is None:
        raise Corrupt(what="listing", where=name, expected="a name of the layout", actual="another")
    key, sha256 = parts
    sealed = documents.read_sealed(name)
    payload = documents.trust.open_envelope("directory", key, sealed, where=name)
    listing = parse_listing(payload, name)
    actual = digest_bytes(payload).sha256
    if actual != sha256:
        raise Corrupt(what="listing", where=name, expected=f"sha256 {sha256}", actual=actual)
    if (made_for := listing_key(listing.tool, listing.components)) != key:
        raise Corrupt(what="listing", where=name, expected=f"key {key}", actual=made_for)
    return StoredListing(name=name, listing=listing, signer_id=signer_id(sealed))
