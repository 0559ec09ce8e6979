"""Whom this process believes: Ed25519 signatures over the mapping from a key to a document.

Invariants: an artifact is code, so what a launch loads must be signed by a key that stands in *this*
process's configuration, never in the store; a signature binds kind, key and payload, so that a good
document put in another's place is refused; a wrong signature of a known key is refused by every policy that
looks. Ed25519 and not HMAC, because with HMAC every reader could forge.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from cache_store.envelope import Envelope, Signature, parse_envelope, signed_message
from cache_store.errors import Untrusted
from cache_store.signing_keys import (
    Signer,
    generate_key_pair,
    key_id,
    load_public_key,
    load_signer,
    save_key_pair,
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
    "save_key_pair",
]

logger = logging.getLogger(__name__)

TrustPolicy = Literal["require", "warn", "off"]
DocumentKind = Literal["manifest", "launch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """What this process signs with and believes.

    Attributes:
        policy: ``require`` refuses what no trusted key signed; ``warn`` takes it and logs; ``off`` looks at
            no signature.
        signer: signs what this process publishes; its own key is trusted too.
        trusted: public keys by the names that people gave them.
    """

    policy: TrustPolicy
    signer: Signer | None = None
    trusted: Mapping[str, Ed25519PublicKey] = field(default_factory=dict)

    def seal(self, kind: DocumentKind, key: str, payload: bytes) -> bytes:
        """Wrap a document for the store; equal documents of one signer have equal bytes.

        Raises:
            Untrusted: the policy asks for signatures and there is no signing key.
        """
        if self.signer is None and self.policy == "require":
            raise Untrusted(
                reason="no_signing_key",
                what=f"{kind} {key[:12]}",
                where="this process",
                detail="the trust policy is 'require', and no signing key is configured",
                remedy="set trust.signing_key, or let a publisher that has one publish",
            )
        signature = None
        if self.signer is not None:
            value = self.signer.private_key.sign(signed_message(kind, key, payload)).hex()
            own_id = key_id(self.signer.public_key)
            signature = Signature(name=self.signer.name, key_id=own_id, value=value)
        return Envelope(kind=kind, key=key, payload=payload, signature=signature).to_bytes()

    def open_envelope(self, kind: DocumentKind, key: str, data: bytes, *, where: str = "memory") -> bytes:
        """Unwrap the document that was asked for as ``kind`` and ``key``.

        Raises:
            Corrupt: no envelope, or not the payload that it was made for.
            NewerFormat: a later release wrote it.
            Untrusted: made for another kind or key, or refused by the policy.
        """
        what = f"{kind} {key[:12]}"
        envelope = parse_envelope(data, what=what, where=where)
        if (envelope.kind, envelope.key) != (kind, key):
            raise Untrusted(
                reason="replayed",
                what=what,
                where=where,
                detail=f"it was made for {envelope.kind[:80]!r} {envelope.key[:80]!r}",
                remedy="somebody copied it there; publish again",
            )
        if self.policy != "off" and (refusal := self._refusal(envelope, what=what, where=where)):
            if self.policy == "require" or refusal.reason == "bad_signature":
                raise refusal
            logger.warning("Taken all the same under trust policy 'warn': %s", refusal)
        return envelope.payload

    def _refusal(self, envelope: Envelope, *, what: str, where: str) -> Untrusted | None:
        signature = envelope.signature
        if signature is None:
            return Untrusted(
                reason="unsigned",
                what=what,
                where=where,
                detail="it carries no signature",
                remedy="publish again with trust.signing_key set; a store of your own may use policy 'off'",
            )
        public_key = self._public_key(signature.key_id)
        if public_key is None:
            known = ", ".join(sorted(self.trusted)) or "none"
            return Untrusted(
                reason="unknown_signer",
                what=what,
                where=where,
                detail=f"signed by {signature.name[:80]!r}, key {signature.key_id[:32]!r}; trusted: {known}",
                remedy="add that public key to trust.trusted_keys if you trust it",
            )
        try:
            message = signed_message(envelope.kind, envelope.key, envelope.payload)
            public_key.verify(bytes.fromhex(signature.value), message)
        except InvalidSignature:
            return Untrusted(
                reason="bad_signature",
                what=what,
                where=where,
                detail=f"the signature of {signature.name[:80]!r} does not fit the contents",
                remedy="it was changed after it was signed; publish again",
            )
        return None

    def _public_key(self, wanted_id: str) -> Ed25519PublicKey | None:
        own = [self.signer.public_key] if self.signer else []
        return next((key for key in (*self.trusted.values(), *own) if key_id(key) == wanted_id), None)


def load_trust(
    policy: TrustPolicy, *, signing_key: Path | None = None, trusted_keys: Mapping[str, Path] | None = None
) -> Trust:
    """Read the key files that a configuration names.

    Raises:
        Corrupt: a file holds no such key.
        UnusableCache: a file cannot be read, or a private key is not private.
    """
    return Trust(
        policy=policy,
        signer=load_signer(signing_key) if signing_key else None,
        trusted={name: load_public_key(path) for name, path in (trusted_keys or {}).items()},
    )
