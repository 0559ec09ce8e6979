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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.cache_dir.marks import check_marks
from warmrank.cache_store.cache_dir.private_files import check_owned, open_owned, os_errors_are_unusable
from warmrank.cache_store.digests import CHUNK_BYTES, digest_bytes, digest_stream
from warmrank.cache_store.errors import Corrupt, NotInStore, StoreError, UnusableCache
from warmrank.cache_store.layout import blob_name, directory_name
from warmrank.cache_store.parallel import NUM_THREADS, each, each_short, is_short
from warmrank.cache_store.paths import collisions, path_fault
from warmrank.cache_store.publish.local_blobs import absent_blobs
from warmrank.cache_store.records.directory_listing import (
    DirectoryListing,
    ListedFile,
    listing_key,
    make_listing,
    newest_listing,
)
from warmrank.cache_store.records.documents import Documents
from warmrank.cache_store.records.manifest import MAX_FILE_BYTES
from warmrank.cache_store.sync.tools import is_left_out, is_ours, is_own_work, is_unread, tool_named


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
    """A file of a directory, by its path relative to it."""

    path: str
    executable: bool
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a directory holds.

    Attributes:
        files: its files, sorted by path.
        left_out: what is not taken, with the reason, sorted; locks and temporary files are not mentioned.
    """

    files: tuple[FoundFile, ...]
    left_out: tuple[str, ...]


def walk(root: Path) -> Found:
    """List a directory.

    Raises:
        UnusableCache: it is no directory, cannot be read, or another user could have written to it.
    """
    left_out: list[str] = []
    with os_errors_are_unusable("directory", root):
        check_owned(root, root.stat(), directory=True)
        files = sorted(_walk(root, "", left_out), key=lambda file: file.path)
    return Found(files=tuple(files), left_out=tuple(sorted(left_out)))


def _walk(root: Path, prefix: str, left_out: list[str]) -> Iterator[FoundFile]:
    with os.scandir(root / prefix) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            path = f"{prefix}{entry.name}"
            is_directory = entry.is_dir(follow_symlinks=False)
            if is_left_out(entry.name, directory=is_directory):
                continue
            if is_ours(path):
                if not is_own_work(entry.name, directory=is_directory):
                    left_out.append(f"{path}: warmrank keeps this name for itself")
            elif fault := path_fault(path):
                left_out.append(f"{path!r}: its name {fault}")
            elif is_directory:
                check_owned(root / path, entry.stat(follow_symlinks=False), directory=True)
                yield from _walk(root, f"{path}/", left_out)
            elif not entry.is_file(follow_symlinks=False):
                left_out.append(f"{path}: no regular file (a link, socket or device)")
            else:
                status = entry.stat(follow_symlinks=False)
                executable = bool(status.st_mode & stat.S_IXUSR)
                yield FoundFile(path=path, executable=executable, size_bytes=status.st_size)


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushReport:
    """Outcome of pushing one directory.

    Attributes:
        directory: which.
        key: key of its listings.
        num_files: files listed.
        size_bytes: their size.
        num_blobs_new: blobs that the store did not have.
        bytes_new: their size.
        created: a listing was written; otherwise the newest one says the same already.
        left_out: files that are not listed, each with the reason.
    """

    directory: str
    key: str
    num_files: int
    size_bytes: int
    num_blobs_new: int
    bytes_new: int
    created: bool
    left_out: tuple[str, ...]


def push(documents: Documents, tool: str, root: Path, components: Mapping[str, str]) -> PushReport:
    """Store the directory ``root`` of ``tool`` under named components.

    Raises:
        UnusableCache: it cannot be read, another user could have written to it, it is more than a listing
            can hold, or it has copies that the trust policy refuses; nothing was written.
        Untrusted: there is no key to sign with; nothing was written.
        StoreUnavailable: the store cannot be written; to try again is safe.
    """
    root = Path(os.path.abspath(root))  # noqa: PTH100 - the tool wrote this path, not the resolved one
    trust = documents.trust
    # What it was not to be used for must not be signed anew either, where no signature is asked for.
    policy = "warn" if trust.policy == "off" and trust.signer else trust.policy
    check_marks(root, policy, trust.revoked)
    left_out: list[str] = []
    files = _read_all(tool, root, left_out)
    make_listing(tool, components, root, files.values())  # refuses what it cannot hold before all else
    key = listing_key(tool, dict(components))
    trust.seal("directory", key, b"")  # without a key to sign with nothing is written at all
    new = _put_blobs(documents, root, files, left_out)
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


def _read_all(tool: str, root: Path, left_out: list[str]) -> dict[str, ListedFile]:
    """What a listing can say of the directory's files, by path; what it cannot goes to ``left_out``."""
    found = walk(root)
    left_out += found.left_out
    unlike = dict(collisions(one.path for one in found.files))
    left_out += (f"{path}: {fault}" for path, fault in unlike.items())
    known = tool_named(tool)
    taken = [one for one in found.files if one.path not in unlike and not is_unread(known, one.path)]
    mentions = tuple({os.fsencode(root), os.fsencode(root.resolve())})
    run = each_short if is_short(len(taken), sum(one.size_bytes for one in taken)) else each
    results = run(lambda one: _read(root, one, mentions), taken, num_threads=NUM_THREADS)
    files: dict[str, ListedFile] = {}
    for one, result in zip(taken, results, strict=True):
        if isinstance(result, ListedFile):
            files[one.path] = result
        else:
            left_out.append(f"{one.path}: {result}")
    return files


