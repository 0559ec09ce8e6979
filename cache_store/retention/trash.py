"""What an evict took away, and how it comes back.

Invariants: a file in the trash lies under ``trash/<time of the evict>/`` and its former name, with its bytes
as they were; whoever relies on a name that is gone brings it back before it writes what refers to it, and
looks again afterwards. A restored file counts as new, so no evict takes it before another grace is over.
Any number of processes may restore, evict and publish at once: of racing callers one moves the file, and
all find it in its place.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from warmrank.cache_store.backends.backend import BlobBackend, FileInfo
from warmrank.cache_store.layout import TRASH, split_trash_name

logger = logging.getLogger(__name__)


def trashed(backend: BlobBackend) -> dict[str, tuple[FileInfo, ...]]:
    """All that is in the trash, by its former name, what came last first.

    Raises:
        StoreUnavailable: the trash cannot be listed.
    """
    found: dict[str, list[FileInfo]] = {}
    for info in backend.list(TRASH):
        if former := split_trash_name(info.name):
            found.setdefault(former[0], []).append(info)
    return {
        name: tuple(sorted(infos, key=lambda info: (-info.modified_s, info.name)))
        for name, infos in found.items()
    }


def restore(backend: BlobBackend, names: Iterable[str]) -> frozenset[str]:
    """Bring back those of ``names`` that are gone and lie in the trash; costs a listing if any is gone.

    Returns:
        Those of ``names`` that stand in the store now, whoever put them there.

    Raises:
        StoreUnavailable: the trash cannot be listed, or a file cannot be moved.
    """
    wanted = frozenset(names)
    standing = frozenset(backend.stat(wanted))
    gone = wanted - standing
    if not gone:
        return standing
    return standing | restore_from(backend, gone, trashed(backend))


def restore_from(
    backend: BlobBackend, names: frozenset[str], contents: Mapping[str, tuple[FileInfo, ...]]
) -> frozenset[str]:
    """As `restore`, with the trash listed before.

    Returns:
        Those of ``names`` that stand in the store now.
    """
    for name in sorted(names & contents.keys()):
        # Of several evicts the last has the bytes that stood last; an older copy serves if that one is gone.
        if any(backend.move(info.name, name) for info in contents[name]):
            logger.info("Restored %s from the trash", name)
    return frozenset(backend.stat(names))
