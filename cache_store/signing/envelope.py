"""The stored form of every document of the store: a header, then the document as it is.

Layout: one line of canonical JSON, a line feed, the payload (so ``tail -n +2 FILE`` shows the document)::

    {"format":2,"key":"<key>","kind":"manifest","payload":{"sha256":"<hex>","size_bytes":N},
     "signature":{"key_id":"<hex>","name":"ci","scheme":"ed25519","value":"<hex>"}}
    <payload>

or, in place of the signature's object, ``"signature":"unsigned"``.

Invariants: the payload's digest is checked whenever an envelope is taken apart, signed or not; a header has
one spelling only; a signature covers everything in the header but its own value (`signed_message`), so kind,
key, payload and producer, and with the payload its ``created``, the time. The envelope is to stay as it is
when payloads change: what stands in a newer one cannot be judged here, so `require` refuses it like unsigned.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from warmrank.cache_store.canonical import canonical_json
from warmrank.cache_store.digests import Digest, digest_bytes
from warmrank.cache_store.errors import Corrupt
from warmrank.cache_store.parsing import parse_document
from warmrank.cache_store.paths import part_fault

ENVELOPE_FORMAT: Final = 2
MAX_HEADER_BYTES = 4096
"""Key, names of at most 255 bytes each and a signature take less than 1 KB, six times that if escaped."""
_DOMAIN = "warmrank-envelope-2"


def _name(text: str) -> str:
    if fault := part_fault(text):
        raise ValueError(f"name {text[:80]!r} {fault}")
    return text


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Producer(_Part):
    """Who made a document: the name that the signer goes by, and the id of the public key."""

    name: Annotated[str, AfterValidator(_name)]
    key_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class Signature(Producer):
    """Who signed, and the signature in hex."""

    scheme: Literal["ed25519"] = "ed25519"
    value: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]


class _Payload(_Part):
    sha256: str
    size_bytes: int


class _Header(_Part):
    format: Literal[2] = ENVELOPE_FORMAT
    kind: Annotated[str, Field(max_length=32)]
    key: Annotated[str, Field(max_length=128)]
    payload: _Payload
    signature: Signature | Literal["unsigned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A document with what it was made for.

    Attributes:
        kind: kind of document.
        key: key it was made for.
        payload: the document's bytes.
        digest: of the payload.
        signature: None when it is explicitly unsigned.
    """

    kind: str
    key: str
    payload: bytes
    digest: Digest
    signature: Signature | None

    def to_bytes(self) -> bytes:
        """The stored form."""
        return self.header() + b"\n" + self.payload

    def header(self) -> bytes:
        """Its first line."""
        header = {
            "format": ENVELOPE_FORMAT,
            "kind": self.kind,
            "key": self.key,
            "payload": {"sha256": self.digest.sha256, "size_bytes": self.digest.size_bytes},
            "signature": self.signature.model_dump() if self.signature else "unsigned",
        }
        return canonical_json(header)


def signed_message(kind: str, key: str, digest: Digest, producer: Producer) -> bytes:
    """The bytes that are signed; a list of strings, so no two sets of arguments have one spelling."""
    return canonical_json([_DOMAIN, kind, key, digest.sha256, "ed25519", producer.name, producer.key_id])


def parse_envelope(data: bytes, *, what: str, where: str) -> Envelope:
    """Take a stored form apart, without judging its signature.

    Raises:
        Corrupt: the header is none, is spelled otherwise than `Envelope.to_bytes` does or is of an earlier
            format, or the payload is not the one that it announces.
        NewerFormat: a later release wrote it.
    """
    line, _, payload = data.partition(b"\n")
    if len(line) > MAX_HEADER_BYTES:
        expected = f"a header of at most {MAX_HEADER_BYTES} bytes"
        raise Corrupt(what=what, where=where, expected=expected, actual=f"{len(line)} bytes")
    header = parse_document(_Header, line, supported_format=ENVELOPE_FORMAT, what=what, where=where)
    digest = digest_bytes(payload)
    if (header.payload.sha256, header.payload.size_bytes) != (digest.sha256, digest.size_bytes):
        expected = f"payload sha256 {header.payload.sha256[:12]} ({header.payload.size_bytes} bytes)"
        raise Corrupt(what=what, where=where, expected=expected, actual=str(digest))
    signature = None if header.signature == "unsigned" else header.signature
    envelope = Envelope(kind=header.kind, key=header.key, payload=payload, digest=digest, signature=signature)
    if envelope.header() != line:
        expected, actual = "a header of canonical JSON", "another spelling"
        raise Corrupt(what=what, where=where, expected=expected, actual=actual)
    return envelope


def signer_id(data: bytes) -> str:
    """Id of the key that a stored form says signed it, which was judged before; empty where nobody did."""
    signature = json.loads(data.partition(b"\n")[0])["signature"]
    return str(signature["key_id"]) if isinstance(signature, dict) else ""
