"""Whom this process believes: the sealed form of every document, and Ed25519 signatures over it.

Layout: one line of canonical JSON, a line feed, the payload (so ``tail -n +2 FILE`` shows the document)::

    {"format":2,"key":"<key>","kind":"manifest","payload":{"sha256":"<hex>","size_bytes":N},
     "signature":{"key_id":"<hex>","name":"ci","scheme":"ed25519","value":"<hex>"}}
    <payload>

or, in place of the signature's object, ``"signature":"unsigned"``.

The payload's digest is checked whenever an envelope is taken apart; a header has one spelling only; a
signature covers kind, key, payload and producer (`signed_message`), so a good document put in another's place
is refused. What a launch loads must be signed by a key of *this* process's configuration or keyring, never of
the store; revocation wins over trust. Ed25519 and not HMAC, because with HMAC every reader could forge.
"""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import AfterValidator, Field

from warmrank.cache_store.backends.directory import LOCAL_TYPES, file_system_type, read_mounts
from warmrank.cache_store.cache_dir.private_files import OTHERS_WRITE, way_to
from warmrank.cache_store.canonical import canonical_json
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Corrupt, NewerFormat, Untrusted, UntrustedReason
from warmrank.cache_store.layout import BLOBS, QUARANTINE, TMP, TOP_LEVEL
from warmrank.cache_store.parsing import Strict, parse_document
from warmrank.cache_store.paths import part_fault, refusing
from warmrank.cache_store.signing.keyring import (
    Keyring,
    Revocation,
    Signer,
    key_id,
    load_public_key,
    load_signer,
    read_keyring,
)

logger = logging.getLogger(__name__)
TrustPolicy = Literal["require", "warn", "off"]
DocumentKind = Literal["manifest", "launch", "directory"]
ENVELOPE_FORMAT: Final = 2
MAX_HEADER_BYTES = 4096
"""Key, names of at most 255 bytes each and a signature take less than 1 KB, six times that if escaped."""
_NEVER_USED = frozenset({QUARANTINE.rstrip("/"), TMP.rstrip("/")})  # nothing in there gets a name again
_BLOBS = BLOBS.partition("/")[0]  # their names say what is in them, whoever owns them; there may be millions
_DOMAIN = "warmrank-envelope-2"
_ALWAYS_REFUSED: frozenset[UntrustedReason] = frozenset({"bad_signature", "revoked"})
"""Refused by ``warn`` too: somebody tampered, or somebody said that this key is not to be believed."""


class Producer(Strict):
    """The maker of a document: the name that the signer goes by, and the id of the public key."""

    name: Annotated[str, AfterValidator(refusing(part_fault, "name"))]
    key_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class Signature(Producer):
    """The signer, and the signature in hex."""

    scheme: Literal["ed25519"] = "ed25519"
    value: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]


class _Payload(Strict):
    sha256: str
    size_bytes: int


class Header(Strict):
    """First line of an envelope; ``signature`` may be explicitly none."""

    format: Literal[2] = ENVELOPE_FORMAT
    kind: Annotated[str, Field(max_length=32)]
    key: Annotated[str, Field(max_length=128)]
    payload: _Payload
    signature: Signature | Literal["unsigned"]


class Envelope(NamedTuple):
    """A document's bytes, and what they were made for and by whom, as its first line says."""

    header: Header
    payload: bytes

    def to_bytes(self) -> bytes:
        """The stored form."""
        return canonical_json(self.header.model_dump()) + b"\n" + self.payload


def signed_message(kind: str, key: str, sha256: str, producer: Producer) -> bytes:
    """The bytes that are signed; a list of strings, so no two sets of arguments have one spelling."""
    return canonical_json([_DOMAIN, kind, key, sha256, "ed25519", producer.name, producer.key_id])


def parse_envelope(data: bytes, *, what: str, where: str) -> Envelope:
    """Take a stored form apart, without judging its signature."""
    line, _, payload = data.partition(b"\n")
    if len(line) > MAX_HEADER_BYTES:
        expected = f"a header of at most {MAX_HEADER_BYTES} bytes"
        raise Corrupt(what=what, where=where, expected=expected, actual=f"{len(line)} bytes")
    header = parse_document(Header, line, what=what, where=where)
    digest = digest_bytes(payload)
    if header.payload != _Payload(**digest._asdict()):
        expected = f"payload sha256 {header.payload.sha256[:12]} ({header.payload.size_bytes} bytes)"
        raise Corrupt(what=what, where=where, expected=expected, actual=str(digest))
    if canonical_json(header.model_dump()) != line:
        expected, actual = "a header of canonical JSON", "another spelling"
        raise Corrupt(what=what, where=where, expected=expected, actual=actual)
    return Envelope(header, payload)


