"""Backends that hang, fail, or remember what was asked of them."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO

from tests.support.memory_backend import MemoryBackend
from warmrank.cache_store.backends.backend import FileInfo, NewFile
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import StoreUnavailable
from warmrank.cache_store.layout import FORMAT_FILE


class WaywardBackend(MemoryBackend):
    """A `MemoryBackend` in which calls can be made to hang or to fail.

    Attributes:
        calls: the verbs that were called, the pings of the supervisor included.
        hangs: from now on every call waits until `thaw`.
        failure: from now on every call raises this.
        fails_on: only these verbs fail; empty for all.
        hung: set once a call waits.
        on_put: called with what is put.
    """

    def __init__(self) -> None:
        super().__init__()
        super().put_new([new_file(FORMAT_FILE, b"{}")])
        self.calls: list[str] = []
        self.hangs = False
        self.failure: StoreUnavailable | None = None
        self.fails_on: frozenset[str] = frozenset()
        self.hung = threading.Event()
        self.on_put: Callable[[Sequence[NewFile]], None] = lambda files: None
        self._thawed = threading.Event()

    def thaw(self) -> None:
        self._thawed.set()

    def put_new(self, files: Sequence[NewFile]) -> tuple[str, ...]:
        self._come("put_new")
        self.on_put(files)
        return super().put_new(files)

    def open(self, name: str) -> BinaryIO:
        self._come("open")
        return super().open(name)

    def stat(self, names: Iterable[str]) -> dict[str, FileInfo]:
        self._come("stat")
        return super().stat(names)

    def list(self, prefix: str) -> Iterator[FileInfo]:
        self._come("list")
        return super().list(prefix)

    def move(self, name: str, target: str | None) -> bool:
        self._come("move")
        return super().move(name, target)

    def _come(self, verb: str) -> None:
        self.calls.append(verb)
        if self.hangs:
            self.hung.set()
            self._thawed.wait()
        if self.failure is not None and (not self.fails_on or verb in self.fails_on):
            raise self.failure


def new_file(name: str, data: bytes) -> NewFile:
    return NewFile(name=name, source=data, expected=digest_bytes(data))


def unavailable(reason: str = "No space left on device", *, transport: bool = False) -> StoreUnavailable:
    return StoreUnavailable(what="file", where="made up", reason=reason, transport=transport)


class UnreadableBackend(MemoryBackend):
    """A `MemoryBackend` whose files can be opened, and then fail.

    Attributes:
        failure: what reading raises; None for nothing.
        unreadable: names for which it does; empty for all.
        readable_bytes: what is read before that.
    """

    def __init__(self) -> None:
        super().__init__()
        super().put_new([new_file(FORMAT_FILE, b"{}")])
        self.failure: Exception | None = None
        self.unreadable: frozenset[str] = frozenset()
        self.readable_bytes = 0

    def open(self, name: str) -> BinaryIO:
        file = super().open(name)
        if self.failure is None or (self.unreadable and name not in self.unreadable):
            return file
        return _BadSector(file.read(self.readable_bytes), self.failure)


class _BadSector(io.BytesIO):
    """Gives what it has, and then no end but a fault."""

    def __init__(self, data: bytes, failure: Exception) -> None:
        super().__init__(data)
        self._failure = failure

    def read(self, size: int | None = -1, /) -> bytes:
        if chunk := super().read(size):
            return chunk
        raise self._failure
