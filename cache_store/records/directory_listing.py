"""A listing: the document behind ``warmrank store sync``, one directory of another tool at one time.

Layout: canonical JSON of `DirectoryListing`, sealed by `cache_store.signing.trust`, under
`cache_store.layout.directory_name`::

    {"format":1,"tool":"vllm","components":{"torch":"2.13.0",...},"root":"/root/.cache/vllm",
     "files":[{"path":"a/b","sha256":"...","size_bytes":N,"executable":false,"names_root":false},...],
     "created":"..."}

Invariants: every path may be joined to a directory (`cache_store.paths`), and no two collide; of a file's
mode only one bit is kept, so nothing that was set-uid comes back so; the key is made of the components
alone, so a miss can be explained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from warmrank.cache_store.errors import Corrupt, UnusableCache
from warmrank.cache_store.keys import key_of
from warmrank.cache_store.parsing import faults_of, parse_document
from warmrank.cache_store.paths import collision, part_fault, path_fault
from warmrank.cache_store.records.manifest import (
    MAX_DOCUMENT_BYTES,
    BlobEntry,
    Components,
    Document,
    Utc,
    utc_now,
)

LISTING_FORMAT: Final = 1
MAX_FILES = 100_000
MAX_ROOT_CHARACTERS = 4096


def _relative_path(path: str) -> str:
    if fault := path_fault(path):
        raise ValueError(f"path {path!r} {fault}")
    return path


def _tool(name: str) -> str:
    if fault := part_fault(name):
        raise ValueError(f"name {name!r} {fault}")
    return name


class ListedFile(BlobEntry):
    """One file of a directory.

    Attributes:
        path: posix path relative to the directory.
        sha256: digest of its bytes.
        size_bytes: their number.
        executable: its owner may execute it.
        names_root: its bytes contain the directory's absolute path.
    """

    path: Annotated[str, AfterValidator(_relative_path)]
    executable: bool
    names_root: bool


class DirectoryListing(Document):
    """All files of a directory.

    Attributes:
        tool: whose directory it is, such as ``vllm``; decides how it may be relocated.
        components: what must be equal for it to be restored.
        root: the directory's absolute path where it was read.
        files: its files, sorted by path.
        created: when it was read.
    """

    format: Literal[1] = LISTING_FORMAT
    tool: Annotated[str, AfterValidator(_tool)]
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
    """A listing made now, which `parse_listing` takes.

    Raises:
        UnusableCache: the directory, its tool or its components are more than a listing can hold.
    """
    try:
        listing = DirectoryListing(
            tool=tool,
            components=dict(components),
            root=str(root),
            files=tuple(files),
            created=utc_now(),
        )
    except ValidationError as error:
        raise _unlistable(root, "names and numbers that a listing can hold", faults_of(error)) from error
    if (size_bytes := len(listing.to_bytes())) > MAX_DOCUMENT_BYTES:
        expected = f"a listing of at most {MAX_DOCUMENT_BYTES} bytes"
        raise _unlistable(root, expected, f"{size_bytes} bytes for {len(listing.files)} files")
    return listing


def _unlistable(root: Path, expected: str, actual: str) -> UnusableCache:
    remedy = "push its directories one by one, under plain names and keys of a few characters"
    return UnusableCache(what="directory", where=str(root), expected=expected, actual=actual, remedy=remedy)


def parse_listing(data: bytes, where: str) -> DirectoryListing:
    """Read a listing's canonical JSON.

    Raises:
        Corrupt: it is too large, no JSON, or breaks an invariant; names the field.
        NewerFormat: a later release wrote it.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        expected = f"at most {MAX_DOCUMENT_BYTES} bytes"
        raise Corrupt(what="listing", where=where, expected=expected, actual=f"{len(data)} bytes")
    return parse_document(
        DirectoryListing, data, supported_format=LISTING_FORMAT, what="listing", where=where
    )