def signer_id(data: bytes) -> str:
    """Id of the key that a stored form says signed it, which was judged before; empty where nobody did."""
    signature = json.loads(data.partition(b"\n")[0])["signature"]
    return str(signature["key_id"]) if isinstance(signature, dict) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """The key that this process signs with, and the keys that it believes.

    Policy ``require`` refuses what no trusted key signed; ``warn`` takes it and logs; ``off`` looks at no
    signature. The ``signer`` signs what this process publishes, and its own key is trusted too.
    """

    policy: TrustPolicy
    signer: Signer | None = None
    trusted: Mapping[str, Ed25519PublicKey] = field(default_factory=dict)  # by the names people gave them
    revoked: Mapping[str, Revocation] = field(default_factory=dict)  # by key id

    @property
    def believed(self) -> frozenset[str]:
        """Ids of all keys that this process takes something on the word of."""
        return frozenset(self._keys()) - self.revoked.keys()

    def check_signer(self) -> None:
        """Refuse a signing key of this process that is revoked; raises `Untrusted`."""
        if self.signer and (revocation := self.revoked.get(key_id(self.signer.public_key))):
            what, detail = f"signing key {revocation.key_id}", f"it may sign nothing: {revocation}"
            remedy = "make another with warmrank keys generate, and name it in store.trust.signing_key"
            raise Untrusted(reason="revoked", what=what, where="this process", detail=detail, remedy=remedy)

    def seal(self, kind: DocumentKind, key: str, payload: bytes) -> bytes:
        """Wrap a document for the store; equal documents of one signer have equal bytes.

        Raises `Untrusted`: the policy asks for signatures and there is no signing key, or it is revoked.
        """
        what, digest = f"{kind} {key[:12]}", digest_bytes(payload)
        signature: Signature | Literal["unsigned"] = "unsigned"
        if self.signer is not None:
            self.check_signer()
            producer = Producer(name=self.signer.name, key_id=key_id(self.signer.public_key))
            value = self.signer.private_key.sign(signed_message(kind, key, digest.sha256, producer)).hex()
            signature = Signature(name=producer.name, key_id=producer.key_id, value=value)
        elif self.policy == "require":
            detail = "the trust policy is 'require', and no signing key is configured"
            remedy = (
                "set store.trust.signing_key, or --signing-key without a config (warmrank keys generate "
                "makes one), or let a publisher publish"
            )
            here = "this process"
            raise Untrusted(reason="no_signing_key", what=what, where=here, detail=detail, remedy=remedy)
        header = Header(kind=kind, key=key, payload=_Payload(**digest._asdict()), signature=signature)
        return Envelope(header, payload).to_bytes()

    def open_envelope(self, kind: DocumentKind, key: str, data: bytes, *, where: str = "memory") -> bytes:
        """Unwrap the document that was asked for as ``kind`` and ``key``.

        Raises:
            Corrupt: no envelope, or not the payload that it was made for.
            Untrusted: made for another kind or key, or refused by the policy.
        """
        what = f"{kind} {key[:12]}"

        def untrusted(reason: UntrustedReason, detail: str, remedy: str) -> Untrusted:
            return Untrusted(reason=reason, what=what, where=where, detail=detail, remedy=remedy)

        try:
            header, payload = parse_envelope(data, what=what, where=where)
        except NewerFormat as error:
            if self.policy != "require":
                raise
            # Anybody can write a higher number: without a signature that counts here, it must make way.
            detail = f"it carries no signature that this release can check: {error}"
            raise untrusted("unsigned", detail, "a publish with this release replaces it") from error
        if (header.kind, header.key) != (kind, key):
            detail = f"it was made for {header.kind!r} {header.key!r}"
            raise untrusted("replayed", detail, "somebody copied it there; publish again")
        if self.policy != "off" and (fault := self._fault(header)):
            doubt = untrusted(*fault)
            if self.policy == "require" or doubt.reason in _ALWAYS_REFUSED:
                raise doubt
            logger.warning("Taken all the same under trust policy 'warn': %s", doubt)
        return payload

    def _fault(self, header: Header) -> tuple[UntrustedReason, str, str] | None:
        """Reason, detail and remedy where a signature is not enough; None when it is."""
        signature = header.signature
        if signature == "unsigned":
            remedy = (
                "publish again with a signing key (warmrank keys generate, then store.trust.signing_key); "
                "a store of your own may use policy 'off'"
            )
            return "unsigned", "it carries no signature", remedy
        by = f"{signature.name!r}, key {signature.key_id}"
        if revocation := self.revoked.get(signature.key_id):
            return "revoked", f"signed by {by}: {revocation}", "publish again with a key that is not revoked"
        public_key = self._keys().get(signature.key_id)
        if public_key is None:
            known = (f"{name} ({key_id(key)[:12]})" for name, key in sorted(self.trusted.items()))
            detail = f"signed by {by}; trusted: {', '.join(known) or 'none'}"
            remedy = "get that public key from its owner, then warmrank keys trust FILE"
            return "unknown_signer", detail, remedy
        message = signed_message(header.kind, header.key, header.payload.sha256, signature)
        try:
            public_key.verify(bytes.fromhex(signature.value), message)
        except InvalidSignature:
            detail = f"the signature of {by} does not fit the contents"
            return "bad_signature", detail, "it was changed after it was signed; publish again"
        return None

    def _keys(self) -> dict[str, Ed25519PublicKey]:
        own = [self.signer.public_key] if self.signer else []
        return {key_id(key): key for key in (*self.trusted.values(), *own)}


