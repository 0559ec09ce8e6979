"""Blobs in Ray's object store: put there by the node that read them, opened by others as those of a store.

Invariants: what is shared is verified by whoever opens it, exactly as what a store gives; whatever cannot be
had any more is left to the store, and nobody waits for it twice. Knows no Ray: `put` and `get` are handed in.
"""

from __future__ import annotations

import functools
import io
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.cache_dir.private_files import open_private
from warmrank.cache_store.errors import NotInStore, StoreUnavailable, UnusableCache

logger = logging.getLogger(__name__)

PIECE_BYTES = 8 << 20
"""5 to 20 MB were measured as best; the less, the more of them a small object store holds."""
_PIECES_KEPT = 8  # small blobs lie together in a piece, and a fetch opens them one after the other


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Blobs, one after the other, cut into pieces.

    Attributes:
        pieces: what `put` gave for each; all but the last have `PIECE_BYTES`.
        places: by the blob's name, where in all of them it begins, and its size in bytes.
    """

    pieces: tuple[Any, ...]
    places: Mapping[str, tuple[int, int]]


def share(copies: Iterable[NewFile], put: Callable[[bytes], Any], *, room_bytes: int) -> Share:
    """Put private copies of blobs where others can get them, large ones first, as a fetch asks for them.

    Args:
        copies: the blobs; those that cannot be read are left out.
        put: keeps bytes for others.
        room_bytes: blobs beyond that many bytes in all are left out.
    """
    pieces: list[Any] = []
    places: dict[str, tuple[int, int]] = {}
    buffer, total = bytearray(), 0
    for copy in sorted(copies, key=lambda copy: -copy.expected.size_bytes):
        if copy.name in places or total + copy.expected.size_bytes > room_bytes:
            continue
        begin, left = total, copy.expected.size_bytes
        try:
            assert isinstance(copy.source, Path)  # noqa: S101 - a fetch leaves files
            with open_private(copy.source) as file:
                while left and (data := file.read(min(left, PIECE_BYTES - len(buffer)))):
                    buffer += data
                    left, total = left - len(data), total + len(data)
                    if len(buffer) == PIECE_BYTES:
                        pieces.append(put(bytes(buffer)))
                        buffer.clear()
        except (OSError, UnusableCache) as error:
            logger.warning("Not shared: %s", error)
            continue
        places[copy.name] = begin, copy.expected.size_bytes
    if buffer:
        pieces.append(put(bytes(buffer)))
    return Share(pieces=tuple(pieces), places=places)


class SharedBlobs:
    """Opens the blobs of a share; a `BlobReader`, for any number of threads.

    Args:
        shared: the share.
        get: gives back what was put; raises `StoreUnavailable` where that is gone.
    """

    def __init__(self, shared: Share, get: Callable[[Any], bytes]) -> None:
        self._share = shared
        self._get = get
        self._is_gone = threading.Event()
        self._piece = functools.lru_cache(_PIECES_KEPT)(self._get_piece)

    def open(self, name: str) -> BinaryIO:
        """See `BlobReader.open`."""
        if name not in self._share.places or self._is_gone.is_set():
            raise NotInStore(what=name, where="another node")
        return io.BufferedReader(_Stream(self._piece, *self._share.places[name]))

    def _get_piece(self, number: int) -> bytes:
        if self._is_gone.is_set():
            raise StoreUnavailable(what="blob", where="another node", reason="that node is gone")
        if number >= len(self._share.pieces):
            return b""  # a file was shorter than it should be, so this is no blob
        try:
            return self._get(self._share.pieces[number])
        except StoreUnavailable:
            self._is_gone.set()
            raise


class _Stream(io.RawIOBase):
    """The bytes of one blob."""

    def __init__(self, piece: Callable[[int], bytes], offset: int, num_bytes: int) -> None:
        super().__init__()
        self._piece = piece
        self._offset = offset
        self._end = offset + num_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        number, start = divmod(self._offset, PIECE_BYTES)
        size = min(len(target), self._end - self._offset)
        data = self._piece(number)[start : start + size] if size else b""
        target[: len(data)] = data
        self._offset += len(data)
        return len(data)
