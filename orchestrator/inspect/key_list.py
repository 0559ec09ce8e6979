"""The keys of a keyring one by one, and the key that a word of the user means."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from warmrank.cache_store.errors import StoreError
from warmrank.cache_store.signing.keyring import (
    PUBLIC_SUFFIX,
    TRUSTED,
    Revocation,
    key_id,
    load_signer,
    private_keys,
    read_keyring,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLine:
    """One key."""

    name: str  # empty if it is only known as revoked
    key_id: str
    own: bool  # its private half is here, so it can sign
    trusted: bool  # its public half is here, and it is not revoked
    revoked: Revocation | None
    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyList:
    """All keys of a keyring, by name."""

    keyring: Path
    keys: tuple[KeyLine, ...]
    problems: tuple[str, ...]  # private keys that cannot be used


def list_keys(keyring: Path) -> KeyList:
    """Read a keyring; raises `cache_store.errors.StoreError` if it cannot be believed."""
    ring = read_keyring(keyring)
    problems: list[str] = []
    own: dict[tuple[str, str], Path] = {}
    for path in private_keys(keyring):
        try:
            own[path.stem, key_id(load_signer(path).public_key)] = path
        except StoreError as error:
            problems.append(str(error))
    public = {
        (name, key_id(key)): keyring / TRUSTED / f"{name}{PUBLIC_SUFFIX}"
        for name, key in ring.trusted.items()
    }
    keys = {*own, *public}
    unknown = ring.revoked.keys() - {wanted for _, wanted in keys}
    keys |= {(ring.revoked[wanted].name, wanted) for wanted in unknown}
    lines = [
        KeyLine(
            name=name,
            key_id=wanted,
            own=(name, wanted) in own,
            trusted=(name, wanted) in public and wanted not in ring.revoked,
            revoked=ring.revoked.get(wanted),
            files=tuple(files[name, wanted] for files in (own, public) if (name, wanted) in files),
        )
        for name, wanted in sorted(keys)
    ]
    return KeyList(keyring=keyring, keys=tuple(lines), problems=tuple(problems))
