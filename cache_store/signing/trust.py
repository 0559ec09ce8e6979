"""Whom this process believes: Ed25519 signatures over the mapping from a key to a document.

Invariants: an artifact is code, so what a launch loads must be signed by a key that stands in *this*
process's configuration or keyring, never in the store; a signature binds kind, key, payload and producer, so
that a good document put in another's place is refused; a wrong signature of a known key and any signature
of a revoked key are refused by every policy that looks; revocation wins over trust, also over one's own key.
Ed25519 and not HMAC, because with HMAC every reader could forge.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import NewerFormat, Untrusted, UntrustedReason
from warmrank.cache_store.signing.envelope import (
    Envelope,
    Producer,
    Signature,
    parse_envelope,
    signed_message,
)
from warmrank.cache_store.signing.keyring import Keyring, read_keyring
from warmrank.cache_store.signing.revocations import Revocation
from warmrank.cache_store.signing.signing_keys import (
    Signer,
    generate_key_pair,
    key_id,
    load_public_key,
    load_signer,
)

__all__ = [
    "DocumentKind",
    "Signer",
    "Trust",
    "TrustPolicy",
    "generate_key_pair",
    "load_public_key",
    "load_signer",
    "load_trust",
]

logger = logging.getLogger(__name__)

TrustPolicy = Literal["require", "warn", "off"]
DocumentKind = Literal["manifest", "launch", "directory"]

_ALWAYS_REFUSED: frozenset[UntrustedReason] = frozenset({"bad_signature", "revoked"})
"""What ``warn`` refuses too: somebody tampered, or somebody said that this key is not to be believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """What this process signs with and believes.

    Attributes:
        policy: ``require`` refuses what no trusted key signed; ``warn`` takes it and logs; ``off`` looks at
            no signature.
        signer: signs what this process publishes; its own key is trusted too.
        trusted: public keys by the names that people gave them.
        revoked: keys that nobody is to believe any more, by key id.
    """

    policy: TrustPolicy
    signer: Signer | None = None
    trusted: Mapping[str, Ed25519PublicKey] = field(default_factory=dict)
    revoked: Mapping[str, Revocation] = field(default_factory=dict)

    @property
    def believed(self) -> frozenset[str]:
        """Ids of all keys that this process takes something on the word of."""
        own = [self.signer.public_key] if self.signer else []
        return frozenset(map(key_id, [*self.trusted.values(), *own])) - self.revoked.keys()

    def seal(self, kind: DocumentKind, key: str, payload: bytes) -> bytes:
        """Wrap a document for the store; equal documents of one signer have equal bytes.

        Raises:
            Untrusted: the policy asks for signatures and there is no signing key, or it is revoked.
        """
        what = f"{kind} {key[:12]}"
        digest = digest_bytes(payload)
        if self.signer is None:
            if self.policy == "require":
                raise _no_signing_key(what)
            return Envelope(kind=kind, key=key, payload=payload, digest=digest, signature=None).to_bytes()
        producer = Producer(name=self.signer.name, key_id=key_id(self.signer.public_key))
        if revocation := self.revoked.get(producer.key_id):
            raise _own_key_revoked(what, revocation)
        value = self.signer.private_key.sign(signed_message(kind, key, digest, producer)).hex()
        signature = Signature(name=producer.name, key_id=producer.key_id, value=value)
        return Envelope(kind=kind, key=key, payload=payload, digest=digest, signature=signature).to_bytes()

    def open_envelope(self, kind: DocumentKind, key: str, data: bytes, *, where: str = "memory") -> bytes:
        """Unwrap the document that was asked for as ``kind`` and ``key``.

        Raises:
            Corrupt: no envelope, or not the payload that it was made for.
            NewerFormat: a later release wrote the envelope, and the policy does not ask for signatures.
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
        """Why this process must not use a document, or None; raises `Corrupt` and `NewerFormat` as above."""
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
            if self.policy == "require":
                # Anybody can write a higher number: without a signature that counts here, it must make way.
                raise _newer_envelope(error) from error
            raise
        if (envelope.kind, envelope.key) != (kind, key):
            raise Untrusted(
                reason="replayed",
                what=what,
                where=where,
                detail=f"it was made for {envelope.kind!r} {envelope.key!r}",
                remedy="somebody copied it there; publish again",
            )
        return envelope, None if self.policy == "off" else self._doubt(envelope, what=what, where=where)

    def _doubt(self, envelope: Envelope, *, what: str, where: str) -> Untrusted | None:
        reason, detail, remedy = self._fault(envelope)
        if reason is None:
            return None
        return Untrusted(reason=reason, what=what, where=where, detail=detail, remedy=remedy)

    def _fault(self, envelope: Envelope) -> tuple[UntrustedReason | None, str, str]:
        """Why a signature is not enough, and what to do; the reason is None when it is."""
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
        public_key = self._public_key(signature.key_id)
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
        return None, "", ""

    def _public_key(self, wanted_id: str) -> Ed25519PublicKey | None:
        own = [self.signer.public_key] if self.signer else []
        return next((key for key in (*self.trusted.values(), *own) if key_id(key) == wanted_id), None)


def load_trust(
    policy: TrustPolicy,
    *,
    signing_key: Path | None = None,
    trusted_keys: Mapping[str, Path] | None = None,
    keyring: Path | None = None,
    revoked: Iterable[str] = (),
) -> Trust:
    """Read the key files that a configuration names, and its keyring; they add up.

    Args:
        policy: what to do about a signature that is not trusted.
        signing_key: PEM file of the private key.
        trusted_keys: PEM files of public keys by name.
        keyring: a directory as `cache_store.signing.keyring` lays it out; where there is none,
            nothing of it counts.
        revoked: ids of keys that are revoked besides those of the keyring.

    Raises:
        Corrupt: a file holds no such key.
        UnusableCache: a file cannot be read, or somebody else could have written it.
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


def _newer_envelope(error: NewerFormat) -> Untrusted:
    return Untrusted(
        reason="unsigned",
        what=error.what,
        where=error.where,
        detail=f"it carries no signature that this release can check: {error}",
        remedy="a publish with this release replaces it",
    )


def _no_signing_key(what: str) -> Untrusted:
    return Untrusted(
        reason="no_signing_key",
        what=what,
        where="this process",
        detail="the trust policy is 'require', and no signing key is configured",
        remedy="set store.trust.signing_key (warmrank keys generate makes one), or let a publisher publish",
    )


def _own_key_revoked(what: str, revocation: Revocation) -> Untrusted:
    return Untrusted(
        reason="revoked",
        what=what,
        where="this process",
        detail=f"its own signing key {revocation.key_id} may sign nothing: {revocation}",
        remedy="make another with warmrank keys generate, and name it in store.trust.signing_key",
    )
