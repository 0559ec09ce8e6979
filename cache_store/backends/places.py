"""The places that keep one store, a near one before a far one, as one backend.

Blobs are read from the nearest place that has them, documents from the farthest: the shared place is the
authority, a nearer one a cache. What fails in one place is asked of the next; one that failed to take a file
takes no further one from the same view, so no document stands in it whose blobs it lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO, TypeVar

from warmrank.cache_store.backends.backend import BlobBackend, FileInfo, NewFile, new_document
from warmrank.cache_store.backends.deadline import Tier
from warmrank.cache_store.errors import Corrupt, NotInStore, StoreError, StoreUnavailable
from warmrank.cache_store.layout import BLOBS

T = TypeVar("T")


class TieredBackend:
    """`BlobBackend` over ``tiers``, nearest first, for one verb.

    ``problems`` gets a line for what failed although the verb went on, each once.
    """

    def __init__(self, tiers: Sequence[Tier], problems: list[str] | None = None) -> None:
        if not tiers:
            raise ValueError("a store needs at least one tier")
        self.tiers = tuple(tiers)
        self.problems = [] if problems is None else problems
        self._failures: dict[str, StoreUnavailable] = {}  # of puts, by place
        self._read_from: dict[str, Tier] = {}
        # Files that are not read from a place again, and why.
        self._passed_over: dict[tuple[str, str], StoreUnavailable | None] = {}

    def put_new(self, files: Sequence[NewFile]) -> tuple[str, ...]:
        """See `BlobBackend.put_new`; every writable place takes them; names are those new in the farthest.

        A nearer place does not take a document whose name the farthest has already, which may hold another.
        Raises `StoreUnavailable` where a required place failed, or all did.
        """
        created: tuple[str, ...] | None = None
        for tier in self._writable():
            try:
                new = self._put(tier, files)
            except StoreUnavailable as error:
                self._put_failed(tier, error)
                continue
            if created is None:
                created, taken = new, frozenset(new)
                files = [file for file in files if file.name in taken or file.name.startswith(BLOBS)]
        if created is None:
            raise self._nothing_written()
        return created

    def open(self, name: str) -> BinaryIO:
        """See `BlobBackend.open`; what meets a fault while reading: `read_from_any`."""
        self._read_from.pop(name, None)
        failure: StoreError | None = None
        failed: dict[tuple[str, str], StoreUnavailable | None] = {}
        for tier in self._readers(name):
            if (tier.name, name) in self._passed_over:
                failure = self._passed_over[tier.name, name] or failure
                continue
            try:
                file = tier.open(name)
            except NotInStore as error:
                failure = failure or error
            except Corrupt:
                self._passed_over |= failed  # so that `move` takes the damaged one, not another
                raise
            except StoreUnavailable as error:
                self.note(tier, error)
                failure = failed[tier.name, name] = error
            else:
                self._passed_over |= failed
                self._read_from[name] = tier
                return file
        raise failure or NotInStore(what=name, where=self._names())

    def read_elsewhere(self, name: str, error: StoreUnavailable) -> bool:
        """After a fault while reading: not again from where `open` found it; False if no place is left."""
        if (tier := self._read_from.pop(name, None)) is None or len(self.tiers) == 1:
            return False
        self._passed_over[tier.name, name] = error
        self.note(tier, error)
        return True

    def stat(self, names: Iterable[str]) -> dict[str, FileInfo]:
        """See `BlobBackend.stat`; a place that cannot answer is as one that has nothing, if another can."""
        wanted = list(names)
        blobs = [name for name in wanted if name.startswith(BLOBS)]
        others = [name for name in wanted if not name.startswith(BLOBS)]
        return {**self._stat(blobs, self._readers(BLOBS)), **self._stat(others, self._readers(""))}

    def list(self, prefix: str) -> Iterator[FileInfo]:
        """See `BlobBackend.list`; complete for every place that can be listed, and at least one can.

        What must not act on half a listing asks each place by itself: `in_each`.
        """
        if len(self.tiers) == 1:
            return self.tiers[0].list(prefix)
        found: dict[str, FileInfo] = {}
        failures: list[StoreUnavailable] = []
        for tier in self._readers(prefix):
            try:
                for info in tier.list(prefix):
                    found.setdefault(info.name, info)
            except StoreUnavailable as error:
                self.note(tier, error)
                failures.append(error)
        if len(failures) == len(self.tiers):
            raise failures[0]
        return iter(found.values())

    def move(self, name: str, target: str | None) -> bool:
        """See `BlobBackend.move`; acts on the place that `open` would read, if it is writable.

        If it is not, that place is not read for this name again, so that another can serve it. No other place
        is moved in where that one fails: there the file may be a good one.
        """
        for tier in self._readers(name):
            if (tier.name, name) in self._passed_over:
                continue
            if (len(self.tiers) > 1 or not tier.is_writable) and not tier.stat([name]):
                continue
            if tier.is_writable:
                return tier.move(name, target)
            self._passed_over[tier.name, name] = None
            return False
        return False

    def alone(self) -> tuple[TieredBackend, ...]:
        """A view of each writable place by itself, the farthest first."""
        return tuple(TieredBackend([tier]) for tier in self._writable())

    def write_farthest(self, operation: Callable[[TieredBackend], T]) -> T:
        """Do something in the farthest writable place alone, or in the next one if that one fails."""
        for part in self.alone():
            try:
                return operation(part)
            except StoreUnavailable as error:
                self._put_failed(part.tiers[0], error)
        raise self._nothing_written()

    @property
    def near(self) -> Tier | None:
        """The writable place before the farthest, which `fill` fills."""
        return next((tier for tier in self.tiers[:-1] if tier.is_writable), None)

    def fill(self, blobs: Sequence[NewFile], documents: Sequence[str] = ()) -> None:
        """Copy what the near place lacks, as far as possible: blobs, then documents in their order.

        ``blobs`` has all that the documents refer to.
        """
        if (near := self.near) is None:
            return
        try:
            names = {*(blob.name for blob in blobs), *documents}
            standing = near.stat(list(names))
            if blobs and len(standing) < len(names):
                self._put(near, blobs)  # all, so that those that stand are durable before the documents
            for name in documents:
                if name not in standing and (document := self._document(name)) is not None:
                    self._put(near, [document])
        except StoreUnavailable as error:
            self._failures.setdefault(near.name, error)
            self.note(near, error)
        except StoreError as error:  # a source changed or went away meanwhile
            self.note(near, error)

    def _document(self, name: str) -> NewFile | None:
        """A document to put elsewhere; None for one that was there a moment ago, and cannot be read now."""
        try:
            return new_document(name, read_from_any(self, name, lambda file: file.read()))
        except StoreError:
            return None

    def note(self, tier: Tier, error: StoreError) -> None:
        """Go on after what failed in one place; raises it where that place is required and away."""
        if isinstance(error, StoreUnavailable) and error.required:
            raise error
        line = str(error) if tier.circuit.is_open else f"store {tier.name}: {error}"
        # Of one place only, the error itself is what the caller sees.
        if len(self.tiers) > 1 and line not in self.problems:
            self.problems.append(line)

    def _put(self, tier: Tier, files: Sequence[NewFile]) -> tuple[str, ...]:
        failure = self._failures.get(tier.name)
        if failure and len(self.tiers) > 1:
            raise failure
        return tier.put_new(files)

    def _put_failed(self, tier: Tier, error: StoreUnavailable) -> None:
        self._failures.setdefault(tier.name, error)
        if tier.mode == "required":
            raise error.but(required=True) from error
        self.note(tier, error)

    def _stat(self, names: Sequence[str], tiers: Iterable[Tier]) -> dict[str, FileInfo]:
        found: dict[str, FileInfo] = {}
        failure: StoreUnavailable | None = None
        has_answered = False
        for tier in tiers:
            rest = [x for x in names if x not in found and (tier.name, x) not in self._passed_over]
            if not rest:
                continue  # found, or passed over in this place only
            try:
                found.update(tier.stat(rest))
                has_answered = True
            except StoreUnavailable as error:
                self.note(tier, error)
                failure = failure or error
        if failure and not has_answered:
            raise failure
        return found

    def _nothing_written(self) -> StoreUnavailable:
        for tier in self._writable():
            if failure := self._failures.get(tier.name):
                return failure
        reason, remedy = "every place of it is read-only", "make one of its places rw"
        return StoreUnavailable(what="store", where=self._names(), reason=reason, remedy=remedy)

    def _writable(self) -> Sequence[Tier]:
        return [tier for tier in reversed(self.tiers) if tier.is_writable]

    def _readers(self, name: str) -> Sequence[Tier]:
        return self.tiers if name.startswith(BLOBS) else self.tiers[::-1]

    def _names(self) -> str:
        return ", ".join(tier.name for tier in self.tiers)


def read_from_any(backend: BlobBackend, name: str, read: Callable[[BinaryIO], T]) -> T:
    """Return the result of ``read`` for a file, from the first place that can be read.

    ``read`` raises `StoreUnavailable` where the place is at fault, and leaves nothing behind then.
    """
    while True:
        try:
            with backend.open(name) as file:
                return read(file)
        except StoreUnavailable as error:
            if not (isinstance(backend, TieredBackend) and backend.read_elsewhere(name, error)):
                raise


def in_each(
    tiers: Sequence[Tier], verb: Callable[[Tier, TieredBackend], T]
) -> tuple[list[T], list[tuple[Tier, StoreError]]]:
    """Do ``verb`` in each place by itself, the farthest first, and return results, and places that failed.

    The error of an only place is raised.
    """
    done: list[T] = []
    errors: list[tuple[Tier, StoreError]] = []
    for tier in reversed(tiers):
        try:
            done.append(verb(tier, TieredBackend([tier])))
        except StoreError as error:
            if len(tiers) == 1:
                raise
            errors.append((tier, error))
    return done, errors
