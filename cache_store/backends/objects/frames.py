r"""How a blob is kept in an object store: one line of text, then its bytes as they are or compressed.

Layout::

    warmrank-blob 1 <raw|zstd> <size of the content in bytes>\n
    <the content, or one zstd frame of it>

Files whose names lie under ``cas/`` are kept so; others (documents) as they are, unless they happen to begin
with those words. So the stored form says itself what it is, also under another name, such as in the trash.

Invariants: a reader takes no more content than the line announces, whatever the frame expands to, and never
holds more than a few chunks of it; a content of another length than announced is `Corrupt`.
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from warmrank.cache_store.digests import CHUNK_BYTES
from warmrank.cache_store.errors import Corrupt

if TYPE_CHECKING:
    import zstandard
    from _typeshed import WriteableBuffer

STORED_FORM: Final = "warmrank-blob 1"
_MAGIC = b"warmrank-blob "
_HEADER = re.compile(rb"warmrank-blob 1 (raw|zstd) (0|[1-9][0-9]{0,17})\n")
_MAX_HEADER_BYTES = 64
_WORTH = 0.9  # compressed if the first chunk shrinks to less than this
_MIN_BYTES = 128  # below, the frame's own fields eat what is gained
_LEVEL = 1  # 4 times smaller on compiler output at 460 MB/s
_MAX_WINDOW_BYTES = 8 << 20  # what a frame may make a reader allocate; level 1 asks for 512 KiB

_of_thread = threading.local()


def is_framed(name: str, start: bytes) -> bool:
    """Whether a file of that name, which starts with those bytes, is kept with a line before it."""
    return name.startswith("cas/") or start.startswith(_MAGIC)


def encode(content: bytes) -> bytes:
    """Stored form of a small content."""
    if len(content) >= _MIN_BYTES:
        packed = _compressor().compress(content)
        if len(packed) < _WORTH * len(content):
            return _header("zstd", len(content)) + packed
    return _header("raw", len(content)) + content


def encode_stream(chunks: Iterable[bytes], size_bytes: int) -> Iterator[bytes]:
    """Stored form of a content of ``size_bytes``; whether it shrinks is tried on the first chunk."""
    chunks = iter(chunks)
    first = next(chunks, b"")
    if len(_compressor().compress(first)) >= _WORTH * len(first):
        yield _header("raw", size_bytes)
        yield first
        yield from chunks
        return
    yield _header("zstd", size_bytes)
    compressing = _compressor(own=True).compressobj(size=size_bytes)
    for chunk in chain([first], chunks):
        if packed := compressing.compress(chunk):
            yield packed
    yield compressing.flush()


def decode(chunks: Iterable[bytes], *, name: str) -> Iterator[bytes]:
    """Content of a stored form; one without the line is a document, and given as it is; raises `Corrupt`."""
    chunks = iter(chunks)
    start = b""
    while len(start) < _MAX_HEADER_BYTES and (chunk := next(chunks, b"")):
        start += chunk
    if not start.startswith(_MAGIC):
        yield start
        yield from chunks
        return
    header = _HEADER.match(start)
    if header is None:
        actual = repr(start[:_MAX_HEADER_BYTES])
        raise Corrupt(what="blob", where=name, expected=f"'{STORED_FORM} <raw|zstd> <size>'", actual=actual)
    body = chain([start[header.end() :]], chunks)
    announced_bytes = int(header[2])
    content = body if header[1] == b"raw" else _decompressed(body, announced_bytes, name)
    yield from _exactly(content, announced_bytes, name)


class ChunkFile(io.RawIOBase):
    """A file for reading what an iterator gives; closing it closes the iterator."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill ``buffer`` with what there is next; 0 at the end."""
        if not self._rest:
            self._rest = memoryview(next((chunk for chunk in self._chunks if chunk), b""))
        target = memoryview(buffer).cast("B")
        size = min(len(target), len(self._rest))
        target[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def readall(self) -> bytes:
        """All that is left; the default would take it in small pieces."""
        rest, self._rest = self._rest, memoryview(b"")
        return b"".join([rest, *self._chunks])

    def close(self) -> None:
        """Let go of the iterator, and so of the connection behind it."""
        self._chunks = iter(())
        self._rest = memoryview(b"")
        super().close()


def _header(form: str, size_bytes: int) -> bytes:
    return f"{STORED_FORM} {form} {size_bytes}\n".encode()


def _compressor(*, own: bool = False) -> zstandard.ZstdCompressor:
    """This thread's compressor, or an own one for a stream."""
    import zstandard

    # To make one costs as much as to compress a small blob; no two threads may use one at once.
    if own or not hasattr(_of_thread, "compressor"):
        made = zstandard.ZstdCompressor(level=_LEVEL)
        if own:
            return made
        _of_thread.compressor = made
    compressor: zstandard.ZstdCompressor = _of_thread.compressor
    return compressor


def _decompressed(body: Iterable[bytes], announced_bytes: int, name: str) -> Iterator[bytes]:
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    chunk_bytes = min(CHUNK_BYTES, announced_bytes + 1)
    try:
        with decompressor.stream_reader(cast("BinaryIO", ChunkFile(body))) as reader:
            while chunk := reader.read(chunk_bytes):
                yield chunk
    except zstandard.ZstdError as error:
        raise Corrupt(what="blob", where=name, expected="a zstd frame", actual=str(error)) from error


def _exactly(content: Iterable[bytes], announced_bytes: int, name: str) -> Iterator[bytes]:
    size_bytes = 0
    for chunk in content:
        size_bytes += len(chunk)
        if size_bytes > announced_bytes:
            break
        yield chunk
    if size_bytes != announced_bytes:
        actual = "more" if size_bytes > announced_bytes else f"{size_bytes} bytes"
        raise Corrupt(what="blob", where=name, expected=f"{announced_bytes} bytes", actual=actual)
