"""The errors of this package: fields first, a message made from them, picklable.

No dataclasses: a warm load imports this, and to make eleven of them takes milliseconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal, Self, dataclass_transform

UntrustedReason = Literal[
    "unsigned", "unknown_signer", "bad_signature", "replayed", "revoked", "no_signing_key"
]


@dataclass_transform(kw_only_default=True, eq_default=False)
class _Fields(Exception):
    """Fields are annotations, given by keyword; a class attribute of that name is the default."""

    _names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        own = cls.__dict__.get("__annotations__", ())  # noqa: RUF063 - inspect is slow to import
        cls._names = tuple(dict.fromkeys((*cls._names, *own)))

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.__dict__.update(given)
        missing = {name for name in self._names if not hasattr(self, name)}
        if wrong := sorted({*given}.difference(self._names) | missing):
            raise TypeError(f"{type(self).__name__}: fields unknown or missing: {', '.join(wrong)}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by fields: Exception would call the constructor with positional arguments only."""
        return partial(type(self), **self.fields()), ()

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

    reason: str
    remedy: str = "check that the store's directory is mounted, writable and not full"
    required: bool = False  # configured as ``required``: the launch must not go on
    transport: bool = False  # no answer after all retries: asking again only costs time

    def __str__(self) -> str:
        return f"store unavailable: {self.what} at {self.where}: {self.reason}; {self.remedy}"


class NoStoreYet(StoreUnavailable):
    """The place answers and holds no store: nobody made one yet, or its disk is not mounted."""

    reason: str = "there is no store here yet (no FORMAT)"
    remedy: str = (
        "the first launch with mode: rw makes it, or warmrank store init; if one should be there, check the "
        "path, and that its disk is mounted"
    )

    def __str__(self) -> str:
        return f"there is no store at {self.where} yet (no FORMAT); {self.remedy}"


class Corrupt(StoreError):
    """Bytes are not what their name, digest or format says; they must not be used."""

    expected: str
    actual: str
    remedy: str = "the next publish of the same bytes repairs it"

    def __str__(self) -> str:
        found = f"expected {self.expected}, found {self.actual}"
        return f"corrupt: {self.what} at {self.where}: {found}; {self.remedy}"


class NewerFormat(StoreError):
    """Written by a later release; intact, but not readable by this one."""

    found: int
    supported: int

    def __str__(self) -> str:
        formats = f"has format {self.found}, and this release reads up to {self.supported}"
        return f"newer: {self.what} at {self.where} {formats}; upgrade warmrank here, or use another store"


class Untrusted(StoreError):
    """The trust policy does not let this process use (or sign) a document."""

    reason: UntrustedReason
    detail: str
    remedy: str

    def __str__(self) -> str:
        return f"untrusted ({self.reason}): {self.what} at {self.where}: {self.detail}; {self.remedy}"


class NotInStore(StoreError):
    """A miss."""

    remedy: str = "publish it, or launch once without --no-compile"

    def __str__(self) -> str:
        return f"not in store: {self.what} at {self.where}; {self.remedy}"


class Conflict(StoreError):
    """Two things that must agree do not, though each is intact."""

    expected: str
    actual: str
    remedy: str

    def __str__(self) -> str:
        found = f"expected {self.expected}, found {self.actual}"
        return f"conflict: {self.what} at {self.where}: {found}; {self.remedy}"


class EvictRefused(StoreError):
    """An evict took nothing away, because it could take what is needed."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"nothing was evicted: {self.what} at {self.where}: {self.reason}; {self.remedy}"


class UnusableCache(StoreError):
    """A local file or directory that is not private to this user, or cannot be read or written."""

    expected: str
    actual: str
    remedy: str

    def __str__(self) -> str:
        found = f"expected {self.expected}, found {self.actual}"
        return f"unusable {self.what} {self.where}: {found}; {self.remedy}"


class UnwritableDisk(UnusableCache):
    """The cache's disk is full or read-only: retrying on this disk fails too."""


class RefusedCache(UnusableCache):
    """A directory has copies that nobody signed, or that a revoked key signed: nothing may use them."""


def is_damage(error: StoreError) -> bool:
    """Whether the bytes are wrong for every reader, so quarantine them; a key unknown *here* is no damage."""
    if isinstance(error, Untrusted):
        return error.reason in ("bad_signature", "replayed")
    return isinstance(error, Corrupt)


def is_final(error: StoreError) -> bool:
    """Whether the launch must end: a required place is away, or untrusted code would run."""
    return isinstance(error, RefusedCache) or (isinstance(error, StoreUnavailable) and error.required)


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
