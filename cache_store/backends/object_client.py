"""Requests to an object store, each of one object, and what its client's errors mean.

An object appears whole or not at all; `create` knows whether the object that stands there is its own, also
when the answer was lost; a download that breaks off goes on where it broke off. Credentials come from the
environment alone and get into no message. A silent server costs less than ``answer_s``; only silence cuts a
transfer. obstore tells statuses and causes in the text of its errors only.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar
from urllib.parse import urlsplit

from warmrank.cache_store.backends.backend import FileInfo
from warmrank.cache_store.errors import NotInStore, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, ObjectMeta
    from obstore.store import ObjectStore

_R = TypeVar("_R")
_AZURE: Final = ("az", "adl", "azure", "abfs", "abfss")
# Prefix of the environment's variables for each cloud. Not https: the client takes any host for an object
# store then, and keeps none there.
_ENVIRONMENT: Final = {"s3": "AWS", "s3a": "AWS", "gs": "GOOGLE"} | dict.fromkeys(_AZURE, "AZURE")
SCHEMES: Final = frozenset(_ENVIRONMENT)
_OPTIONS: Final = frozenset(
    {
        "endpoint",
        "region",
        "virtual_hosted_style_request",
        "request_payer",
        "server_side_encryption",
        "sse_kms_key_id",
        "sse_bucket_key_enabled",
        "account_name",
    }
)
# The client takes these from the environment only where it is given no options of its own.
_CLIENT_SWITCHES: Final = ("allow_http", "allow_invalid_certificates")
_CLIENT_TEXTS: Final = ("proxy_url", "proxy_excludes", "proxy_ca_certificate")
KNOWN_OPTIONS: Final = _OPTIONS | {*_CLIENT_SWITCHES, *_CLIENT_TEXTS}
_SWITCH_WORDS: Final = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(
    ("0", "false", "no", "off"), False
)

# Shares of `answer_s`. A request that is repeated may start until the second share is over and then be met
# with silence for the first one: together less than the whole.
_SILENCE_SHARE = 0.6
_RETRY_SHARE = 0.3
# A large body is answered when all of it is there, which on a slow line takes a while; a server that is dead
# meanwhile is found out by the pings of the deadline, which are small requests.
_BULK_SILENCE_S = 60.0
_NEVER = "365days"  # the client's limit for a whole transfer cannot be taken away
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.05, 0.5
PART_BYTES = 5 << 20  # what S3 takes as the smallest part
_NUM_PARTS_AT_ONCE = 4
_STREAM_BYTES = 1 << 20
_QUICK_BYTES = 256 << 10  # a body that any line in use takes within the patience for small requests
# The process whose threads answer its clients; they are one pool, whatever the number of clients.
_opened_in: dict[str, int] = {}

_CREDENTIALS = {
    "AWS": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "GOOGLE": "GOOGLE_SERVICE_ACCOUNT",
    "AZURE": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
# Without credentials in the environment the client asks the cloud's service for machines.
_MACHINE_SERVICES = ("/latest/api/token", "/latest/meta-data", "/computeMetadata/", "/metadata/identity/")
_PLAIN_HTTP = re.compile(r"\bhttp://\S+ .*builder error")  # the client has sent nothing
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>|\b(BareRedirect)\b")
_MESSAGE = re.compile(r"<Message>([^<]*)")
_ANSWERS = frozenset({501, 505, 507})  # that say more than that the server cannot serve now
_SERVER_FAULTS = frozenset({429, *range(500, 600)}) - _ANSWERS
_NO_BUCKET = "there is no such bucket", "check the URL, or make the bucket; a store does not make one"
_NO_ROOM = "the server has no room left", "make room there, for example with warmrank store evict"
_REGION = "the bucket is in another region", "set region in the store's options, or in the environment"
_KNOWN: Final[Mapping[str | int | None, tuple[str, str]]] = {
    "NoSuchBucket": _NO_BUCKET,
    404: _NO_BUCKET,
    "RequestTimeTooSkewed": (
        "this machine's clock and the server's are too far apart",
        "set the clock of this machine, or the server's, for example by NTP",
    ),
    "AuthorizationHeaderMalformed": _REGION,
    "BareRedirect": _REGION,
    "XMinioStorageFull": _NO_ROOM,
    "QuotaExceeded": _NO_ROOM,
    507: _NO_ROOM,
}
"""Reason and remedy of answers, by the server's code or HTTP status."""
_CAUSES = {
    "ConnectionRefused": "the connection was refused",
    "TimedOut": "no answer in time",
    "IncompleteMessage": "the connection broke off",
    "ConnectionReset": "the connection broke off",
    "body error": "the connection broke off within the answer",
}
_MAX_REASON_CHARACTERS = 300


