"""The errors of this package: fields first, a message made from them, picklable.

No dataclasses: a warm load imports this, and to make eleven of them takes milliseconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal, Self, TypeVar, dataclass_transform

T = TypeVar("T")
UntrustedReason = Literal[
    "unsigned", "unknown_signer", "bad_signature", "replayed", "revoked", "no_signing_key"
]


@dataclass_transform(kw_only_default=True, eq_default=False)
class _Fields(Exception):
    """Fields are annotations, given by keyword; a class attribute of that name is the default."""

    _names: ClassVar[tuple[str, ...]] = ()
    _text: ClassVar[str] = "{what} at {where}"

    def __init_subclass__(cls) -> None:
        own = cls.__dict__.get("__annotations__", ())  # noqa: RUF063 - inspect is slow to import
        names = (name for name in own if not name.startswith("_"))
        cls._names = tuple(dict.fromkeys((*cls._names, *names)))

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.__dict__.update(given)
        missing = {name for name in self._names if not hasattr(self, name)}
        if wrong := sorted({*given}.difference(self._names) | missing):
            raise TypeError(f"{type(self).__name__}: fields unknown or missing: {', '.join(wrong)}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by fields: Exception would call the constructor with positional arguments only."""
        return partial(type(self), **self.fields()), ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.fields()})"

    def __str__(self) -> str:
        return self._text.format_map(self.fields())

    def fields(self) -> dict[str, Any]:
        """All fields by name."""
        return {name: getattr(self, name) for name in self._names}

    def but(self, **changes: Any) -> Self:
        """The same error with other values of some fields."""
        return type(self)(**{**self.fields(), **changes})


class StoreError(_Fields):
    """Base of all errors of this package; ``what`` names the thing, ``where`` its file or location."""

    what: str
    where: str


class StoreUnavailable(StoreError):
    """The store cannot be read or written at all; the launch may go on without it."""

    _text: ClassVar[str] = "store unavailable: {what} at {where}: {reason}; {remedy}"
    reason: str
    remedy: str = "check that the store's directory is mounted, writable and not full"
    required: bool = False  # configured as ``required``: the launch must not go on
    transport: bool = False  # no answer after all retries: asking again only costs time


class NoStoreYet(StoreUnavailable):
    """The place answers and holds no store: nobody made one yet, or its disk is not mounted."""

    _text: ClassVar[str] = "there is no store at {where} yet (no FORMAT); {remedy}"
    reason: str = "there is no store here yet (no FORMAT)"
    remedy: str = (
        "the first launch with mode: rw makes it, or warmrank store init; if one should be there, check the "
        "path, and that its disk is mounted"
    )


class Corrupt(StoreError):
    """Bytes are not what their name, digest or format says; they must not be used."""

    _text: ClassVar[str] = "corrupt: {what} at {where}: expected {expected}, found {actual}; {remedy}"
    expected: str
    actual: str
    remedy: str = "the next publish of the same bytes repairs it"

    @classmethod
    def since_made(cls, path: os.PathLike[str], expected: object, actual: object, *, again: str) -> Corrupt:
        """An artifact on this node's disk that changed; ``again`` says how to make it anew."""
        remedy = f"it changed after it was made; {again} again"
        return cls(
            what="artifact", where=str(path), expected=str(expected), actual=str(actual), remedy=remedy
        )


class NewerFormat(StoreError):
    """Written by a later release; intact, but not readable by this one."""

    _text: ClassVar[str] = (
        "newer: {what} at {where} has format {found}, and this release reads up to {supported}; "
        "upgrade warmrank here, or use another store"
    )
    found: int
    supported: int


class Untrusted(StoreError):
    """The trust policy does not let this process use (or sign) a document."""

    _text: ClassVar[str] = "untrusted ({reason}): {what} at {where}: {detail}; {remedy}"
    reason: UntrustedReason
    detail: str
    remedy: str


class NotInStore(StoreError):
    """A miss."""

    _text: ClassVar[str] = "not in store: {what} at {where}; {remedy}"
    remedy: str = "publish it; a launch without --no-compile compiles it"
    refused: tuple[str, ...] = ()  # why what is there cannot be used, a line each; empty if nothing is there


class Conflict(StoreError):
    """Two things that must agree do not, though each is intact."""

    _text: ClassVar[str] = "conflict: {what} at {where}: expected {expected}, found {actual}; {remedy}"
    expected: str
    actual: str
    remedy: str


class EvictRefused(StoreError):
    """An evict took nothing away, because it could take what is needed."""

    _text: ClassVar[str] = "nothing was evicted: {what} at {where}: {reason}; {remedy}"
    reason: str
    remedy: str


class UnusableCache(StoreError):
    """A local file or directory that is not private to this user, or cannot be read or written."""

    _text: ClassVar[str] = "unusable {what} {where}: expected {expected}, found {actual}; {remedy}"
    expected: str
    actual: str
    remedy: str


class UnwritableDisk(UnusableCache):
    """The cache's disk is full or read-only: retrying on this disk fails too."""


class RefusedCache(UnusableCache):
    """A directory has copies that nobody signed, or that a revoked key signed: nothing may use them."""


def is_damage(error: StoreError) -> bool:
    """Return True if the bytes are wrong for every reader, so to be quarantined; not for an unknown key."""
    if isinstance(error, Untrusted):
        return error.reason in ("bad_signature", "replayed")
    return isinstance(error, Corrupt)


def is_final(error: StoreError) -> bool:
    """Return True if the launch must end: a required place is away, or untrusted code would run."""
    return isinstance(error, RefusedCache) or (isinstance(error, StoreUnavailable) and error.required)


def outcome_of(call: Callable[[], T]) -> T | StoreError:
    """Return the result of ``call``, or the error that it raises, unless that is final."""
    try:
        return call()
    except StoreError as error:
        if is_final(error):
            raise
        return error


class OsErrors:
    """Context that turns an ``OSError`` into a `StoreError`; no generator, because it wraps every file."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[OSError], StoreError]) -> None:
        self._make = make

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise self._make(error) from error


def os_errors_are_unavailable(what: str, where: str | os.PathLike[str]) -> OsErrors:
    """Turn any ``OSError`` of the store's file system into `StoreUnavailable` with the system's reason."""
    where = os.fspath(where)
    return OsErrors(
        lambda error: StoreUnavailable(what=what, where=where, reason=error.strerror or str(error))
    )
