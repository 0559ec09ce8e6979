"""What lies in a node cache: its files in order, without what is nobody else's business.

Invariants: links are never followed; a directory that others can write is left out whole, as are hidden files
and directories, locks, temporary files, and what lies deeper than any manifest could name. Whatever cannot be
looked at is a reason and keeps nothing else back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from warmrank.cache_store.errors import UnusableCache
from warmrank.cache_store.node.node_files import Identity, identity_of, is_reserved
from warmrank.cache_store.node.placing import Destination
from warmrank.cache_store.node.private_files import check_owned, os_errors_are_unusable
from warmrank.cache_store.paths import MAX_PARTS
from warmrank.cache_store.sync.tools import is_left_out
from warmrank.worker.node_caches import NodeCache

Listing = Mapping[tuple[str, str], Identity]
"""What lies in node caches: name and path of each file -> what changes when it is written."""


def listing(caches: Iterable[NodeCache]) -> Listing:
    """What lies there now and does not count as new later; what cannot be looked at is left out."""
    news = [cache for cache in caches if cache.collect == "new"]
    return {
        (cache.name, path): identity_of(status)
        for cache in news
        for path, status in walk(cache, lambda _: None)
    }


def walk(cache: NodeCache, leave_out: Callable[[str], None]) -> Iterator[tuple[str, os.stat_result]]:
    """Files of a node cache by their paths below it, in order; why others are not among them."""
    root = Path(cache.directory)
    takes = Destination(path=root, patterns=cache.patterns).takes
    try:
        with os_errors_are_unusable("directory", root):
            if not root.exists():
                return
            check_owned(root, root.stat(), directory=True)
    except UnusableCache as error:
        leave_out(str(error))
        return
    waiting = [""]
    while waiting:
        directories: list[str] = []
        prefix = waiting.pop()
        for name, status in _entries(root / prefix, leave_out, _usual(prefix, takes)):
            if status is None:
                directories.append(f"{prefix}{name}/")
            else:
                yield f"{prefix}{name}", status
        waiting += reversed(directories)


def _usual(prefix: str, takes: Callable[[str], bool]) -> Callable[[os.DirEntry[str]], bool]:
    """Which entries of a directory are looked at at all."""
    is_deepest = prefix.count("/") + 1 >= MAX_PARTS

    def usual(entry: os.DirEntry[str]) -> bool:
        is_directory = entry.is_dir(follow_symlinks=False)
        if is_reserved(entry.name) or is_left_out(entry.name, directory=is_directory):
            return False
        return not is_deepest if is_directory else takes(f"{prefix}{entry.name}")

    return usual


def _entries(
    directory: Path, leave_out: Callable[[str], None], is_usual: Callable[[os.DirEntry[str]], bool]
) -> Iterator[tuple[str, os.stat_result | None]]:
    """Names in a directory; with each file its status, with a directory None."""
    try:
        with os_errors_are_unusable("directory", directory), os.scandir(directory) as scanned:
            found = sorted(scanned, key=lambda entry: entry.name)
    except UnusableCache as error:
        leave_out(str(error))
        return
    for entry in found:
        try:
            with os_errors_are_unusable("file", directory / entry.name):
                if not is_usual(entry):
                    continue
                is_directory = entry.is_dir(follow_symlinks=False)
                status = entry.stat(follow_symlinks=False)
                check_owned(directory / entry.name, status, directory=is_directory)
        except UnusableCache as error:
            leave_out(str(error))
        else:
            yield entry.name, None if is_directory else status
