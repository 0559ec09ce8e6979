"""A listing: the document behind ``warmrank store sync``, one directory of another tool at one time.

Layout: canonical JSON of `DirectoryListing`, sealed by `cache_store.signing.trust`, under
`cache_store.layout.record_name`::

    {"format":1,"tool":"vllm","components":{"torch":"2.13.0",...},"root":"/root/.cache/vllm",
     "files":[{"path":"a/b","sha256":"...","size_bytes":N,"executable":false,"names_root":false},...],
     "created":"..."}

Every path may be joined to a directory (`cache_store.paths`), and no two collide; of a file's mode only one
bit is kept, so nothing set-uid comes back so; the key is made of the components alone, so a miss can be
explained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from warmrank.cache_store.backends.backend import FileInfo
from warmrank.cache_store.canonical import key_of
from warmrank.cache_store.errors import Corrupt, NotInStore, UnusableCache
from warmrank.cache_store.layout import DIRECTORIES, record_prefix
from warmrank.cache_store.parsing import MAX_DOCUMENT_BYTES, faults_of, parse_document
from warmrank.cache_store.paths import collision, part_fault, path_fault, refusing
from warmrank.cache_store.records.documents import Documents, age, seconds_of, take_usable
from warmrank.cache_store.records.manifest import BlobEntry, Components, Document, Utc, utc_now
from warmrank.cache_store.signing.trust import signer_id
from warmrank.cache_store.text import explain_miss, time_text

MAX_FILES = 100_000
MAX_ROOT_CHARACTERS = 4096


class ListedFile(BlobEntry):
    """One file of a directory, by its posix path below that."""

    path: Annotated[str, AfterValidator(refusing(path_fault, "path"))]
    executable: bool  # by its owner
    names_root: bool  # its bytes contain the directory's absolute path


class DirectoryListing(Document):
    """All files of a directory, sorted by path.

    ``tool`` says how it may be relocated; ``components`` must be equal for it to be restored; ``root`` is its
    absolute path where it was read.
    """

    format: Literal[1] = 1
    tool: Annotated[str, AfterValidator(refusing(part_fault, "name"))]
    components: Components
    root: Annotated[str, Field(max_length=MAX_ROOT_CHARACTERS)]
    files: Annotated[tuple[ListedFile, ...], Field(max_length=MAX_FILES)]
    created: Utc

    @model_validator(mode="after")
    def _check(self) -> DirectoryListing:
        if fault := collision(file.path for file in self.files):
            raise ValueError(fault)
        return self

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)


def listing_key(tool: str, components: dict[str, str]) -> str:
    """Key under which listings of ``tool`` with these components stand."""
    return key_of({"tool": tool, **{f"component {name}": value for name, value in components.items()}})


def make_listing(
    tool: str, components: Mapping[str, str], root: Path, files: Iterable[ListedFile]
) -> DirectoryListing:
    """A listing made now, which `parse_listing` takes; raises `UnusableCache` for what it cannot hold."""
    expected = "names and numbers that a listing can hold"
    try:
        listing = DirectoryListing(
            tool=tool, components=dict(components), root=str(root), files=tuple(files), created=utc_now()
        )
        if (size_bytes := len(listing.to_bytes())) <= MAX_DOCUMENT_BYTES:
            return listing
        expected = f"a listing of at most {MAX_DOCUMENT_BYTES} bytes"
        actual = f"{size_bytes} bytes for {len(listing.files)} files"
    except ValidationError as error:
        actual = faults_of(error)
    remedy = "push its directories one by one, under plain names and keys of a few characters"
    raise UnusableCache(what="directory", where=str(root), expected=expected, actual=actual, remedy=remedy)


def parse_listing(data: bytes, where: str) -> DirectoryListing:
    """Read a listing's canonical JSON; raises as `parse_document`."""
    return parse_document(DirectoryListing, data, what="listing", where=where)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredListing:
    """A listing and its name in the store."""

    name: str
    listing: DirectoryListing
    signer_id: str  # of the key that signed it; empty where nobody did


def newest_listing(documents: Documents, key: str) -> StoredListing:
    """The newest usable listing under ``key``; see `take_usable` for what is newer.

    Older ones are not read: each may have many MiB. Raises `NotInStore`.
    """
    where = record_prefix("directory", key)
    if found := _newest_of(documents, documents.backend.list(where)):
        return found
    raise NotInStore(what=f"listing {key[:12]}", where=where, remedy="push it first")


def nearest_listing(documents: Documents, tool: str, components: dict[str, str]) -> str:
    """One line that says which components differ from the nearest of the newest listings of ``tool``."""
    candidates = [
        (f"the directory pushed {time_text(found.listing.created)}", found.listing.components)
        for found in newest_listings(replace(documents, problems=[]))
        if found.listing.tool == tool
    ]
    return explain_miss(components, candidates)


def newest_listings(documents: Documents) -> tuple[StoredListing, ...]:
    """The newest usable listing of each key; see `take_usable`."""
    infos = sorted(documents.backend.list(DIRECTORIES), key=lambda info: info.name)
    newest = (
        _newest_of(documents, same_key)
        for _, same_key in groupby(infos, lambda info: info.name.rpartition("/")[0])
    )
    return tuple(found for found in newest if found is not None)


def _newest_of(documents: Documents, infos: Iterable[FileInfo]) -> StoredListing | None:
    newest_first = sorted(infos, key=lambda info: (-info.written_s, info.name))
    for _, at_once in groupby(newest_first, lambda info: info.written_s):
        by_name = {info.name: info for info in at_once}
        if found := take_usable(documents, list(by_name), read_listing):
            return min(found, key=lambda one: age(by_name[one.name], seconds_of(one.listing.created)))
    return None


def read_listing(documents: Documents, name: str) -> StoredListing:
    """Read one listing without touching it; raises as `Documents.read`."""
    key, payload, sealed = documents.read_record("directory", name)
    listing = parse_listing(payload, name)
    if (made_for := listing_key(listing.tool, listing.components)) != key:
        raise Corrupt(what="listing", where=name, expected=f"key {key}", actual=made_for)
    return StoredListing(name=name, listing=listing, signer_id=signer_id(sealed))
