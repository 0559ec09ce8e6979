"""The port in its simplest form: a reference that the contract suite holds against the directory."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from cache_store.backend import NewFile
from cache_store.digests import digest_bytes
from cache_store.errors import Corrupt, NotInStore
from cache_store.private_files import open_private, os_errors_are_unusable


class MemoryBackend:
    """A `BlobBackend` that forgets everything at exit."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self.quarantined: dict[str, tuple[bytes, str]] = {}

    def put_new(self, files: Sequence[NewFile]) -> tuple[str, ...]:
        data = {file.name: _bytes(file) for file in files if file.name not in self._files}
        # setdefault is atomic under the GIL, and says who won.
        return tuple(name for name in data if self._files.setdefault(name, data[name]) is data[name])

    def open(self, name: str) -> BinaryIO:
        if name not in self._files:
            raise NotInStore(what=name, where="memory")
        return io.BytesIO(self._files[name])

    def size(self, name: str) -> int | None:
        return len(self._files[name]) if name in self._files else None

    def list(self, prefix: str) -> Iterator[str]:
        return iter([name for name in self._files if name.startswith(prefix)])

    def quarantine(self, name: str, reason: str) -> None:
        if name in self._files:
            self.quarantined[name] = (self._files.pop(name), reason)


def _bytes(file: NewFile) -> bytes:
    data = file.source if isinstance(file.source, bytes) else _read(file.source)
    if digest_bytes(data) != file.expected:
        actual = str(digest_bytes(data))
        raise Corrupt(what=file.name, where="source", expected=str(file.expected), actual=actual)
    return bytes(bytearray(data))  # an object of its own, so that identity tells who won


def _read(path: Path) -> bytes:
    with os_errors_are_unusable("file", path), open_private(path) as file:
        return file.read()
