"""The places that keep one store, a near one before a far one, as one backend, and which are still asked.

Blobs are read from the nearest place that has them, documents from the farthest: the shared place is the
authority, a nearer one a cache. What fails in one place is asked of the next; one that failed to take a file
takes no further one from the same view, so no document stands in it whose blobs it lacks. A circuit opens for
silence or a fault of transport, never for an answer such as "no space left", and stays open.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Literal, TypeVar

from warmrank.cache_store.backends.backend import BlobBackend, FileInfo, NewFile, new_document
from warmrank.cache_store.errors import NotInStore, StoreError, StoreUnavailable
from warmrank.cache_store.layout import BLOBS

logger = logging.getLogger(__name__)

T = TypeVar("T")
TierMode = Literal["ro", "rw", "required"]
ANSWER_S = 3.5  # and a second until the next sign of life is asked for: 5 s in all, with the ticks


class Circuit:
    """State of a place in this process: asked until it has a ``reason``. Threads may share one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reason = ""

    @property
    def is_open(self) -> bool:
        """True once the place is left alone."""
        return bool(self.reason)

    def open(self, reason: str, *, where: str) -> None:
        """Leave the place alone from now on; the first reason stays."""
        with self._lock:
            if self.reason:
                return
            self.reason = reason
        logger.warning("%s is left alone for the rest of this process: %s", where, reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierState:
    """State of one place, for reports; ``away`` is left alone, ``off`` was not asked for."""

    location: str  # as it was named
    mode: str
    state: Literal["used", "away", "off"]
    reason: str = ""  # why it is left alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One place of a store; ``ro`` is never written, and without a ``required`` one no verb goes on."""

    name: str  # its location, as it was named
    backend: BlobBackend
    mode: TierMode = "rw"
    answer_s: float = ANSWER_S  # how long it may be silent
    circuit: Circuit = field(default_factory=Circuit)

    @property
    def is_writable(self) -> bool:
        """True if files may be put here."""
        return self.mode != "ro"

    @property
    def state(self) -> TierState:
        """Its state so far."""
        reason = self.circuit.reason
        return TierState(
            location=self.name, mode=self.mode, state="away" if reason else "used", reason=reason
        )

    def away(self) -> StoreUnavailable:
        """The error that says that this place is left alone, and why."""
        return away(self.name, self.circuit.reason, required=self.mode == "required")


def away(name: str, reason: str, *, required: bool) -> StoreUnavailable:
    """The error for a place that is left alone for the rest of this process."""
    return StoreUnavailable(
        what=f"required store {name}" if required else f"store {name}",
        where=name,
        reason=f"{reason}, so it is left alone for the rest of this process",
        remedy="check that its file system or server answers, then start again",
        required=required,
    )


class TieredBackend:
    """`BlobBackend` over ``tiers``, nearest first, for one verb; a part is left with its ``whole``."""

    def __init__(self, tiers: Sequence[Tier], *, whole: TieredBackend | None = None) -> None:
        if not tiers:
            raise ValueError("a store needs at least one tier")
        self.tiers = tuple(tiers)
        self.problems: list[str] = []  # what failed although the verb went on
        self._whole = whole
        self.num_answers: dict[str, int] = whole.num_answers if whole else {tier.name: 0 for tier in tiers}
        self.is_left = False  # the verb was given up, and its view with it
        self._failures: dict[str, StoreUnavailable] = {}
        self._read_from: dict[str, Tier] = {}
        self._unreadable: dict[str, StoreUnavailable] = {}
        self._passed_over: set[tuple[str, str]] = set()

    @property
    def lost_a_place(self) -> bool:
        """True once one of its places is left alone."""
        return any(tier.circuit.is_open for tier in self.tiers)

    def leave(self) -> None:
        """Refuse every further call."""
        self.is_left = True

    def while_asked(self, tell: Callable[[T], None] | None) -> Callable[[T], None] | None:
        """As ``tell``, which hears nothing more once this view was left."""
        return tell and (lambda told: None if self.is_left else tell(told))

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
                self._pass_over(tier, error)
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
        failure: StoreError | None = self._unreadable.get(name)
        for tier in self._not_passed_over(name):
            try:
                with _Asking(self, tier):
                    file = tier.backend.open(name)
            except NotInStore as error:
                failure = failure or error
            except StoreUnavailable as error:
                self._note(tier, error)
                failure = error
            else:
                self._read_from[name] = tier
                return file
        raise failure or NotInStore(what=name, where=self._names())

    def read_elsewhere(self, name: str, error: StoreUnavailable) -> bool:
        """After a fault while reading: not again from where `open` found it; False if no place is left."""
        if (tier := self._read_from.pop(name, None)) is None or len(self.tiers) == 1:
            return False
        self._check_not_left(tier)
        if error.transport:
            tier.circuit.open(error.reason, where=tier.name)
        self._unreadable[name] = error
        self._passed_over.add((tier.name, name))
        self._note(tier, error)
        return True

    def stat(self, names: Iterable[str]) -> dict[str, FileInfo]:
        """See `BlobBackend.stat`; a place that cannot answer is as one that has nothing, if another can."""
        wanted = list(names)
        blobs = [name for name in wanted if name.startswith(BLOBS)]
        others = [name for name in wanted if not name.startswith(BLOBS)]
        found = self._stat(blobs, self._readers(BLOBS)) if blobs else {}
        return {**found, **(self._stat(others, self._readers("")) if others else {})}

    def list(self, prefix: str) -> Iterator[FileInfo]:
        """See `BlobBackend.list`; complete for every place that can be listed, and at least one can.

        What must not act on half a listing asks each place by itself: `alone`.
        """
        if len(self.tiers) == 1:
            return self._stream(self.tiers[0], prefix)
        found: dict[str, FileInfo] = {}
        failures: list[StoreUnavailable] = []
        for tier in self._readers(prefix):
            try:
                for info in self._stream(tier, prefix):
                    found.setdefault(info.name, info)
            except StoreUnavailable as error:
                self._note(tier, error)
                failures.append(error)
        if len(failures) == len(self.tiers):
            raise failures[0]
        return iter(found.values())

    def move(self, name: str, target: str | None) -> bool:
        """See `BlobBackend.move`; acts on the place that `open` would read, if it is writable.

        If it is not, that place is not read for this name again, so that another can serve it.
        """
        for tier in self._not_passed_over(name):
            with _Asking(self, tier):
                if (len(self.tiers) > 1 or not tier.is_writable) and not tier.backend.stat([name]):
                    continue
                if tier.is_writable:
                    return tier.backend.move(name, target)
            self._passed_over.add((tier.name, name))
            return False
        return False

    def alone(self) -> tuple[TieredBackend, ...]:
        """A view of each writable place by itself, the farthest first."""
        return tuple(TieredBackend([tier], whole=self._whole or self) for tier in self._writable())

    def write_farthest(self, operation: Callable[[BlobBackend], T]) -> T:
        """Do something in the farthest writable place alone, or in the next one if that one fails."""
        for part in self.alone():
            (tier,) = part.tiers
            try:
                return operation(part)
            except StoreUnavailable as error:
                self._pass_over(tier, error)
        raise self._nothing_written()

    @property
    def near(self) -> Tier | None:
        """The writable place before the farthest, which `fill` fills."""
        return next((tier for tier in self.tiers[:-1] if tier.is_writable), None)

    def fill(
        self,
        blobs: Sequence[NewFile],
        documents: Sequence[str] = (),
        read: Callable[[str], bytes | None] = lambda _: None,
    ) -> None:
        """Copy what the near place lacks, as far as possible: blobs, then documents in their order.

        ``blobs`` has all that the documents refer to; ``read`` reads one of these, None where it is gone.
        """
        if (near := self.near) is None:
            return
        try:
            names = {*(blob.name for blob in blobs), *documents}
            standing = self._stat(list(names), [near])
            if blobs and len(standing) < len(names):
                self._put(near, blobs)  # all, so that those that stand are durable before the documents
            for name in documents:
                if name not in standing and (data := read(name)) is not None:
                    self._put(near, [new_document(name, data)])
        except StoreUnavailable as error:
            self._failures.setdefault(near.name, error)
            self._note(near, error)
        except StoreError as error:  # a source changed or went away meanwhile
            self._note(near, error)

    def _put(self, tier: Tier, files: Sequence[NewFile]) -> tuple[str, ...]:
        failure = self._failures.get(tier.name)
        if failure and len(self.tiers) > 1:
            raise failure
        with _Asking(self, tier):
            return tier.backend.put_new(files)

    def _stat(self, names: Sequence[str], tiers: Iterable[Tier]) -> dict[str, FileInfo]:
        found: dict[str, FileInfo] = {}
        failure: StoreUnavailable | None = None
        num_answered = 0
        for tier in tiers:
            rest = [x for x in names if x not in found and (tier.name, x) not in self._passed_over]
            if not rest:
                continue  # found, or passed over in this place only
            try:
                with _Asking(self, tier):
                    found.update(tier.backend.stat(rest))
                num_answered += 1
            except StoreUnavailable as error:
                self._note(tier, error)
                failure = failure or error
        if failure and not num_answered:
            raise failure
        return found

    def _stream(self, tier: Tier, prefix: str) -> Iterator[FileInfo]:
        with _Asking(self, tier):
            listing = iter(tier.backend.list(prefix))
        while True:
            with _Asking(self, tier):
                info = next(listing, None)
            if info is None:
                return
            yield info

    def _check_not_left(self, tier: Tier) -> None:
        if (self._whole or self).is_left:
            reason = "this call was given up, because a place of the store fell silent"
            raise StoreUnavailable(what="store", where=tier.name, reason=reason)

    def _pass_over(self, tier: Tier, error: StoreUnavailable) -> None:
        self._check_not_left(tier)
        self._failures.setdefault(tier.name, error)
        if tier.mode == "required":
            raise error.but(required=True) from error
        self._note(tier, error)

    def _nothing_written(self) -> StoreUnavailable:
        for tier in self._writable():
            if failure := self._failures.get(tier.name):
                return failure
        reason, remedy = "every place of it is read-only", "make one of its places rw"
        return StoreUnavailable(what="store", where=self._names(), reason=reason, remedy=remedy)

    def _note(self, tier: Tier, error: StoreError) -> None:
        self._check_not_left(tier)
        # Of one place only, the error itself is what the caller sees; the supervisor says what is left alone.
        line = f"store {tier.name}: {error}"
        if len(self.tiers) > 1 and not tier.circuit.is_open and line not in self.problems:
            self.problems.append(line)

    def _writable(self) -> Sequence[Tier]:
        return [tier for tier in reversed(self.tiers) if tier.is_writable]

    def _readers(self, name: str) -> Sequence[Tier]:
        return self.tiers if name.startswith(BLOBS) else self.tiers[::-1]

    def _not_passed_over(self, name: str) -> Iterator[Tier]:
        return (tier for tier in self._readers(name) if (tier.name, name) not in self._passed_over)

    def _names(self) -> str:
        return ", ".join(tier.name for tier in self.tiers)


class _Asking:
    """Around one call of one place: refused once it is left alone; an answer is a sign of life."""

    __slots__ = ("_tier", "_view")

    def __init__(self, view: TieredBackend, tier: Tier) -> None:
        self._view, self._tier = view, tier

    def __enter__(self) -> None:
        self._view._check_not_left(self._tier)  # noqa: SLF001 - one class in two parts
        if self._tier.circuit.is_open:
            raise self._tier.away()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._view.num_answers[self._tier.name] += 1
        elif isinstance(error, StoreUnavailable):
            self._view._check_not_left(self._tier)  # noqa: SLF001
            if error.transport:
                self._tier.circuit.open(error.reason, where=self._tier.name)


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
