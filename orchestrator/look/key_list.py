"""What a keyring holds, key by key, and which key a word of the user means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from warmrank.cache_store.errors import StoreError
from warmrank.cache_store.signing.keyring import (
    PUBLIC_SUFFIX,
    TRUSTED,
    Revocation,
    is_key_id,
    private_keys,
    read_keyring,
)
from warmrank.cache_store.signing.signing_keys import key_id, load_signer, read_any_key


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLine:
    """One key.

    Attributes:
        name: what it is called here; empty where it is only known as revoked.
        key_id: its id.
        own: its private half is here, so it can sign.
        trusted: its public half is here, and it is not revoked.
        revoked: since when and why it is not to be believed; none where it is.
        files: where its halves stand.
    """

    name: str
    key_id: str
    own: bool
    trusted: bool
    revoked: Revocation | None
    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyList:
    """All keys of a keyring.

    Attributes:
        keyring: the directory.
        keys: by name.
        problems: private keys that cannot be used, one line each.
    """

    keyring: Path
    keys: tuple[KeyLine, ...]
    problems: tuple[str, ...]


def list_keys(keyring: Path) -> KeyList:
    """Read a keyring; raises `cache_store.errors.StoreError` when it cannot be believed."""
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


def meant_keys(found: KeyList, text: str) -> tuple[tuple[str, str], ...]:
    """Name and id of each key that a name, an id or a file of a key may mean."""
    if is_key_id(text):
        names = [line.name for line in found.keys if line.key_id == text]
        return ((names[0] if names else "", text),)
    if "/" in text or text.endswith(".pem"):
        path = Path(text).expanduser()
        wanted = key_id(read_any_key(path))
        return ((next(_names(found, wanted), path.name.removesuffix(".pem").removesuffix(".pub")), wanted),)
    ids = sorted({line.key_id for line in found.keys if line.name == text})
    return tuple((text, wanted) for wanted in ids)


def _names(found: KeyList, wanted: str) -> Iterator[str]:
    return (line.name for line in found.keys if line.key_id == wanted)
