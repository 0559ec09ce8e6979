"""Requests to an object store: each does one thing to one object.

Invariants: an object appears with all its bytes or not at all; `create` knows whether the object that stands
there is its own, also when the server's answer was lost; a download that breaks off is gone on with where it
broke off, as long as it gets on. A forked child is refused (`connection.check_process`).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from typing import TYPE_CHECKING, NoReturn, TypeVar

from warmrank.cache_store.backends.backend import FileInfo
from warmrank.cache_store.backends.objects.connection import Connections, check_process
from warmrank.cache_store.backends.objects.errors import (
    client_errors_are_ours,
    is_refused,
    is_transport,
    status_of,
    store_error,
)
from warmrank.cache_store.errors import NotInStore, StoreUnavailable

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, ObjectMeta

_R = TypeVar("_R")

PART_BYTES = 5 << 20  # what S3 takes as the smallest part
_NUM_PARTS_AT_ONCE = 4
_STREAM_BYTES = 1 << 20
_QUICK_BYTES = 256 << 10  # a body that any line in use takes within the patience for small requests
_FIRST_PAUSE_S = 0.05
_MAX_PAUSE_S = 0.5


class ObjectClient:
    """One place of an object store, as this process uses it.

    Args:
        url: the place.
        connections: its clients.
    """

    def __init__(self, url: str, connections: Connections) -> None:
        self.url = url
        self._connections = connections

    def read(self, name: str, *, limit_bytes: int | None = None) -> bytes:
        """All bytes of an object, or its first ``limit_bytes``; raises as `get`."""
        data = bytearray()
        found = self.get(name)
        for chunk in [found] if isinstance(found, bytes) else found:
            data += chunk
            if limit_bytes is not None and len(data) >= limit_bytes:
                return bytes(data[:limit_bytes])
        return bytes(data)

    def get(self, name: str) -> bytes | Iterator[bytes]:
        """The bytes of an object, which is asked for at once: all of a small one, otherwise its chunks.

        Raises:
            NotInStore: there is none.
            StoreUnavailable: it cannot be read; also while the chunks are taken.
        """

        def ask() -> bytes | GetResult:
            result = self._connections.once.get(name)
            return bytes(result.bytes()) if result.meta["size"] <= _STREAM_BYTES else result

        with self._errors(name):
            found = self._retried(ask)
        return found if isinstance(found, bytes) else self._streamed(name, found)

    def head(self, name: str) -> FileInfo | None:
        """What can be said of an object; None where there is none. Raises `StoreUnavailable`."""
        try:
            with self._errors(name):
                return _info(self._retried(lambda: self._connections.once.head(name)))
        except NotInStore:
            return None

    def create(self, name: str, data: bytes) -> bool:
        """Create an object; False where another one stands there, which is left alone.

        An answer may be lost after the object was made, so that the next try finds it taken: by
        itself, as its bytes then tell. A conflict (409) says that another create is under way, not who wins.

        Raises:
            StoreUnavailable: whether it was created is not known.
        """
        from obstore.exceptions import AlreadyExistsError

        is_quick = len(data) <= _QUICK_BYTES
        store = self._connections.once if is_quick else self._connections.bulk_once
        lost: list[Exception] = []

        def put() -> bool:
            try:
                store.put(name, data, mode="create", use_multipart=False)
            except AlreadyExistsError as error:
                if status_of(error) == 409:
                    raise
                return bool(lost) and self._holds(name, data)
            return True

        with self._errors(name):
            return self._retried(put, failed=lost)

    def upload(self, name: str, chunks: Iterable[bytes]) -> None:
        """Make an object of any size out of ``chunks``; it replaces one that stands there.

        Where ``chunks`` raises, nothing appears and the error goes on.

        Raises:
            StoreUnavailable: it was not made.
        """
        check_process(self.url)
        with self._errors(name):
            self._connections.bulk.put(
                name, chunks, mode="overwrite", chunk_size=PART_BYTES, max_concurrency=_NUM_PARTS_AT_ONCE
            )

    def copy(self, name: str, target: str) -> bool:
        """Copy an object within the server, replacing ``target``; False where it is gone."""
        try:
            with self._errors(name):
                self._retried(lambda: self._connections.bulk_once.copy(name, target, overwrite=True))
        except NotInStore:
            return False
        return True

    def delete(self, name: str) -> None:
        """Remove an object; none is no error. Raises `StoreUnavailable`."""
        try:
            with self._errors(name):
                self._retried(lambda: self._connections.once.delete(name))
        except NotInStore:
            return

    def list(self, directory: str) -> Iterator[FileInfo]:
        """All objects below ``directory``, page by page.

        Raises:
            StoreUnavailable: the listing is not complete.
        """
        check_process(self.url)
        with self._errors(f"listing of {directory or 'all'}"):
            for page in self._connections.again.list(directory or None, chunk_size=1000):
                yield from map(_info, page)

    def _holds(self, name: str, data: bytes) -> bool:
        try:
            return self.read(name) == data
        except NotInStore as error:
            reason = "it was taken away while it was created"
            raise StoreUnavailable(what=name, where=self.url, reason=reason, remedy="try again") from error

    def _streamed(self, name: str, result: GetResult) -> Iterator[bytes]:
        from obstore.exceptions import BaseError

        position, e_tag = 0, result.meta["e_tag"]
        while True:
            start = position
            try:
                for chunk in result.stream(min_chunk_size=_STREAM_BYTES):
                    position += len(chunk)
                    yield bytes(chunk)
            except BaseError as error:
                if position == start or not is_transport(error):
                    raise store_error(error, what=name, where=self.url) from error
            else:
                return
            rest: GetOptions = {"range": {"offset": position}, "if_match": e_tag}
            with self._errors(name):
                result = self._retried(functools.partial(self._connections.once.get, name, options=rest))

    def _retried(self, call: Callable[[], _R], *, failed: MutableSequence[Exception] | None = None) -> _R:
        """Call until it succeeds or time is over; the errors of earlier calls are added to ``failed``."""
        from obstore.exceptions import AlreadyExistsError, GenericError

        check_process(self.url)
        deadline = time.monotonic() + self._connections.retry_s
        for number in itertools.count():
            try:
                return call()
            except (GenericError, AlreadyExistsError) as error:
                pause_s = min(_FIRST_PAUSE_S * 2**number, _MAX_PAUSE_S) * random.uniform(0.5, 1.0)  # noqa: S311
                can_wait = time.monotonic() + pause_s < deadline
                if is_refused(error) or not can_wait or not _is_worth_another_try(error):
                    raise
                if failed is not None and is_transport(error):
                    failed.append(error)
            time.sleep(pause_s)
        raise AssertionError("count() has no end")

    def _errors(self, name: str) -> contextlib.AbstractContextManager[None]:
        return client_errors_are_ours(name, self.url)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client of an object store holds credentials and is not pickled; send its URL")


def _is_worth_another_try(error: Exception) -> bool:
    return is_transport(error) or status_of(error) == 409


def _info(meta: ObjectMeta) -> FileInfo:
    return FileInfo(
        name=meta["path"],
        stored_bytes=meta["size"],
        content_bytes=None,
        modified_s=(modified_s := meta["last_modified"].timestamp()),
        written_s=modified_s,
    )
