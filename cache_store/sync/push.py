"""Pushing a directory of another tool: its files as blobs, then a sealed listing of them.

The listing comes last, so it is whole in the store or absent. A file that changes while it is read is left
out with a word. Links are not followed and not kept; what another user could have written is refused; nothing
is written below the directory.
"""

from __future__ import annotations

import logging
import mmap
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.cache_dir.marks import check_marks
from warmrank.cache_store.cache_dir.private_files import check_owned, open_owned, os_errors_are_unusable
from warmrank.cache_store.digests import digest_bytes, digest_stream
from warmrank.cache_store.errors import Corrupt, NotInStore, StoreError, UnusableCache
from warmrank.cache_store.layout import blob_name, record_name
from warmrank.cache_store.parallel import NUM_THREADS, each
from warmrank.cache_store.parsing import MAX_DOCUMENT_BYTES, faults_of
from warmrank.cache_store.paths import collisions, path_fault
from warmrank.cache_store.publish import put_blobs
from warmrank.cache_store.records.documents import Documents, newest_listing
from warmrank.cache_store.records.manifest import (
    MAX_FILE_BYTES,
    DirectoryListing,
    ListedFile,
    listing_key,
    utc_now,
)
from warmrank.cache_store.sync.tools import is_left_out, is_ours, is_unread, tool_named

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushReport:
    """Outcome of pushing one directory."""

    directory: str
    key: str  # of its listings
    num_files: int  # listed
    size_bytes: int
    num_blobs_new: int
    bytes_new: int
    created: bool  # a listing was written; otherwise the newest one says the same already
    left_out: tuple[str, ...]  # files that are not listed, each with the reason


def push(documents: Documents, tool: str, root: Path, components: Mapping[str, str]) -> PushReport:
    """Store the directory ``root`` of ``tool`` under named components.

    Raises:
        Untrusted: there is no key to sign with; nothing was written.
        UnusableCache: it holds no file, and would hide what was pushed before.
    """
    root = Path(os.path.abspath(root))  # noqa: PTH100 - the tool wrote this path, not the resolved one
    trust = documents.trust
    # What it was not to be used for must not be signed anew either, where no signature is asked for.
    policy = "warn" if trust.policy == "off" and trust.signer else trust.policy
    check_marks(root, policy, trust.revoked)
    left_out: list[str] = []
    files = _read_all(tool, root, left_out)
    if not files:
        raise UnusableCache(
            what="directory",
            where=str(root),
            expected="files to push",
            actual="; ".join(left_out) or "none",
            remedy="let the tool fill it first; to take what was pushed before out of use, evict it",
        )
    listing = make_listing(tool, components, root, files.values())  # refuses what it cannot hold
    key = listing_key(tool, dict(components))
    trust.seal("directory", key, b"")  # without a key to sign with nothing is written at all
    new = _put_blobs(documents, root, files, left_out)
    if len(files) < len(listing.files):  # some changed meanwhile
        listing = make_listing(tool, components, root, files.values())
    created = _write(documents, key, listing)
    if created:
        # An evict that did not see the listing yet may have taken what it names.
        _put_blobs(documents, root, {file.path: file for file in listing.files}, [])
    said = "created" if created else "stood there"
    logger.info("Pushed %s of %s: %d new blobs, listing %s", root, tool, len(new), said)
    return PushReport(
        directory=str(root),
        key=key,
        num_files=len(listing.files),
        size_bytes=listing.size_bytes,
        num_blobs_new=len(new),
        bytes_new=sum(new.values()),
        created=created,
        left_out=tuple(left_out),
    )


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


def _walk(root: Path, prefix: str, left_out: list[str]) -> Iterator[tuple[str, os.stat_result]]:
    """The files below a directory by path; what is not taken goes to ``left_out``, save locks and such."""
    with os.scandir(root / prefix) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            path = f"{prefix}{entry.name}"
            is_directory = entry.is_dir(follow_symlinks=False)
            if is_left_out(entry.name, directory=is_directory) or is_ours(path):
                continue
            if fault := path_fault(path):
                left_out.append(f"{path!r}: its name {fault}")
            elif is_directory:
                check_owned(root / path, entry.stat(follow_symlinks=False), directory=True)
                yield from _walk(root, f"{path}/", left_out)
            elif not entry.is_file(follow_symlinks=False):
                left_out.append(f"{path}: no regular file (a link, socket or device)")
            else:
                yield path, entry.stat(follow_symlinks=False)


