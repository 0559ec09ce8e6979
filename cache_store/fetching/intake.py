"""How bytes come into a cache directory, where that is not simply from the store as fast as it can.

Invariants: whatever brings a blob, it is verified on arrival exactly as one from the store; who brings blobs
brings what it can, and the store has the rest; nothing here changes which blobs a node gets.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.digests import Digest
from warmrank.cache_store.fetching.arrivals import Arrivals
from warmrank.cache_store.fetching.copying import Blobs
from warmrank.cache_store.fetching.pace import Pace
from warmrank.cache_store.fetching.progress import OnProgress, Progress
from warmrank.cache_store.node.single_flight import Flight

BEAT_EVERY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What a supply is asked for, and where to.

    Attributes:
        missing: the blobs that the node lacks.
        every: these and those that it has: the same on all nodes that fetch the same.
        arrivals: where to.
        count: told of bytes that came, and with a minus sign of those that were of no use.
        read: copies a blob out of the store into a new private file, verified; raises as `copy_blob`.
    """

    missing: Sequence[Digest]
    every: Sequence[Digest]
    arrivals: Arrivals
    count: Callable[[int], None]
    read: Callable[[Digest, Path], None]


class Supply(Protocol):
    """Brings blobs from elsewhere than the store, such as from another node."""

    def bring(self, delivery: Delivery) -> None:
        """Bring those of the missing blobs that can be had; what fails is left to the store.

        Raises:
            StoreUnavailable: of a place of the store that is required.
        """


def _nobody_waits() -> None:
    """Where nobody asks whether it gets on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """How bytes come in.

    Attributes:
        pace: the bandwidth limit; None for none.
        supply: asked for blobs before the store is; None for nobody.
        held: told of verified private copies of all blobs that the node has after a fetch.
        arrivals: where blobs wait until all have arrived; None where none are kept for the next fetch.
        reread: what is there already is read and verified, though nothing says that it changed.
        beat: called now and then while it gets on, for whoever waits for the cache directory.
    """

    pace: Pace | None = None
    supply: Supply | None = None
    held: Callable[[Sequence[NewFile]], None] | None = None
    arrivals: Arrivals | None = None
    reread: bool = False
    beat: Callable[[], None] = _nobody_waits


def receive(
    intake: Intake,
    blobs: Blobs,
    digests: Sequence[Digest],
    *,
    every: Iterable[Digest],
    count: Callable[[int], None],
) -> None:
    """Take what an earlier fetch left, and let the supply bring of the rest what it can.

    Args:
        intake: how bytes come in.
        blobs: the store's.
        digests: the blobs that the node lacks.
        every: these and those that it has.
        count: as that of `Delivery`.

    Raises:
        StoreUnavailable: of a place of the store that is required.
    """
    arrivals, supply = intake.arrivals, intake.supply
    if arrivals is None:
        return
    missing = arrivals.resume(digests, count)
    if not missing or supply is None:
        return

    def read(digest: Digest, path: Path) -> None:
        blobs.copy(digest, path, count)

    every = tuple(dict.fromkeys(every))
    supply.bring(Delivery(missing=missing, every=every, arrivals=arrivals, count=count, read=read))


def tell_held(intake: Intake | None, copies: Sequence[NewFile]) -> None:
    """Tell whoever wants to know which blobs are here now."""
    if intake is not None and intake.held is not None:
        intake.held(copies)


@contextlib.contextmanager
def incoming(cache_root: Path, intake: Intake | None, flight: Flight) -> Iterator[Intake]:
    """The intake with a place for blobs that arrive; whoever waits for the flight hears that it gets on."""
    arrivals = Arrivals(cache_root)
    try:
        yield replace(intake or Intake(), arrivals=arrivals, beat=_now_and_then(flight.beat))
    finally:
        arrivals.close()


def _now_and_then(beat: Callable[[], None]) -> Callable[[], None]:
    """As ``beat``, at most once in `BEAT_EVERY_S`: a cache directory may hold very many files."""
    last_s = float("-inf")

    def tell() -> None:
        nonlocal last_s
        if (now_s := time.monotonic()) - last_s >= BEAT_EVERY_S:
            last_s = now_s
            beat()

    return tell


def beating(on_progress: OnProgress | None, flight: Flight) -> OnProgress:
    """As ``on_progress``, and whoever waits for the cache directory hears of it too."""

    def tell(progress: Progress) -> None:
        flight.beat()
        if on_progress is not None:
            on_progress(progress)

    return tell
