r"""A store in an object store: S3 and what speaks like it, Google Cloud Storage, Azure.

Layout of its FORMAT: ``{"blobs":"warmrank-blob 1","digest":"sha256","format":1}``. A directory's has no
``blobs``, so neither takes the other for one of its own, as through a mount of the bucket. Files under
``cas/`` are kept as a line of text and their content, others only if they happen to begin with those words::

    warmrank-blob 1 <raw|zstd> <size of the content in bytes>\n
    <the content, or one zstd frame of it>

So the stored form says itself what it is, also under another name. A reader takes no more content than the
line announces, whatever the frame expands to, and never holds more than a few chunks of it. A document is
created under the server's own condition that nothing stands there (`If-None-Match: *`), which a writer has
seen it honour. Durable is what the server has acknowledged.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import logging
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import BinaryIO, Final, Literal, NoReturn, cast

from warmrank.cache_store.backends.backend import (
    STORE_FORMAT,
    ChunkFile,
    FileInfo,
    NewFile,
    check_format,
    check_name,
    name_fault,
    not_empty,
)
from warmrank.cache_store.backends.deadline import ANSWER_S
from warmrank.cache_store.backends.object_client import ObjectClient
from warmrank.cache_store.canonical import canonical_json
from warmrank.cache_store.digests import CHUNK_BYTES, Digest
from warmrank.cache_store.errors import Corrupt, NoStoreYet, NotInStore, StoreUnavailable, UnusableCache
from warmrank.cache_store.layout import BLOBS, FORMAT_FILE, PROBE, TMP, split_trash_name
from warmrank.cache_store.parallel import each
from warmrank.cache_store.parsing import Strict
from warmrank.cache_store.steps import Step, reached

logger = logging.getLogger(__name__)
WHOLE_BYTES = 4 << 20
"""A blob up to this size is one request, made in memory; a larger one streams in parts."""
_UNASKED_BYTES = 64 << 10  # so little is sent without asking first whether it is there: that costs as much
_NUM_AT_ONCE = 16
_NUM_LARGE_AT_ONCE = 2
_BUFFER_BYTES = 64 << 10
STORED_FORM: Final = "warmrank-blob 1"
_MAGIC = b"warmrank-blob "
_HEADER = re.compile(rb"warmrank-blob 1 (raw|zstd) (0|[1-9][0-9]{0,17})\n")
_MAX_HEADER_BYTES = 64
_WORTH = 0.9  # compressed if the first chunk shrinks to less than this
_MIN_BYTES = 128  # below, the frame's own fields eat what is gained
_LEVEL = 1  # 4 times smaller on compiler output at 460 MB/s
_MAX_WINDOW_BYTES = 8 << 20  # what a frame may make a reader allocate; level 1 asks for 512 KiB

_MAX_FORMAT_BYTES = 4096
_PROBE_DATA = b"The server refused to replace this.\n"
_OTHER_DATA = b"The server replaced what stood here, though it was asked not to.\n"
_NUM_LOOKED_AT = 100


class _ObjectFormat(Strict):
    format: Literal[1]
    digest: Literal["sha256"]
    blobs: Literal["warmrank-blob 1"]


_FORMAT_DATA = canonical_json({"format": STORE_FORMAT, "digest": "sha256", "blobs": STORED_FORM})
_FORMAT_REMEDY = (
    f"an object store's line is {_FORMAT_DATA.decode()}: restore it, or use another prefix;"
    " without 'blobs' it is the store of a directory, and opened by the directory's path"
)


class ObjectBackend:
    """`BlobBackend` below the URL of an object store; credentials come from the environment alone.

    Large blobs (over `WHOLE_BYTES`) go up in parts, without a condition: of two that race, the later replaces
    the earlier by the same content, because a blob's name is its digest, and both say that they created it.
    A blob that is moved is copied by the server, which S3 does up to 5 GiB. Where this process will write,
    the server is probed, once, for create-only puts. A silent server costs a request less than ``answer_s``.
    """

    def __init__(
        self,
        url: str,
        *,
        create: bool = True,
        writable: bool = True,
        answer_s: float = ANSWER_S,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._client = ObjectClient(self.url, answer_s=answer_s, options=options or {})
        self._check_format(create=create and writable)
        if writable:
            self._check_create_only()

    def put_new(self, files: Sequence[NewFile]) -> tuple[str, ...]:
        """See `BlobBackend.put_new`; a small source may be read although its name exists."""
        wanted = list({file.name: file for file in files}.values())
        for file in wanted:
            check_name(file.name, where=self.url)
        absent = each(self._is_absent, wanted, num_threads=_NUM_AT_ONCE)
        ready = [file for file, is_absent in zip(wanted, absent, strict=True) if is_absent]
        reached(Step.PUT_STAGED)
        small = [file for file in ready if not _is_large(file)]
        large = [file for file in ready if _is_large(file)]
        created = each(self._create, small, num_threads=_NUM_AT_ONCE)
        each(self._upload, large, num_threads=_NUM_LARGE_AT_ONCE)
        reached(Step.PUT_DURABLE)
        new = [file for file, is_new in zip(small, created, strict=True) if is_new]
        return tuple(file.name for file in (*new, *large))

    def open(self, name: str) -> BinaryIO:
        """See `BlobBackend.open`. What is read may turn out `Corrupt` on the way."""
        check_name(name, where=self.url)
        return io.BufferedReader(ChunkFile(decode(self._client.get(name), name=name)), _BUFFER_BYTES)

    def stat(self, names: Iterable[str]) -> dict[str, FileInfo]:
        """See `BlobBackend.stat`."""
        names = list(names)
        for name in names:
            check_name(name, where=self.url)
        found = each(self._client.head, names, num_threads=_NUM_AT_ONCE)
        return {info.name: info for info in found if info is not None}

    def list(self, prefix: str) -> Iterator[FileInfo]:
        """See `BlobBackend.list`."""
        # The client lists by whole parts of a path.
        for info in self._client.list(prefix.rpartition("/")[0]):
            if info.name.startswith(prefix) and (not info.name.startswith(TMP) or prefix.startswith(TMP)):
                if name_fault(info.name):
                    logger.warning("%r in %s is no name of a store; it is left alone", info.name, self.url)
                else:
                    yield info

    def move(self, name: str, target: str | None) -> bool:
        """See `BlobBackend.move`.

        A copy, then a removal: killed between the two, the file stands under both names. Of processes that
        move one file at the same time to different names, each may say that it moved it.
        """
        check_name(name, where=self.url)
        info = self._client.head(name)
        if info is None:
            return False
        if target is not None:
            check_name(target, where=self.url)
            if not self._copy(info, target):
                return False
        self._client.delete(name)
        return True

    def _check_format(self, *, create: bool) -> None:
        """Make sure that a store of this format is there; where nothing is, make one if ``create``."""
        try:
            data = self._client.read(FORMAT_FILE, limit_bytes=_MAX_FORMAT_BYTES)
        except NotInStore:
            if not create:
                raise NoStoreYet(what="store", where=self.url) from None
            first = itertools.islice(self._client.list(""), _NUM_LOOKED_AT)
            if fault := not_empty((info.name.partition("/")[0] for info in first), where=self.url):
                raise fault.but(remedy="name a prefix of its own, such as s3://bucket/warmrank") from None
            self._client.create(FORMAT_FILE, _FORMAT_DATA)
            data = self._client.read(FORMAT_FILE, limit_bytes=_MAX_FORMAT_BYTES)
        check_format(_ObjectFormat, data, where=f"{self.url}/{FORMAT_FILE}", remedy=_FORMAT_REMEDY)

    def _check_create_only(self) -> None:
        """Make sure that the server refuses to create what exists; some ignore the condition in silence.

        The probe stays, so that the next writer needs one request. The second create has other bytes: where
        its answer is lost, equal ones would not tell whether they are its own.
        """
        if self._client.create(PROBE, _PROBE_DATA) and self._client.create(PROBE, _OTHER_DATA):
            raise StoreUnavailable(
                what="store",
                where=self.url,
                reason="the server ignores 'If-None-Match: *', so that publishers would overwrite each other",
                remedy="upgrade the server to one that has conditional writes, or use it with mode 'ro'",
            )

    def _copy(self, info: FileInfo, target: str) -> bool:
        is_blob = _is_blob(info.name) or _is_blob(target)
        if is_blob or info.stored_bytes > WHOLE_BYTES:
            return self._client.head(target) is None and self._client.copy(info.name, target)
        return self._client.create(target, self._client.read(info.name))

    def _is_absent(self, file: NewFile) -> bool:
        """Verify the source, before any name appears, of a file whose name is not taken, as far as known."""
        if file.expected.size_bytes > _UNASKED_BYTES and self._client.head(file.name) is not None:
            return False
        try:
            for _ in _verified(file):
                pass
        except (Corrupt, UnusableCache):
            if self._client.head(file.name) is not None:
                return False  # then what the source holds does not matter
            raise
        return True

    def _create(self, file: NewFile) -> bool:
        content = b"".join(_verified(file))
        stored = encode(content) if is_framed(file.name, content) else content
        return self._client.create(file.name, stored)

    def _upload(self, file: NewFile) -> None:
        self._client.upload(file.name, encode_stream(_verified(file), file.expected.size_bytes))

    def __reduce__(self) -> NoReturn:
        raise TypeError("an object store's backend holds credentials and is not pickled; send its URL")


def _is_large(file: NewFile) -> bool:
    # A document is created under a condition, so in one request whatever its size; it came in memory.
    return file.expected.size_bytes > WHOLE_BYTES and file.name.startswith(BLOBS)


def _verified(file: NewFile) -> Iterator[bytes]:
    """The chunks of a source; raises `Corrupt` at the end unless they were what was expected."""
    hasher = hashlib.sha256()
    size_bytes = 0
    with file.open() as source:
        while chunk := source.read(CHUNK_BYTES):
            hasher.update(chunk)
            size_bytes += len(chunk)
            if size_bytes > file.expected.size_bytes:
                raise file.fault(f"more than {file.expected.size_bytes} bytes")
            yield chunk
    digest = Digest(sha256=hasher.hexdigest(), size_bytes=size_bytes)
    if digest != file.expected:
        raise file.fault(str(digest))


def _is_blob(name: str) -> bool:
    trashed = split_trash_name(name)
    return (trashed[0] if trashed else name).startswith(BLOBS)


def is_framed(name: str, start: bytes) -> bool:
    """Return True if a file of that name, which starts with those bytes, is kept with a line before it."""
    return name.startswith("cas/") or start.startswith(_MAGIC)


def encode(content: bytes) -> bytes:
    """Stored form of a small content."""
    return b"".join(encode_stream([content], len(content)))


def encode_stream(chunks: Iterable[bytes], size_bytes: int) -> Iterator[bytes]:
    """Stored form of a content of ``size_bytes``; whether it shrinks is tried on the first chunk."""
    chunks = iter(chunks)
    first = next(chunks, b"")
    packed = _compress(first) if len(first) >= _MIN_BYTES else first
    if len(packed) >= _WORTH * len(first):
        yield _header("raw", size_bytes) + first
        yield from chunks
        return
    yield _header("zstd", size_bytes)
    if len(first) == size_bytes:
        yield packed
        yield from chunks  # there is none; the source says so
        return
    import zstandard

    compressing = zstandard.ZstdCompressor(level=_LEVEL).compressobj(size=size_bytes)
    for chunk in chain([first], chunks):
        if more := compressing.compress(chunk):
            yield more
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


def _header(form: str, size_bytes: int) -> bytes:
    return f"{STORED_FORM} {form} {size_bytes}\n".encode()


_of_thread = threading.local()  # a compressor: to make one costs as much as to compress a small blob


def _compress(data: bytes) -> bytes:
    import zstandard

    if not hasattr(_of_thread, "compressor"):
        _of_thread.compressor = zstandard.ZstdCompressor(level=_LEVEL)
    packed: bytes = _of_thread.compressor.compress(data)
    return packed


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