def load_trust(
    policy: TrustPolicy,
    *,
    signing_key: Path | None = None,
    trusted_keys: Mapping[str, Path] | None = None,
    keyring: Path | None = None,
    revoked: Iterable[str] = (),
) -> Trust:
    """Read the PEM files that a configuration names, and its keyring; they add up.

    ``revoked`` are ids of keys revoked besides those of the keyring.
    """
    ring = read_keyring(keyring) if keyring else Keyring()
    named = {name: load_public_key(path) for name, path in (trusted_keys or {}).items()}
    by_config = {wanted: Revocation(key_id=wanted, reason="in the config") for wanted in revoked}
    return Trust(
        policy=policy,
        signer=load_signer(signing_key) if signing_key else None,
        trusted={f"{name} (keyring)" if name in named else name: ring.trusted[name] for name in ring.trusted}
        | named,
        revoked=by_config | dict(ring.revoked),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChoice:
    """A policy, and why it is this one."""

    policy: Literal["require", "off"]
    reason: str


def choose_policy(location: str) -> PolicyChoice:
    """Look at a store's location, a directory or a URL, and choose its policy where a config names none.

    ``off`` only for a directory of this user on this machine's own disk into which nobody else can have put
    anything; whatever is not known to be so (an object store, a network file system, a failing look) asks for
    signatures. Never raises.
    """
    if "://" in location:
        return PolicyChoice(policy="require", reason="an object store is shared")
    try:
        reason = _why_shared(Path(location).absolute())
    except OSError as error:
        reason = f"it cannot be looked at: {error}"
    if reason:
        return PolicyChoice(policy="require", reason=reason)
    return PolicyChoice(policy="off", reason="a directory of this user on a local disk")


def _why_shared(path: Path) -> str:
    """Reason why others may have put something into a directory; empty if nobody can have."""
    mounts, own = read_mounts(), os.geteuid()
    kinds = [file_system_type(path, mounts)]
    if kinds[0] in LOCAL_TYPES:  # else not touched: a dead mount would hang here
        above = list(way_to(path))
        links = [Path(place) for place, status in above if stat.S_ISLNK(status.st_mode)]
        kinds = [file_system_type(place, mounts) for place in (*links, path.resolve())]
    for kind in kinds:
        if kind not in LOCAL_TYPES:
            return f"its file system ({kind or 'not known'}) may be shared"
    inside = (entry_fault(str(place), uid, mode, own=own) for place, uid, mode in _entries(path.resolve()))
    outside = (
        entry_fault(str(place), status.st_uid, status.st_mode, own=own, is_above=True)
        for place, status in above
    )
    return next(filter(None, chain(inside, outside)), "")


def entry_fault(path: str, uid: int, mode: int, *, own: int, is_above: bool = False) -> str:
    """The reason why others than the user ``own`` can change a file or directory of this type and ``mode``.

    One that ``is_above`` lies on the way to the store (`way_to`), so root may own it, and others may write
    into it where they cannot rename what is not theirs (the sticky bit of ``/tmp``).
    """
    if uid != own and not (is_above and uid == 0):
        return f"{path} belongs to uid {uid}, not {own}"
    is_held = is_above and (mode & stat.S_ISVTX or stat.S_ISLNK(mode))
    if mode & OTHERS_WRITE and not is_held:
        return f"others can write {path} (mode {stat.S_IMODE(mode):04o})"
    return ""


def _entries(root: Path) -> Iterator[tuple[Path, int, int]]:
    """The parts of a directory that a store uses: paths, owners, and modes as far as they count."""
    if not root.exists():
        return
    status = root.lstat()
    yield root, status.st_uid, status.st_mode
    others_get_in = status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    waiting = [root / name for name in sorted(TOP_LEVEL)]
    while waiting:
        path = waiting.pop()
        try:
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode) and not (path.parent == root and path.name in _NEVER_USED):
                # Who owns a document, or can write where one lies, decides what it says; a blob's name does.
                is_blobs = path.is_relative_to(root / _BLOBS)
                with os.scandir(path) as found:
                    waiting += [
                        Path(item.path)
                        for item in found
                        if not (is_blobs and item.is_file(follow_symlinks=False))
                    ]
        except FileNotFoundError:
            continue  # not there, or an evict removed it meanwhile
        # Where others do not get in, only an owner can have kept a way to write, as another name, or a link.
        counts = others_get_in or path.parent == root or stat.S_ISLNK(status.st_mode)
        yield path, status.st_uid, status.st_mode if counts else stat.S_IFMT(status.st_mode)
