"""What the object store's client says, in this package's own errors.

Invariants: nothing of a request but its method and address gets into a message, so no secret does; an error
says whether the server answered at all. obstore tells a status and the cause of a broken connection in the
text of its errors only; where a later release words them otherwise, an error is merely less exact.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from cache_store.errors import NotInStore, StoreError, StoreUnavailable

REMEDY_AWAY = "check that the object store is up and can be reached from here"
_REMEDY_BUCKET = "check the URL, or make the bucket; a store does not make one"
_REMEDY_CREDENTIALS = (
    "set the credentials in the environment of this process (for s3:// AWS_ACCESS_KEY_ID and"
    " AWS_SECRET_ACCESS_KEY), with the rights to get, put, delete and list below the store's URL"
)
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
    return isinstance(error, GenericError) and (status is None or status in _SERVER_FAULTS)


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
        reason, remedy = f"access was denied ({status_of(error)})", _REMEDY_CREDENTIALS
    elif "/latest/api/token" in text or "/latest/meta-data" in text:
        # Without credentials in the environment the client asks the cloud's service for machines.
        reason, remedy = f"no credentials were found ({reason})", _REMEDY_CREDENTIALS
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
