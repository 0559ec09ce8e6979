"""Backends in memory, that fail, that see late, that say nothing."""

from __future__ import annotations

import io
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO

from warmrank.cache_store.backends.backend import BlobBackend, FileInfo, NewFile, check_name
from warmrank.cache_store.backends.deadline import Tier, TierMode
from warmrank.cache_store.backends.places import Places
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Corrupt, NotInStore, StoreUnavailable
from warmrank.cache_store.layout import FORMAT_FILE
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.store import Store


class MemoryBackend:
    """A `BlobBackend` that forgets everything at exit."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._times: dict[str, float] = {}
        self.now_s = 4_000_000_000.0  # later than any record of a test is dated
        self._written: dict[str, float] = {}

    def put_new(self, files: Sequence[NewFile]) -> tuple[str, ...]:
        data = {file.name: _bytes(file) for file in files if not self._has(file.name)}
        # setdefault is atomic under the GIL, and says who won.
        for name in data:
            self._times.setdefault(name, self.now_s)
            self._written.setdefault(name, self.now_s)
        return tuple(name for name in data if self._files.setdefault(name, data[name]) is data[name])

    def open(self, name: str) -> BinaryIO:
        if not self._has(name):
            raise NotInStore(what=name, where="memory")
        return io.BytesIO(self._files[name])

    def stat(self, names: Iterable[str]) -> dict[str, FileInfo]:
        return {name: self._info(name) for name in names if self._has(name)}

    def list(self, prefix: str) -> Iterator[FileInfo]:
        return iter([self._info(name) for name in list(self._files) if name.startswith(prefix)])

    def move(self, name: str, target: str | None) -> bool:
        if not self._has(name) or (target is not None and self._has(target)):
            return False
        data = self._files.pop(name)
        moved_s = self._times.pop(name, self.now_s)
        written_s = self._written.pop(name, moved_s)
        if target is not None:
            self._times[target] = self.now_s
            self._written[target] = written_s
            self._files[target] = data
        return True

    def _has(self, name: str) -> bool:
        check_name(name, where="memory")
        return name in self._files

    def _info(self, name: str) -> FileInfo:
        size = len(self._files[name])
        return FileInfo(
            name=name,
            stored_bytes=size,
            content_bytes=size,
            modified_s=self._times[name],
            written_s=self._written.get(name, self._times[name]),
        )


def _bytes(file: NewFile) -> bytes:
    with file.open() as source:
        data = source.read()
    if digest_bytes(data) != file.expected:
        actual = str(digest_bytes(data))
        raise Corrupt(what=file.name, where="source", expected=str(file.expected), actual=actual)
    return bytes(bytearray(data))  # an object of its own, so that identity tells who won


class WaywardBackend(MemoryBackend):
    """A `MemoryBackend` in which calls can be made to hang or to fail.

    Attributes:
        calls: the verbs that were called, the pings of the supervisor included.
        hangs: from now on every call waits until `thaw`.
        hangs_while_read: from now on so does whoever reads a file, once it is open.
        failure: from now on every call raises this.
        fails_on: only these verbs fail; empty for all.
        hung: set once a call waits.
        on_put: called with what is put.
    """

    def __init__(self) -> None:
        super().__init__()
        super().put_new([new_file(FORMAT_FILE, b"{}")])
        self.calls: list[str] = []
        self.hangs = self.hangs_while_read = False
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
        file = super().open(name)
        if not self.hangs_while_read:
            return file
        self.hangs = True  # for pings too
        return _Waiting(file.read(), self.hung, self._thawed)

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


class _Waiting(io.BytesIO):
    def __init__(self, data: bytes, hung: threading.Event, until: threading.Event) -> None:
        super().__init__(data)
        self._hung, self._until = hung, until

    def read(self, size: int | None = -1, /) -> bytes:
        self._hung.set()
        self._until.wait()
        return super().read(size)


def new_file(name: str, data: bytes) -> NewFile:
    return NewFile(name=name, source=data, expected=digest_bytes(data))


def read(backend: BlobBackend | Places, name: str) -> bytes:
    if isinstance(backend, Places):
        return backend.read(name, lambda file: file.read())
    with backend.open(name) as file:
        return file.read()


def alone(backend: BlobBackend) -> Places:
    """A store of this one place, with patience for a busy machine."""
    return Places([Tier(name="store", backend=backend, answer_s=60.0)])


def unavailable(reason: str = "No space left on device", *, transport: bool = False) -> StoreUnavailable:
    return StoreUnavailable(what="file", where="made up", reason=reason, transport=transport)


class NearAndFar:
    """A near and a far place, and stores over both."""

    def __init__(self) -> None:
        self.near, self.far = WaywardBackend(), WaywardBackend()

    def view(self, near: TierMode = "rw", far: TierMode = "rw", *, answer_s: float = 60.0) -> Places:
        """Both as one; the near one has ``answer_s``, the far one has time."""
        tiers = [
            Tier(name="near", backend=self.near, mode=near, is_farthest=False, answer_s=answer_s),
            Tier(name="far", backend=self.far, mode=far, answer_s=60.0),
        ]
        return Places(tiers)

    def store(self, near: TierMode = "rw", far: TierMode = "rw", *, answer_s: float = 60.0) -> Store:
        view = self.view(near, far, answer_s=answer_s)
        return Store(view, trust=Trust(policy="off"), location="near, far")


class SlowEyes:
    """A `BlobBackend` in front of another."""

    def __init__(self, backend: BlobBackend, blind_looks: int) -> None:
        self._backend = backend
        self._blind_looks = blind_looks
        self._looks: Counter[str] = Counter()
        self._known: set[str] = set()

    def put_new(self, files: Sequence[NewFile]) -> tuple[str, ...]:
        created = self._backend.put_new(files)
        self._known.update(file.name for file in files)
        return created

    def open(self, name: str) -> BinaryIO:
        file = self._backend.open(name)
        if not self._sees(name):
            file.close()
            raise NotInStore(what=name, where="a client with slow eyes")
        return file

    def stat(self, names: Iterable[str]) -> dict[str, FileInfo]:
        found = self._backend.stat(list(names))
        return {name: info for name, info in found.items() if self._sees(name)}

    def list(self, prefix: str) -> Iterator[FileInfo]:
        return (info for info in self._backend.list(prefix) if self._sees(info.name))

    def move(self, name: str, target: str | None) -> bool:
        moved = self._backend.move(name, target)
        self._known.discard(name)
        if target is not None:
            self._known.add(target)
        return moved

    def _sees(self, name: str) -> bool:
        if name not in self._known:
            self._looks[name] += 1
            if self._looks[name] <= self._blind_looks:
                return False
            self._known.add(name)
        return True
