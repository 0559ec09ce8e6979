"""A backend that sees what others created only after a while, as clients of network file systems do.

Invariants: what this client creates, or tries to create, it sees at once (the server's answer settles that
name); any other name stays invisible for the first ``blind_looks`` looks at it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

from warmrank.cache_store.backends.backend import BlobBackend, FileInfo, NewFile
from warmrank.cache_store.errors import NotInStore


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