class ObjectClient:
    """One place of an object store, as this process uses it; nothing is asked of the server yet."""

    def __init__(self, url: str, *, answer_s: float, options: Mapping[str, str]) -> None:
        try:
            import obstore  # noqa: F401 - only whether it is there
            import zstandard  # noqa: F401
        except ModuleNotFoundError as error:
            reason = f"object stores need the package {error.name}, which is not installed"
            raise _unusable(url, reason, "pip install 'warmrank[s3]'") from error
        self.url = url
        self._check_process()
        _check_url(url)
        if unknown := sorted(set(options) - KNOWN_OPTIONS):
            known = ", ".join(sorted(KNOWN_OPTIONS))
            remedy = f"known are {known}; credentials come from the environment only"
            raise _unusable(url, f"the option {unknown[0]!r} is not known", remedy)
        self._retry_s = _RETRY_SHARE * answer_s
        # Whoever creates must know of every try, so the client itself repeats only parts and listings.
        self._quick = _made(url, options, patience_s=_SILENCE_SHARE * answer_s, num_retries=0)
        self._patient = _made(url, options, patience_s=_BULK_SILENCE_S, num_retries=0)
        self._repeating = _made(url, options, patience_s=_BULK_SILENCE_S, num_retries=6)

    def read(self, name: str, *, limit_bytes: int | None = None) -> bytes:
        """All bytes of an object, or its first ``limit_bytes``; raises as `get`."""
        data = bytearray()
        for chunk in self.get(name):
            data += chunk
            if limit_bytes is not None and len(data) >= limit_bytes:
                return bytes(data[:limit_bytes])
        return bytes(data)

    def get(self, name: str) -> Iterable[bytes]:
        """The bytes of an object, which is asked for at once, a small one all in one chunk.

        Raises `NotInStore`, and `StoreUnavailable`, also while the chunks are taken.
        """

        def ask() -> bytes | GetResult:
            result = self._quick.get(name)
            return bytes(result.bytes()) if result.meta["size"] <= _STREAM_BYTES else result

        with self._errors(name):
            found = self._retried(ask)
        return [found] if isinstance(found, bytes) else self._streamed(name, found)

    def head(self, name: str) -> FileInfo | None:
        """Status of an object; None where there is none. Raises `StoreUnavailable`."""
        try:
            with self._errors(name):
                return _info(self._retried(lambda: self._quick.head(name)))
        except NotInStore:
            return None

    def create(self, name: str, data: bytes) -> bool:
        """Create an object; False where another one stands there, which is left alone.

        An answer may be lost after the object was made, so that the next try finds it taken: by
        itself, as its bytes then tell. A conflict (409) says that another create is under way, not who wins.
        """
        from obstore.exceptions import AlreadyExistsError

        store = self._quick if len(data) <= _QUICK_BYTES else self._patient
        lost: list[Exception] = []

        def put() -> bool:
            try:
                store.put(name, data, mode="create", use_multipart=False)
            except AlreadyExistsError as error:
                if _status_of(error) == 409:
                    raise
                return bool(lost) and self._holds(name, data)
            return True

        with self._errors(name):
            return self._retried(put, failed=lost)

    def upload(self, name: str, chunks: Iterable[bytes]) -> None:
        """Make an object of any size out of ``chunks``, replacing one that stands there.

        Where ``chunks`` raises, nothing appears and the error goes on.
        """
        self._check_process()
        with self._errors(name):
            self._repeating.put(
                name, chunks, mode="overwrite", chunk_size=PART_BYTES, max_concurrency=_NUM_PARTS_AT_ONCE
            )

    def copy(self, name: str, target: str) -> bool:
        """Copy an object within the server, replacing ``target``; False where it is gone."""
        try:
            with self._errors(name):
                self._retried(lambda: self._patient.copy(name, target, overwrite=True))
        except NotInStore:
            return False
        return True

    def delete(self, name: str) -> None:
        """Remove an object; none is no error. Raises `StoreUnavailable`."""
        with contextlib.suppress(NotInStore), self._errors(name):
            self._retried(lambda: self._quick.delete(name))

    def list(self, directory: str) -> Iterator[FileInfo]:
        """All objects below ``directory``, page by page."""
        self._check_process()
        with self._errors(f"listing of {directory or 'all'}"):
            for page in self._repeating.list(directory or None, chunk_size=1000):
                yield from map(_info, page)

    def _check_process(self) -> None:
        """Refuse a forked child of a process that had a client; else note the process.

        The threads that answer all clients of a process do not come along, so a new client would wait for
        ever as well as an old one.
        """
        if (pid := _opened_in.setdefault("pid", os.getpid())) != os.getpid():
            reason = f"this process was forked from process {pid} after that had opened an object store"
            remedy = "start processes by spawn (multiprocessing.set_start_method('spawn')), or fork before"
            raise _unusable(self.url, reason, remedy)

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
                if position == start or not _is_transport(error):
                    raise _store_error(error, what=name, where=self.url) from error
            else:
                return
            rest: GetOptions = {"range": {"offset": position}, "if_match": e_tag}
            with self._errors(name):
                result = self._retried(partial(self._quick.get, name, options=rest))

    def _retried(self, call: Callable[[], _R], *, failed: MutableSequence[Exception] | None = None) -> _R:
        """Call until it succeeds or time is over; the errors of earlier calls are added to ``failed``."""
        from obstore.exceptions import AlreadyExistsError, GenericError

        self._check_process()
        deadline = time.monotonic() + self._retry_s
        for number in itertools.count():
            try:
                return call()
            except (GenericError, AlreadyExistsError) as error:
                pause_s = min(_FIRST_PAUSE_S * 2**number, _MAX_PAUSE_S) * random.uniform(0.5, 1.0)  # noqa: S311
                can_wait = time.monotonic() + pause_s < deadline
                # Where nobody listens, to ask again at once is of no use.
                is_refused = "ConnectionRefused" in str(error)
                if is_refused or not can_wait or not (_is_transport(error) or _status_of(error) == 409):
                    raise
                if failed is not None and _is_transport(error):
                    failed.append(error)
            time.sleep(pause_s)
        raise AssertionError("count() has no end")

    @contextlib.contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        """Turn errors of the client into those of this package."""
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            raise _store_error(error, what=name, where=self.url) from error

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client of an object store holds credentials and is not pickled; send its URL")