def _read(root: Path, found: FoundFile, mentions: tuple[bytes, ...]) -> ListedFile | UnusableCache:
    path = root / found.path
    try:
        with os_errors_are_unusable("file", path), open_owned(path) as file:
            _check_size(path, os.fstat(file.fileno()).st_size)
            if os.fstat(file.fileno()).st_size < CHUNK_BYTES:
                data = file.read()
                digest, names_root = digest_bytes(data), _has_any(data, mentions)
            else:
                digest = digest_stream(file)
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                    names_root = _has_any(mapped, mentions)
    except UnusableCache as error:
        return error
    except ValueError:  # emptied between reading and mapping
        return UnusableCache(
            what="file", where=str(path), expected="no change", actual="a change", remedy="push again later"
        )
    return ListedFile(
        path=found.path,
        sha256=digest.sha256,
        size_bytes=digest.size_bytes,
        executable=found.executable,
        names_root=names_root,
    )


def _has_any(data: bytes | mmap.mmap, mentions: tuple[bytes, ...]) -> bool:
    return any(data.find(mention) >= 0 for mention in mentions)


def _check_size(path: Path, size_bytes: int) -> None:
    if size_bytes > MAX_FILE_BYTES:
        raise UnusableCache(
            what="file",
            where=str(path),
            expected=f"at most {MAX_FILE_BYTES} bytes",
            actual=f"{size_bytes} bytes",
            remedy="copy it by other means",
        )


def _put_blobs(
    documents: Documents, root: Path, files: dict[str, ListedFile], left_out: list[str]
) -> dict[str, int]:
    """Put what the store lacks; files that changed since they were read are taken out of ``files``."""
    new: dict[str, int] = {}
    while True:
        by_blob = {blob_name(file.sha256): file for file in files.values()}
        wanted = {name: file.digest for name, file in by_blob.items()}
        absent = absent_blobs(documents.backend, wanted, restore=True)
        if not absent:
            return new
        try:
            names = documents.backend.put_new(
                [_new_file(name, root, by_blob[name]) for name in sorted(absent)]
            )
        except (Corrupt, UnusableCache) as error:
            _drop_changed(root, files, {by_blob[name].sha256 for name in absent}, left_out, error)
            continue
        new.update({name: by_blob[name].size_bytes for name in names})
        if not absent - set(names):
            return new


def _new_file(name: str, root: Path, file: ListedFile) -> NewFile:
    return NewFile(name=name, source=root / file.path, expected=file.digest, is_private=False)


def _drop_changed(
    root: Path, files: dict[str, ListedFile], shas: set[str], left_out: list[str], error: StoreError
) -> None:
    """Take out the files that are no longer what was read; ``error`` is what the backend met with."""
    changed = []
    for path, file in files.items():
        if file.sha256 in shas:
            again = _read(
                root, FoundFile(path=path, executable=file.executable, size_bytes=file.size_bytes), ()
            )
            if not isinstance(again, ListedFile) or again.digest != file.digest:
                changed.append(path)
    if not changed:
        raise error
    for path in changed:
        del files[path]
        left_out.append(f"{path}: it changed while it was read; push again when the tool is idle")


def _write(documents: Documents, key: str, listing: DirectoryListing) -> bool:
    try:
        newest = newest_listing(documents, key, []).listing
        if newest.model_copy(update={"created": listing.created}) == listing:
            return False
    except NotInStore:
        pass
    payload = listing.to_bytes()
    name = directory_name(key, digest_bytes(payload).sha256)
    return documents.write(name, documents.trust.seal("directory", key, payload))
