"""What publishers left behind that were killed, or whose host never came back.

Layout: ``tmp/<host>-<pid>-<random>/<file>``, see `cache_store.layout`. A host sweeps what its own dead
processes left; only age tells of the others'. Who is still writing there fails and tries again, and nothing
that has a name in the store is touched.
"""

from __future__ import annotations

from warmrank.cache_store.backends.backend import BlobBackend, FileInfo
from warmrank.cache_store.errors import StoreUnavailable
from warmrank.cache_store.layout import PROBE, TMP

DEBRIS_S = 86400.0
"""No publisher takes longer from the first byte of a batch to its names."""


def list_debris(backend: BlobBackend) -> tuple[tuple[FileInfo, ...], str]:
    """The files on their way in, however old, and why some could not be listed, or nothing.

    These directories are private, so those of other users cannot be listed; that stops nothing.
    """
    found: list[FileInfo] = []
    try:
        for info in backend.list(TMP):
            if info.name != PROBE:
                found.append(info)  # noqa: PERF401 - what was listed before a failure counts
    except StoreUnavailable as error:
        return tuple(found), f"not all of {TMP} could be looked at: {error}"
    return tuple(found), ""
