"""The look-up: artifacts of one function in a cache directory, and why each of them does not fit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from warmrank.cache_store.cache_dir.local import variants
from warmrank.cache_store.cache_dir.private_files import set_aside
from warmrank.cache_store.errors import StoreError
from warmrank.cache_store.keys import changed_components
from warmrank.worker.errors import ArtifactCorrupt
from warmrank.worker.files_beside import with_files
from warmrank.worker.guards.words import in_brief
from warmrank.worker.keys.request import Request
from warmrank.worker.partition_paths import sibling_variants
from warmrank.worker.values import Value
from warmrank.worker.variant import StoredArtifact
from warmrank.worker.withheld import is_withheld

_log = logging.getLogger("torchair")

_MAX_SHOWN = 3

Misfits = Callable[[StoredArtifact], tuple[str, ...]]


class Found(Value):
    """Result of a look-up: the artifact that fits, or why none does.

    Attributes:
        stored: the artifact, or None.
        own: it lies in the partition that was asked, not in a sibling.
        reason: for a sibling's, whose it is; for none, what was looked at and why it did not fit.
    """

    stored: StoredArtifact | None
    own: bool
    reason: str


class Place(Value):
    """Where one function's artifacts lie.

    Attributes:
        model_dir: directory of the model and configuration, which all partitions share.
        function_dir: directory of the function in the rank's own partition.
    """

    model_dir: Path
    function_dir: Path


def look_up(place: Place, asked: Request, misfits: Misfits) -> Found:
    """The first artifact that fits: own partition first, then sibling partitions.

    Args:
        place: where to look.
        asked: the request that an artifact must answer.
        misfits: says why an artifact may not be used; empty if it may.
    """
    reasons: list[str] = []
    unfit: list[tuple[str, ...]] = []
    tried: set[str] = set()
    for path in _candidates(place):
        stored = read_stored(path, reasons)
        if stored is None or stored.sha256 in tried:
            continue
        tried.add(stored.sha256)
        own = path.parent == place.function_dir
        wrong = other_request(stored, asked) or misfits(stored)
        if not wrong and not own and is_withheld(path.parent, stored.sha256):
            wrong = (
                f"of {path.parent.parent.name}, whose launch has not compared it with other ranks' traces",
            )
            tried.discard(stored.sha256)
        if wrong:
            unfit.append(wrong)
        elif (whole := with_files(stored, reasons)) is None:
            tried.discard(stored.sha256)  # a sibling's copy may have its files
        else:
            return Found(stored=whole, own=own, reason="" if own else f"fits {path.parent.parent.name}")
    reason = _in_words(reasons, unfit) or _nearest(place, asked, misfits)
    return Found(stored=None, own=False, reason=reason)


def _in_words(faults: Sequence[str], unfit: Sequence[tuple[str, ...]]) -> str:
    """Why no artifact fits: files with faults, and the conditions of those that are nearest."""
    nearest = [*faults, *dict.fromkeys(in_brief(wrong) for wrong in sorted(unfit, key=len))]
    shown, more = nearest[:_MAX_SHOWN], len(nearest) - _MAX_SHOWN
    return " | ".join([*shown, f"and {more} more"] if more > 0 else shown)


def other_request(stored: StoredArtifact, asked: Request) -> tuple[str, ...]:
    """The components in which an artifact answers another request than its directory's name says."""
    return tuple(map(str, changed_components(stored.artifact.components, asked.components)))


def by_digest(place: Place, sha256: str) -> StoredArtifact | None:
    """The artifact with this digest in any partition, or None."""
    for path in _candidates(place):
        stored = read_stored(path, [])
        if stored is not None and stored.sha256 == sha256 and (whole := with_files(stored, [])) is not None:
            return whole
    return None


def read_stored(path: Path, reasons: list[str]) -> StoredArtifact | None:
    """Read one file; a fault goes into ``reasons``, and a corrupt file out of the way.

    What is not this user's alone (a link, another owner or mode) is not touched: it may not be ours to move.
    """
    try:
        if path.is_symlink():
            reasons.append(f"{path} is a symbolic link, which is never followed; remove it")
        else:
            return StoredArtifact.read(path)
    except ArtifactCorrupt as error:
        set_aside(path)
        reasons.append(f"corrupt: {error.why}")
    except StoreError as error:
        reasons.append(str(error))
    _log.warning("%s is not used: %s", path, reasons[-1])
    return None


def _candidates(place: Place) -> Iterator[Path]:
    """Files to look at, own partition first; the siblings are listed only if that was not enough."""
    yield from variants(place.function_dir)
    yield from sibling_variants(place.function_dir, place.model_dir)


def _nearest(place: Place, asked: Request, misfits: Misfits) -> str:
    """Why nothing lies under this request, told by the nearest other request of this class."""
    from warmrank.worker.nearest import explain_absence

    def of_file(path: Path) -> tuple[str, ...]:
        try:
            return misfits(StoredArtifact.read(path))
        except (ArtifactCorrupt, StoreError):
            return ()

    return explain_absence(place.model_dir, place.function_dir.name, asked, of_file)
