"""What the object store's client says, in this package's own errors.

Invariants: nothing of a request but its method and address gets into a message, so no secret does; an error
says whether the server answered at all. obstore tells a status and the cause of a broken connection in the
text of its errors only; where a later release words them otherwise, an error is merely less exact.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from warmrank.cache_store.backends.objects.connection import variables_of
from warmrank.cache_store.errors import NotInStore, StoreError, StoreUnavailable

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