def is_usable(option: str, value: str) -> bool:
    """Return True if an option may have that value: a switch is on or off, and no third thing."""
    return option not in _CLIENT_SWITCHES or not value or value.lower() in _SWITCH_WORDS


def _made(url: str, options: Mapping[str, str], *, patience_s: float, num_retries: int) -> ObjectStore:
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    patience = timedelta(seconds=patience_s)
    first_pause, max_pause = timedelta(seconds=_FIRST_PAUSE_S), timedelta(seconds=_MAX_PAUSE_S)
    settings: dict[str, Any] = {
        "config": {name: value for name, value in options.items() if name in _OPTIONS},
        "client_options": {
            **_client_options(url, options),
            "connect_timeout": patience,
            "read_timeout": patience,
            "timeout": _NEVER,
        },
        "retry_config": {
            "max_retries": num_retries,
            "retry_timeout": patience,
            "backoff": {"init_backoff": first_pause, "max_backoff": max_pause, "base": 2},
        },
    }
    try:
        return from_url(url, **settings)
    except (BaseError, ValueError) as error:
        reason = f"the client refuses its settings: {_first_line(error)}"
        raise _unusable(url, reason, "check the URL and the store's options") from error


def _client_options(url: str, options: Mapping[str, str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in (*_CLIENT_SWITCHES, *_CLIENT_TEXTS):
        variable = f"{_variables_of(url)}_{name.upper()}"
        value = options.get(name, os.environ.get(variable, ""))
        if not is_usable(name, value):
            called = f"the option {name}" if name in options else f"the environment's {variable}"
            raise _unusable(url, f"{called} is {value!r}", "set it to true or to false")
        if value:
            found[name] = _SWITCH_WORDS[value.lower()] if name in _CLIENT_SWITCHES else value
    return found


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        remedy = "name a directory by its path, or an object store as s3://, gs:// or az://"
        raise _unusable(url, f"the scheme {parts.scheme!r} is none of an object store", remedy)
    if parts.query or parts.fragment or ":" in parts.netloc:
        where = f"{parts.scheme}://{parts.hostname}{parts.path}"
        remedy = "name only the place; credentials come from the environment, a server from option endpoint"
        raise _unusable(where, "the URL has a password, a port, a query or a fragment", remedy)


def _variables_of(url: str) -> str:
    return _ENVIRONMENT.get(urlsplit(url).scheme, "AWS")


def _unusable(where: str, reason: str, remedy: str) -> StoreUnavailable:
    return StoreUnavailable(what="store", where=where, reason=reason, remedy=remedy)


def _store_error(error: Exception, *, what: str, where: str) -> StoreError:
    """The error of this package for one of the client: `NotInStore` for an absent object, or unavailable.

    By the server's code and status, because the client has one class for all that fails of a listing.
    """
    text, status, code, cloud = str(error), _status_of(error), _code_of(error), _variables_of(where)
    if isinstance(error, FileNotFoundError) and code != "NoSuchBucket":
        return NotInStore(what=what, where=where)
    credentials = (
        f"set the credentials in the environment of this process, such as {_CREDENTIALS[cloud]}, with the "
        "rights to get, put, delete and list below the store's URL"
    )
    said = " ".join(map(str, filter(None, (status, code))))
    remedy = "check that the object store is up and can be reached from here"
    if any(path in text for path in _MACHINE_SERVICES):
        reason, remedy = f"no credentials were found ({said or _cause_of(error)})", credentials
    elif known := _KNOWN.get(code) or _KNOWN.get(status):
        reason, remedy = f"{known[0]} ({said})", known[1]
    elif status in (401, 403):
        reason, remedy = f"access was denied ({said})", credentials
    elif status is not None:
        message = _MESSAGE.search(text)
        reason = f"the server says {said}: {message[1] if message else _first_line(error)}"
    elif _PLAIN_HTTP.search(_first_line(error)):
        reason = "its endpoint begins with http://, which is not encrypted and has to be allowed"
        remedy = f'set {cloud}_ALLOW_HTTP=true, or allow_http: "true" in the store\'s options'
    else:
        reason = _cause_of(error)
    transport = _is_transport(error)
    return StoreUnavailable(what=what, where=where, reason=reason, remedy=remedy, transport=transport)


def _cause_of(error: BaseException) -> str:
    """The reason for which there was no answer."""
    return next((cause for sign, cause in _CAUSES.items() if sign in str(error)), _first_line(error))


def _code_of(error: BaseException) -> str | None:
    """The word with which a server says what is wrong; None where it says none."""
    match = _CODE.search(str(error))
    return match[1] or match[2] if match else None


def _status_of(error: BaseException) -> int | None:
    """The HTTP status that an error of the client tells of; None where the server said none."""
    match = _STATUS.search(str(error))
    return int(match[1]) if match else None


def _is_transport(error: BaseException) -> bool:
    """Return True if the server gave no answer, or one that says no more than that it cannot serve now."""
    from obstore.exceptions import GenericError

    status = _status_of(error)
    is_silence = status is None and not _code_of(error) and not _PLAIN_HTTP.search(_first_line(error))
    return isinstance(error, GenericError) and (is_silence or status in _SERVER_FAULTS)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:_MAX_REASON_CHARACTERS]


def _info(meta: ObjectMeta) -> FileInfo:
    modified_s = meta["last_modified"].timestamp()
    return FileInfo(
        name=meta["path"],
        stored_bytes=meta["size"],
        content_bytes=None,
        modified_s=modified_s,
        written_s=modified_s,
    )