def _read_all(tool: str, root: Path, left_out: list[str]) -> dict[str, ListedFile]:
    """Entries of a listing for the directory's files, by path; others go to ``left_out``."""
    with os_errors_are_unusable("directory", root):
        check_owned(root, root.stat(), directory=True)
        found = dict(sorted(_walk(root, "", left_out)))
    left_out.sort()
    unlike = dict(collisions(found))
    left_out += (f"{path}: {fault}" for path, fault in unlike.items())
    known = tool_named(tool)
    taken = [path for path in found if path not in unlike and not is_unread(known, path)]
    mentions = tuple({os.fsencode(root), os.fsencode(root.resolve())})
    results = each(
        lambda path: _read(root, path, mentions),
        taken,
        num_threads=NUM_THREADS,
        size_bytes=sum(found[path].st_size for path in taken),
    )
    files: dict[str, ListedFile] = {}
    for path, result in zip(taken, results, strict=True):
        if isinstance(result, ListedFile):
            files[path] = result
        else:
            left_out.append(f"{path}: {result}")
    return files


def _read(root: Path, name: str, mentions: tuple[bytes, ...]) -> ListedFile | UnusableCache:
    path, names_root = root / name, False
    try:
        with os_errors_are_unusable("file", path), open_owned(path) as file:
            status = os.fstat(file.fileno())
            if status.st_size > MAX_FILE_BYTES:
                expected, actual = f"at most {MAX_FILE_BYTES} bytes", f"{status.st_size} bytes"
                return _unlisted(path, expected, actual, "copy it by other means")
            digest = digest_stream(file)
            if digest.size_bytes:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    names_root = any(data.find(mention) >= 0 for mention in mentions)
    except UnusableCache as error:
        return error
    except ValueError:  # emptied between reading and mapping
        return _unlisted(path, "no change", "a change", "push again later")
    return ListedFile(
        path=name,
        sha256=digest.sha256,
        size_bytes=digest.size_bytes,
        executable=bool(status.st_mode & stat.S_IXUSR),
        names_root=names_root,
    )


def _unlisted(path: Path, expected: str, actual: str, remedy: str) -> UnusableCache:
    return UnusableCache(what="file", where=str(path), expected=expected, actual=actual, remedy=remedy)


def _put_blobs(
    documents: Documents, root: Path, files: dict[str, ListedFile], left_out: list[str]
) -> dict[str, int]:
    """Put what the store lacks; files that changed since they were read are taken out of ``files``."""
    while True:
        blobs = {
            (name := blob_name(file.sha256)): NewFile(
                name=name, source=root / file.path, expected=file.digest, is_private=False
            )
            for file in files.values()
        }
        try:
            new = put_blobs(documents.places, blobs, restores=True)
        except (Corrupt, UnusableCache) as error:
            _drop_changed(root, files, left_out, error)
        else:
            return {name: blobs[name].expected.size_bytes for name in new}


def _drop_changed(root: Path, files: dict[str, ListedFile], left_out: list[str], error: StoreError) -> None:
    """Take out the files that are no longer what was read; ``error`` is what the backend met with."""
    again = {path: _read(root, path, ()) for path in files}
    changed = [path for path, file in files.items() if getattr(again[path], "digest", None) != file.digest]
    if not changed:
        raise error
    for path in changed:
        del files[path]
        left_out.append(f"{path}: it changed while it was read; push again when the tool is idle")


def _write(documents: Documents, key: str, listing: DirectoryListing) -> bool:
    try:
        newest = newest_listing(replace(documents, problems=[]), key).listing
        if newest.model_copy(update={"created": listing.created}) == listing:
            return False
    except NotInStore:
        pass
    payload = listing.to_bytes()
    name = record_name("directory", key, digest_bytes(payload).sha256)
    return documents.write(name, documents.trust.seal("directory", key, payload))
