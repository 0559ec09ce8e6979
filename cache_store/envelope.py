"""The stored form of every manifest and launch record: a header, then the document as it is.

Layout: one line of canonical JSON, a line feed, the payload (so ``tail -n +2 FILE`` shows the document)::

    {"format":1,"key":"<key>","kind":"manifest","payload":{"sha256":"<hex>","size_bytes":N},
     "signature":{"key_id":"<hex>","name":"ci","scheme":"ed25519","value":"<hex>"}}
    <payload>

or, in place of the signature's object, ``"signature":"unsigned"``.

Invariants: the payload's digest is checked whenever an envelope is taken apart, signed or not; a signature
covers kind, key and payload (`signed_message`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from cache_store.canonical import canonical_json
from cache_store.digests import digest_bytes
from cache_store.errors import Corrupt
from cache_store.parsing import parse_document

ENVELOPE_FORMAT: Final = 1
_DOMAIN = "warmrank-envelope-1"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Signature(_Part):
    """Who signed, and the signature in hex."""

    scheme: Literal["ed25519"] = "ed25519"
    name: str
    key_id: str
    value: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]


class _Payload(_Part):
    sha256: str
    size_bytes: int


class _Header(_Part):
    format: Literal[1] = ENVELOPE_FORMAT
    kind: str
    key: str
    payload: _Payload
    signature: Signature | Literal["unsigned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A document with what it was made for.

    Attributes:
        kind: kind of document.
        key: key it was made for.
        payload: the document's bytes.
        signature: None when it is explicitly unsigned.
    """

    kind: str
    key: str
    payload: bytes
    signature: Signature | None

    def to_bytes(self) -> bytes:
        """The stored form."""
        digest = digest_bytes(self.payload)
        header = _Header(
            kind=self.kind,
            key=self.key,
            payload=_Payload(sha256=digest.sha256, size_bytes=digest.size_bytes),
            signature=self.signature or "unsigned",
        )
        return canonical_json(header.model_dump(mode="json")) + b"\n" + self.payload


def signed_message(kind: str, key: str, payload: bytes) -> bytes:
    """The bytes that are signed; a list of strings, so no two triples have one spelling."""
    return canonical_json([_DOMAIN, kind, key, digest_bytes(payload).sha256])


def parse_envelope(data: bytes, *, what: str, where: str) -> Envelope:
    """Take a stored form apart, without judging its signature.

    Raises:
        Corrupt: the header is none, or the payload is not the one that it announces.
        NewerFormat: a later release wrote it.
    """
    line, _, payload = data.partition(b"\n")
    header = parse_document(_Header, line, supported_format=ENVELOPE_FORMAT, what=what, where=where)
    digest = digest_bytes(payload)
    if (header.payload.sha256, header.payload.size_bytes) != (digest.sha256, digest.size_bytes):
        expected = f"payload sha256 {header.payload.sha256[:12]} ({header.payload.size_bytes} bytes)"
        raise Corrupt(what=what, where=where, expected=expected, actual=str(digest))
    signature = None if header.signature == "unsigned" else header.signature
    return Envelope(kind=header.kind, key=header.key, payload=payload, signature=signature)
