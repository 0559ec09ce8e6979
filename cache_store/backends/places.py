"""The places that keep one store, a near one before a far one, as one.

Blobs are read from the nearest place that has them, documents from the farthest: the shared place is the
authority, a nearer one a cache. What fails in one place is asked of the next; what is damaged in one, each of
two times, goes into its quarantine, and the next is asked.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from warmrank.cache_store.backends.backend import FileInfo, GuardedFile, NewFile, new_document
from warmrank.cache_store.backends.deadline import Tier
from warmrank.cache_store.digests import digest_stream
from warmrank.cache_store.errors import Corrupt, NotInStore, StoreError, StoreUnavailable, is_damage
from warmrank.cache_store.layout import BLOBS

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Places:
    """The open ``tiers`` of a store, nearest first, for one verb.

    ``problems`` gets a line for what failed although the verb went on, each once. A verb that
    ``needs_farthest`` does not go on without that place.
    """

    def __init__(
        self, tiers: Sequence[Tier], problems: list[str] | None = None, *, needs_farthest: bool = False
    ) -> None:
        if not tiers:
            raise ValueError("a store needs at least one tier")
        self.tiers = tuple(tiers)
        self.problems = [] if problems is None else problems
        self._needs_farthest = needs_farthest

    def put_new(self, files: Sequence[NewFile]) -> tuple[str, ...]:
        """Create files in every writable place; the names new in the farthest that took them.

        Raises `StoreUnavailable` where a required place failed, or all did.
        """
        return self._in_writable(lambda part: part.tiers[0].put_new(files))

    def read(self, name: str, use: Callable[[GuardedFile], T], *, repairs: bool = True) -> T:
        """Return the result of ``use`` for a file, from the first place where it can be used.

        ``use`` raises what says that a file is damaged (`is_damage`), and clears away what it began before.
        Then the file is read again: a proxy may have given something else. Without ``repairs`` nothing goes
        into quarantine.
        """
        failure: StoreError | None = None
        for tier in self._readers(name):
            try:
                return _read_twice(tier, name, use)
            except NotInStore as error:
                failure = failure or error
            except StoreUnavailable as error:
                self._note(tier, error)
                failure = error if isinstance(failure, NotInStore | None) else failure
            except StoreError as error:
                if not is_damage(error):
                    raise
                if repairs:
                    _move_away(tier, name, error)
                failure = error if isinstance(failure, NotInStore | None) else failure
        assert failure is not None  # noqa: S101 - there is at least one place
        raise failure

    def stat(self, names: Iterable[str]) -> dict[str, FileInfo]:
        """See `BlobBackend.stat`; a place that cannot answer is as one that has nothing, if another can."""
        names = list(names)
        found: dict[str, FileInfo] = {}

        def look(tier: Tier, wanted: Sequence[str]) -> None:
            if rest := [name for name in wanted if name not in found]:
                found.update(tier.stat(rest))

        blobs = [name for name in names if name.startswith(BLOBS)]
        others = [name for name in names if not name.startswith(BLOBS)]
        for wanted in filter(None, (blobs, others)):
            self._ask(wanted[0], partial(look, wanted=wanted))
        return found

    def list(self, prefix: str) -> list[FileInfo]:
        """See `BlobBackend.list`; complete for every place that can be listed, and at least one can.

        What must not act on half a listing asks each place by itself: `in_each`.
        """
        found: dict[str, FileInfo] = {}
        self._ask(prefix, lambda tier: found.update({it.name: it for it in tier.list(prefix)} | found))
        return list(found.values())

    def move(self, name: str, target: str | None) -> bool:
        """See `BlobBackend.move`; acts on the first place that has the file and may be written."""
        return any(tier.is_writable and tier.move(name, target) for tier in self._readers(name))

    def quarantine(self, name: str, reason: str) -> None:
        """See `Tier.quarantine`; acts on every place."""
        for tier in self.tiers:
            tier.quarantine(name, reason)

    def alone(self) -> tuple[Places, ...]:
        """A view of each writable place by itself, the farthest first."""
        return tuple(Places([tier]) for tier in reversed(self.tiers) if tier.is_writable)

    def write_farthest(self, operation: Callable[[Places], T]) -> T:
        """Do something in the farthest writable place alone, or in the next one if that one fails."""
        return self._in_writable(operation, only_one=True)

    @property
    def near(self) -> Tier | None:
        """The writable place before the farthest, which `fill` fills."""
        return next((tier for tier in self.tiers[:-1] if tier.is_writable), None)

    def fill(self, blobs: Sequence[NewFile], documents: Mapping[str, str]) -> None:
        """Copy what the near place lacks, as far as possible: blobs, then documents in their order.

        ``blobs`` has all that the documents refer to. ``documents`` gives the sha256 of what the farthest
        place has under a name, or empty text where that is not known; another one makes way for it.
        """
        if (near := self.near) is None:
            return
        try:
            standing = near.stat({*(blob.name for blob in blobs), *documents})
            found = {name: _sha256(near, name) for name in documents if name in standing}
            lacking = [name for name, sha256 in documents.items() if not sha256 or found.get(name) != sha256]
            if blobs and (lacking or any(blob.name not in standing for blob in blobs)):
                near.put_new(blobs)  # all, so that those that stand are durable before the documents
            for name in lacking:
                with contextlib.suppress(NotInStore):  # gone by now
                    document = new_document(name, self.read(name, GuardedFile.read))
                    actual = document.expected.sha256
                    if documents[name] not in ("", actual):
                        continue  # put anew since, and its blobs may not be here
                    if found.get(name, actual) != actual:
                        near.quarantine(name, "the farthest place has another")
                    near.put_new([document])
        except StoreError as error:  # of that place; or a source changed or went away meanwhile
            self._note(near, error)

    def _in_writable(self, act: Callable[[Places], T], *, only_one: bool = False) -> T:
        """Do something in each writable place, the farthest first, or in ``only_one``; the first result.

        A place that fails is noted, if another can do it.
        """
        done: list[T] = []
        failure: StoreUnavailable | None = None
        for part in self.alone():
            (tier,) = part.tiers
            try:
                done.append(act(part))
                if only_one:
                    tier.refusal = ""
            except StoreUnavailable as error:
                if only_one:
                    tier.refusal = f"{tier.name} did not take it: {error}"
                if tier.mode == "required":
                    raise error.but(required=True) from error
                self._note(tier, error)
                failure = failure or error
            if done and only_one:
                break
        if done:
            return done[0]
        where = ", ".join(tier.name for tier in self.tiers)
        reason, remedy = "every place of it is read-only", "make one of its places rw"
        raise failure or StoreUnavailable(what="store", where=where, reason=reason, remedy=remedy)

    def _ask(self, name: str, act: Callable[[Tier], None]) -> None:
        """Ask every place; one that fails is noted if another can answer."""
        failures: list[StoreUnavailable] = []
        for tier in self._readers(name):
            try:
                act(tier)
            except StoreUnavailable as error:
                self._note(tier, error)
                failures.append(error)
        if len(failures) == len(self.tiers):
            raise failures[0]

    def _readers(self, name: str) -> Sequence[Tier]:
        return self.tiers if name.startswith(BLOBS) else self.tiers[::-1]

    def _note(self, tier: Tier, error: StoreError) -> None:
        """Go on after what failed in one place; raises it where that place is needed."""
        is_needed = self._needs_farthest and tier.is_farthest
        if isinstance(error, StoreUnavailable) and (error.required or is_needed):
            raise error
        line = str(error) if tier.circuit.is_open else f"store {tier.name}: {error}"
        # Of one place only, the error itself is what the caller sees.
        if len(self.tiers) > 1 and line not in self.problems:
            self.problems.append(line)


def _read_twice(tier: Tier, name: str, use: Callable[[GuardedFile], T]) -> T:
    """Read a file, and again if it seems to be damaged."""
    try:
        return tier.read(name, use)
    except StoreError as error:
        if not is_damage(error):
            raise
        return tier.read(name, use)


def _move_away(tier: Tier, name: str, error: StoreError) -> None:
    try:
        tier.quarantine(name, str(error))
    except StoreUnavailable as failure:  # no reason to hide the fault that led here
        logger.warning("%s stays where it is: %s", name, failure)


def _sha256(tier: Tier, name: str) -> str:
    """The sha256 of a file, or empty text where no file can be read there."""
    try:
        return tier.read(name, digest_stream).sha256
    except Corrupt:
        return ""


def in_each(
    tiers: Sequence[Tier], verb: Callable[[Tier, Places], T]
) -> tuple[list[T], list[tuple[Tier, StoreError]]]:
    """Do ``verb`` in each place by itself, the farthest first, and return results, and places that failed.

    The error of an only place is raised.
    """
    done: list[T] = []
    errors: list[tuple[Tier, StoreError]] = []
    for tier in reversed(tiers):
        try:
            done.append(verb(tier, Places([tier])))
        except StoreError as error:
            if len(tiers) == 1:
                raise
            errors.append((tier, error))
    return done, errors
