"""The port in its simplest form: a reference that the contract suite holds against the directory."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

from warmrank.cache_store.backends.backend import FileInfo, NewFile, check_name
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Corrupt, NotInStore


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
