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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import AfterValidator, Field

from warmrank.cache_store.backends.durability import LOCAL_TYPES, file_system_type, read_mounts
from warmrank.cache_store.cache_dir.private_files import OTHERS_WRITE, way_to
from warmrank.cache_store.canonical import canonical_json
from warmrank.cache_store.digests import Digest, digest_bytes
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


class _Header(Strict):
    format: Literal[2] = ENVELOPE_FORMAT
    kind: Annotated[str, Field(max_length=32)]
    key: Annotated[str, Field(max_length=128)]
    payload: _Payload
    signature: Signature | Literal["unsigned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A document's bytes with the kind and key it was made for; ``signature`` None is explicitly unsigned."""

    kind: str
    key: str
    payload: bytes
    digest: Digest  # of the payload
    signature: Signature | None

    def to_bytes(self) -> bytes:
        """The stored form."""
        return self.header() + b"\n" + self.payload

    def header(self) -> bytes:
        """Its first line."""
        header = _Header(
            kind=self.kind,
            key=self.key,
            payload=_Payload(**self.digest._asdict()),
            signature=self.signature or "unsigned",
        )
        return canonical_json(header.model_dump())


def signed_message(kind: str, key: str, digest: Digest, producer: Producer) -> bytes:
    """The bytes that are signed; a list of strings, so no two sets of arguments have one spelling."""
    return canonical_json([_DOMAIN, kind, key, digest.sha256, "ed25519", producer.name, producer.key_id])


def parse_envelope(data: bytes, *, what: str, where: str) -> Envelope:
    """Take a stored form apart, without judging its signature."""
    line, _, payload = data.partition(b"\n")
    if len(line) > MAX_HEADER_BYTES:
        expected = f"a header of at most {MAX_HEADER_BYTES} bytes"
        raise Corrupt(what=what, where=where, expected=expected, actual=f"{len(line)} bytes")
    header = parse_document(_Header, line, what=what, where=where)
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

    def seal(self, kind: DocumentKind, key: str, payload: bytes) -> bytes:
        """Wrap a document for the store; equal documents of one signer have equal bytes.

        Raises `Untrusted`: the policy asks for signatures and there is no signing key, or it is revoked.
        """
        what, digest = f"{kind} {key[:12]}", digest_bytes(payload)
        signature = None
        if self.signer is not None:
            producer = Producer(name=self.signer.name, key_id=key_id(self.signer.public_key))
            if revocation := self.revoked.get(producer.key_id):
                detail = f"its own signing key {revocation.key_id} may sign nothing: {revocation}"
                remedy = "make another with warmrank keys generate, and name it in store.trust.signing_key"
                raise Untrusted(
                    reason="revoked", what=what, where="this process", detail=detail, remedy=remedy
                )
            value = self.signer.private_key.sign(signed_message(kind, key, digest, producer)).hex()
            signature = Signature(name=producer.name, key_id=producer.key_id, value=value)
        elif self.policy == "require":
            detail = "the trust policy is 'require', and no signing key is configured"
            remedy = (
                "set store.trust.signing_key (warmrank keys generate makes one), or let a publisher publish"
            )
            here = "this process"
            raise Untrusted(reason="no_signing_key", what=what, where=here, detail=detail, remedy=remedy)
        return Envelope(kind=kind, key=key, payload=payload, digest=digest, signature=signature).to_bytes()

    def open_envelope(self, kind: DocumentKind, key: str, data: bytes, *, where: str = "memory") -> bytes:
        """Unwrap the document that was asked for as ``kind`` and ``key``.

        Raises:
            Corrupt: no envelope, or not the payload that it was made for.
            Untrusted: made for another kind or key, or refused by the policy.
        """
        envelope, doubt = self._judge(kind, key, data, where=where)
        if doubt and self._refuses(doubt):
            raise doubt
        if doubt:
            logger.warning("Taken all the same under trust policy 'warn': %s", doubt)
        return envelope.payload

    def refusal(
        self, kind: DocumentKind, key: str, data: bytes, *, where: str = "memory"
    ) -> Untrusted | None:
        """Reason why this process must not use a document, or None; raises `Corrupt` and `NewerFormat`."""
        try:
            _, doubt = self._judge(kind, key, data, where=where)
        except Untrusted as error:
            return error
        return doubt if doubt and self._refuses(doubt) else None

    def _refuses(self, doubt: Untrusted) -> bool:
        return self.policy == "require" or doubt.reason in _ALWAYS_REFUSED

    def _judge(
        self, kind: DocumentKind, key: str, data: bytes, *, where: str
    ) -> tuple[Envelope, Untrusted | None]:
        """The envelope, and why it is not to be believed where the policy looks at that."""
        what = f"{kind} {key[:12]}"
        try:
            envelope = parse_envelope(data, what=what, where=where)
        except NewerFormat as error:
            if self.policy != "require":
                raise
            # Anybody can write a higher number: without a signature that counts here, it must make way.
            detail = f"it carries no signature that this release can check: {error}"
            remedy = "a publish with this release replaces it"
            raise Untrusted(
                reason="unsigned", what=what, where=where, detail=detail, remedy=remedy
            ) from error
        if (envelope.kind, envelope.key) != (kind, key):
            detail = f"it was made for {envelope.kind!r} {envelope.key!r}"
            remedy = "somebody copied it there; publish again"
            raise Untrusted(reason="replayed", what=what, where=where, detail=detail, remedy=remedy)
        fault = None if self.policy == "off" else self._fault(envelope)
        if fault is None:
            return envelope, None
        reason, detail, remedy = fault
        return envelope, Untrusted(reason=reason, what=what, where=where, detail=detail, remedy=remedy)

    def _fault(self, envelope: Envelope) -> tuple[UntrustedReason, str, str] | None:
        """Reason, detail and remedy where a signature is not enough; None when it is."""
        signature = envelope.signature
        if signature is None:
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
            detail = f"signed by {by}; trusted: {', '.join(sorted(self.trusted)) or 'none'}"
            remedy = "get that public key from its owner, then warmrank keys trust FILE"
            return "unknown_signer", detail, remedy
        message = signed_message(envelope.kind, envelope.key, envelope.digest, signature)
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


_NEVER_USED = frozenset({QUARANTINE.rstrip("/"), TMP.rstrip("/")})  # nothing in there gets a name again
_BLOBS = BLOBS.partition("/")[0]  # their names say what is in them, whoever owns them; there may be millions


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file or directory that decides who can write into a store.

    One ``is_above`` lies on the way to the store (`way_to`), so root may own it, and others may write into it
    where they cannot rename what is not theirs (the sticky bit of ``/tmp``).
    """

    path: str
    uid: int
    mode: int  # type and permissions, as ``st_mode``
    is_above: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChoice:
    """A policy, and why it is this one."""

    policy: Literal["require", "off"]
    reason: str


def resolve_policy(file_system: str, entries: Iterable[Entry], *, uid: int) -> PolicyChoice:
    """Choose the policy for a directory, used by the user of that id.

    ``file_system`` is the type of its file system ("" if unknown), ``entries`` what a store uses of it.
    """
    if file_system not in LOCAL_TYPES:
        reason = f"its file system ({file_system or 'not known'}) may be shared"
        return PolicyChoice(policy="require", reason=reason)
    for entry in entries:
        if entry.uid != uid and not (entry.is_above and entry.uid == 0):
            reason = f"{entry.path} belongs to uid {entry.uid}, not {uid}"
            return PolicyChoice(policy="require", reason=reason)
        is_held = entry.is_above and (entry.mode & stat.S_ISVTX or stat.S_ISLNK(entry.mode))
        if entry.mode & OTHERS_WRITE and not is_held:
            mode = f"mode {stat.S_IMODE(entry.mode):04o}"
            return PolicyChoice(policy="require", reason=f"others can write {entry.path} ({mode})")
    return PolicyChoice(policy="off", reason="a directory of this user on a local disk")


def choose_policy(location: str) -> PolicyChoice:
    """Look at a store's location, a directory or a URL, and choose its policy where a config names none.

    ``off`` only for a directory of this user on this machine's own disk into which nobody else can have put
    anything; whatever is not known to be so (an object store, a network file system, a failing look) asks for
    signatures. Never raises.
    """
    if "://" in location:
        return PolicyChoice(policy="require", reason="an object store is shared")
    try:
        return resolve_policy(*_look_at(Path(location)), uid=os.geteuid())
    except OSError as error:
        return PolicyChoice(policy="require", reason=f"it cannot be looked at: {error}")


def _look_at(path: Path) -> tuple[str, list[Entry]]:
    mounts, absolute = read_mounts(), path.absolute()
    if (kind := file_system_type(absolute, mounts)) not in LOCAL_TYPES:
        return kind, []  # not touched: a dead mount would hang here
    above = [_entry(place, status, is_above=True) for place, status in way_to(absolute)]
    path = absolute.resolve()
    links = [Path(entry.path) for entry in above if stat.S_ISLNK(entry.mode)]
    kinds = [file_system_type(place, mounts) for place in (*links, path)]
    kind = next((kind for kind in kinds if kind not in LOCAL_TYPES), kinds[-1])
    return kind, [*_entries(path), *above]


def _entries(path: Path) -> Iterator[Entry]:
    if not path.exists():
        return
    yield _entry(path, path.lstat())
    for name in sorted(TOP_LEVEL):
        if os.path.lexists(path / name):
            yield _entry(path / name, (path / name).lstat())
    others_get_in = path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    for name in sorted(TOP_LEVEL - _NEVER_USED):
        for entry in _below(path / name, with_files=name != _BLOBS):
            # Where they do not, only an owner can have kept a way to write, such as another name, or a link.
            as_it_is = others_get_in or stat.S_ISLNK(entry.mode)
            yield entry if as_it_is else replace(entry, mode=stat.S_IFMT(entry.mode))


def _below(root: Path, *, with_files: bool) -> Iterator[Entry]:
    """All entries below: whoever owns a document, or can write where one lies, decides what it says."""
    waiting = [root] if root.is_dir() else []
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                paths = [
                    Path(item.path) for item in found if with_files or not item.is_file(follow_symlinks=False)
                ]
            below = [_entry(path, path.lstat()) for path in paths]
        except FileNotFoundError:
            continue  # an evict removed an empty directory of the trash
        waiting += [Path(entry.path) for entry in below if stat.S_ISDIR(entry.mode)]
        yield from below


def _entry(path: Path, status: os.stat_result, *, is_above: bool = False) -> Entry:
    return Entry(path=str(path), uid=status.st_uid, mode=status.st_mode, is_above=is_above)
