"""Requests to an object store, each of one object, and what its client's errors mean.

An object appears whole or not at all; `create` knows whether the object that stands there is its own, also
when the answer was lost; a download that breaks off goes on where it broke off. No secret gets into a
message. obstore tells statuses and causes in the text of its errors only; where a later release words them
otherwise, errors are less exact.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from typing import TYPE_CHECKING, NoReturn, TypeVar

from warmrank.cache_store.backends.backend import FileInfo
from warmrank.cache_store.backends.objects.connection import Connections, check_process, variables_of
from warmrank.cache_store.errors import NotInStore, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, ObjectMeta

REMEDY_AWAY = "check that the object store is up and can be reached from here"
_REMEDY_BUCKET = "check the URL, or make the bucket; a store does not make one"
_CREDENTIALS = {
    "AWS": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "GOOGLE": "GOOGLE_SERVICE_ACCOUNT",
    "AZURE": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
# Without credentials in the environment the client asks the cloud's service for machines.
_MACHINE_SERVICES = ("/latest/api/token", "/latest/meta-data", "/computeMetadata/", "/metadata/identity/")
_PLAIN_HTTP = re.compile(r"\bhttp://\S+ .*builder error")  # the client has sent nothing
_STATUS = re.compile(r"status code: (\d{3})")
_SERVER_FAULTS = frozenset({429, *range(500, 600)})
_CAUSES = {
    "ConnectionRefused": "the connection was refused",
    "TimedOut": "no answer in time",
    "IncompleteMessage": "the connection broke off",
    "ConnectionReset": "the connection broke off",
    "body error": "the connection broke off within the answer",
}
_MAX_REASON_CHARACTERS = 300


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an error of the client tells of; None where the server said none."""
    match = _STATUS.search(str(error))
    return int(match[1]) if match else None


def is_refused(error: BaseException) -> bool:
    """Whether nobody listens there, so that to ask again at once is of no use."""
    return "ConnectionRefused" in str(error)


def is_transport(error: BaseException) -> bool:
    """Whether the server gave no answer, or one that says no more than that it cannot serve now."""
    from obstore.exceptions import GenericError

    status = status_of(error)
    is_silence = status is None and not _is_plain_http(error)
    return isinstance(error, GenericError) and (is_silence or status in _SERVER_FAULTS)


def store_error(error: Exception, *, what: str, where: str) -> StoreError:
    """The error of this package that says what ``error`` of the client says.

    Returns:
        `NotInStore` for an absent object, otherwise `StoreUnavailable`.
    """
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    text = str(error)
    if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in text:
        return NotInStore(what=what, where=where)
    reason, remedy = _reason(text), REMEDY_AWAY
    if "NoSuchBucket" in text or (status_of(error) == 404 and not isinstance(error, FileNotFoundError)):
        reason, remedy = "there is no such bucket", _REMEDY_BUCKET
    elif isinstance(error, PermissionDeniedError | UnauthenticatedError):
        reason, remedy = f"access was denied ({status_of(error)})", _credentials_remedy(where)
    elif any(path in text for path in _MACHINE_SERVICES):
        reason, remedy = f"no credentials were found ({reason})", _credentials_remedy(where)
    elif _is_plain_http(error):
        reason = "its endpoint begins with http://, which is not encrypted and has to be allowed"
        remedy = f'set {variables_of(where)}_ALLOW_HTTP=true, or allow_http: "true" in the store\'s options'
    return StoreUnavailable(
        what=what, where=where, reason=reason, remedy=remedy, transport=is_transport(error)
    )


@contextlib.contextmanager
def client_errors_are_ours(what: str, where: str) -> Iterator[None]:
    """Turn errors of the client into those of this package.

    Raises:
        NotInStore: the object is not there.
        StoreUnavailable: anything else.
    """
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, FileNotFoundError) as error:
        raise store_error(error, what=what, where=where) from error


def _is_plain_http(error: BaseException) -> bool:
    return _PLAIN_HTTP.search(_first_line(str(error))) is not None


def _credentials_remedy(url: str) -> str:
    variables = _CREDENTIALS[variables_of(url)]
    return (
        f"set the credentials in the environment of this process, such as {variables}, with the rights to"
        " get, put, delete and list below the store's URL"
    )


def _reason(text: str) -> str:
    status = _STATUS.search(text)
    if status:
        return f"the server says {status[1]}: {_first_line(text)}"
    for sign, meaning in _CAUSES.items():
        if sign in text:
            return meaning
    return _first_line(text)


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:_MAX_REASON_CHARACTERS]


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
