"""Connections to an object store: what is asked of the client, and how long it may take.

Invariants: credentials come from the environment of this process alone, and stand in no message; a server
that is silent costs less than ``answer_s``; only silence cuts a transfer, never its length.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from warmrank.cache_store.errors import StoreUnavailable

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_AZURE: Final = ("az", "adl", "azure", "abfs", "abfss")
# Not https: the client takes any host for an object store then, and keeps none there.
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
# A part of a large upload is answered when all of it is there, which on a slow line takes a while; a server
# that is dead meanwhile is found out by the pings of the circuit, which are small requests.
_BULK_SILENCE_S = 60.0
_NEVER = "365days"  # the client's limit for a whole transfer cannot be taken away
# The process whose threads answer its clients; they are one pool, whatever the number of clients.
_opened_in: dict[str, int] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """Clients of one place that differ in patience; all are cheap until used.

    Attributes:
        once: small requests, tried once: whoever creates must know of every try.
        again: small requests that may be repeated.
        bulk_once: bodies that may take a while, tried once.
        bulk: parts of large uploads, repeated.
        retry_s: how long a request may be repeated.
    """

    once: ObjectStore
    again: ObjectStore
    bulk_once: ObjectStore
    bulk: ObjectStore
    retry_s: float


def variables_of(url: str) -> str:
    """What the environment's variables for the cloud of ``url`` begin with."""
    return _ENVIRONMENT.get(urlsplit(url).scheme, "AWS")


def connect(url: str, *, answer_s: float, options: Mapping[str, str]) -> Connections:
    """Make the clients for ``url``; nothing is asked of the server yet.

    Raises:
        StoreUnavailable: the extra is not installed, the URL or an option cannot be used, or this is a
            forked child of a process that made some.
    """
    _check_installed(url)
    check_process(url)
    scheme = _checked_scheme(url)
    _check_options(url, options)
    _check_switches(url, scheme, options)
    retry_s = _RETRY_SHARE * answer_s
    silence_s = _SILENCE_SHARE * answer_s

    def client(patience_s: float, *, num_retries: int) -> ObjectStore:
        return _client(
            url,
            config={name: value for name, value in options.items() if name in _OPTIONS},
            client_options={**_client_options(scheme, options), **_time_outs(silence_s, patience_s)},
            retry_config={
                "max_retries": num_retries,
                "retry_timeout": timedelta(seconds=retry_s if patience_s == silence_s else patience_s),
                "backoff": {
                    "init_backoff": timedelta(milliseconds=50),
                    "max_backoff": timedelta(milliseconds=500),
                    "base": 2,
                },
            },
        )

    return Connections(
        once=client(silence_s, num_retries=0),
        again=client(silence_s, num_retries=6),
        bulk_once=client(_BULK_SILENCE_S, num_retries=0),
        bulk=client(_BULK_SILENCE_S, num_retries=6),
        retry_s=retry_s,
    )


def check_process(url: str) -> None:
    """Refuse a forked child of a process that had a client; notes the process otherwise.

    The threads that answer all clients of a process do not come along, so a new client would wait for ever
    as well as an old one.

    Raises:
        StoreUnavailable: this process was forked after a client was made.
    """
    if (pid := _opened_in.setdefault("pid", os.getpid())) != os.getpid():
        raise StoreUnavailable(
            what="store",
            where=url,
            reason=f"this process was forked from process {pid} after that had opened an object store",
            remedy="start processes by spawn (multiprocessing.set_start_method('spawn')), or fork before",
        )


def _client(url: str, **settings: Any) -> ObjectStore:
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    try:
        return from_url(url, **settings)
    except (BaseError, ValueError) as error:
        reason = f"the client refuses its settings: {str(error).partition(chr(10))[0]}"
        raise _unusable(url, reason, "check the URL and the store's options") from error


def _time_outs(silence_s: float, patience_s: float) -> dict[str, object]:
    return {
        "connect_timeout": timedelta(seconds=silence_s),
        "read_timeout": timedelta(seconds=patience_s),
        "timeout": _NEVER,
    }


def _client_options(scheme: str, options: Mapping[str, str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in (*_CLIENT_SWITCHES, *_CLIENT_TEXTS):
        value = options.get(name, os.environ.get(f"{_ENVIRONMENT[scheme]}_{name.upper()}", ""))
        if value:
            found[name] = _SWITCH_WORDS[value.lower()] if name in _CLIENT_SWITCHES else value
    return found


def _check_installed(url: str) -> None:
    try:
        import obstore  # noqa: F401 - only whether it is there
        import zstandard  # noqa: F401
    except ModuleNotFoundError as error:
        reason = f"object stores need the package {error.name}, which is not installed"
        raise _unusable(url, reason, "pip install 'warmrank[s3]'") from error


def _checked_scheme(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in _ENVIRONMENT:
        remedy = "name a directory by its path, or an object store as s3://, gs:// or az://"
        raise _unusable(url, f"the scheme {parts.scheme!r} is none of an object store", remedy)
    if parts.query or parts.fragment or "@" in parts.netloc.partition(":")[2]:
        where = f"{parts.scheme}://{parts.hostname}{parts.path}"
        remedy = "name only the place; credentials come from the environment"
        raise _unusable(where, "the URL has a password, a query or a fragment", remedy)
    return parts.scheme


def _check_options(url: str, options: Mapping[str, str]) -> None:
    if unknown := sorted(set(options) - KNOWN_OPTIONS):
        remedy = f"known are {', '.join(sorted(KNOWN_OPTIONS))}; credentials come from the environment only"
        raise _unusable(url, f"the option {unknown[0]!r} is not known", remedy)


def is_usable(option: str, value: str) -> bool:
    """Whether an option may have that value: a switch is on or off, and no third thing."""
    return option not in _CLIENT_SWITCHES or not value or value.lower() in _SWITCH_WORDS


def _check_switches(url: str, scheme: str, options: Mapping[str, str]) -> None:
    for name in _CLIENT_SWITCHES:
        variable = f"{_ENVIRONMENT[scheme]}_{name.upper()}"
        value = options.get(name, os.environ.get(variable, ""))
        if not is_usable(name, value):
            called = f"the option {name}" if name in options else f"the environment's {variable}"
            raise _unusable(url, f"{called} is {value!r}", "set it to true or to false")


def _unusable(where: str, reason: str, remedy: str) -> StoreUnavailable:
    return StoreUnavailable(what="store", where=where, reason=reason, remedy=remedy)
