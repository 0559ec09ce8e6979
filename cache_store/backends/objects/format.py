"""The FORMAT file of an object store, and whether its server can be trusted with one.

Layout: ``{"blobs":"warmrank-blob 1","digest":"sha256","format":1}``. A directory's FORMAT has no ``blobs``,
so neither takes the other for one of its own, as through a mount of the bucket.

Invariants: a store is made only where nothing else is; nobody writes to a server that was not seen to refuse
the second create of a name.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from warmrank.cache_store.backends.objects.client import ObjectClient
from warmrank.cache_store.backends.objects.frames import STORED_FORM
from warmrank.cache_store.canonical import canonical_json
from warmrank.cache_store.errors import Corrupt, NoStoreYet, NotInStore, StoreUnavailable
from warmrank.cache_store.layout import FORMAT_FILE, PROBE, TOP_LEVEL
from warmrank.cache_store.parsing import parse_document

STORE_FORMAT: Final = 1
_MAX_FORMAT_BYTES = 4096
_PROBE_DATA = b"The server refused to replace this.\n"
_OTHER_DATA = b"The server replaced what stood here, though it was asked not to.\n"
_NUM_LOOKED_AT = 100


class _ObjectFormat(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1]
    digest: Literal["sha256"]
    blobs: Literal["warmrank-blob 1"]


_FORMAT_DATA = canonical_json({"format": STORE_FORMAT, "digest": "sha256", "blobs": STORED_FORM})


def check_format(client: ObjectClient, *, create: bool) -> None:
    """Make sure that a store of this format is there; make one where nothing is and ``create`` says so.

    Raises:
        StoreUnavailable: there is no store, or it cannot be read.
        NewerFormat: a later release made it.
        Corrupt: its FORMAT is damaged, or that of a directory.
    """
    try:
        data = client.read(FORMAT_FILE, limit_bytes=_MAX_FORMAT_BYTES)
    except NotInStore:
        if not create:
            raise NoStoreYet(what="store", where=client.url) from None
        _check_empty(client)
        client.create(FORMAT_FILE, _FORMAT_DATA)
        data = client.read(FORMAT_FILE, limit_bytes=_MAX_FORMAT_BYTES)
    where = f"{client.url}/{FORMAT_FILE}"
    try:
        parse_document(_ObjectFormat, data, supported_format=STORE_FORMAT, what="store", where=where)
    except Corrupt as error:
        remedy = (
            f"an object store's line is {_FORMAT_DATA.decode()}: restore it, or use another prefix;"
            " without 'blobs' it is the store of a directory, and opened by the directory's path"
        )
        raise replace(error, remedy=remedy) from error


def check_create_only(client: ObjectClient) -> None:
    """Make sure that the server refuses to create what exists; some ignore the condition in silence.

    The probe stays, so that the next writer needs one request. The second create has other bytes: where its
    answer is lost, equal ones would not tell whether they are its own.

    Raises:
        StoreUnavailable: it replaced the probe.
    """
    if client.create(PROBE, _PROBE_DATA) and client.create(PROBE, _OTHER_DATA):
        raise StoreUnavailable(
            what="store",
            where=client.url,
            reason="the server ignores 'If-None-Match: *', so that publishers would overwrite each other",
            remedy="upgrade the server to one that has conditional writes, or use it with mode 'ro'",
        )


def _check_empty(client: ObjectClient) -> None:
    for info in itertools.islice(client.list(""), _NUM_LOOKED_AT):
        if (stranger := info.name.partition("/")[0]) not in TOP_LEVEL:
            raise StoreUnavailable(
                what="store",
                where=client.url,
                reason=f"holds {stranger!r} but no {FORMAT_FILE} object, so it is no store",
                remedy="name a prefix of its own, such as s3://bucket/warmrank",
            )
