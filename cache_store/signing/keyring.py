"""Ed25519 keys in PEM files, and a user's keyring: the keys that sign, those trusted, those revoked.

Layout::

    <keyring>/
      NAME.pem                private keys (0600), PKCS#8, as ``openssl genpkey -algorithm ed25519`` writes
      trusted/NAME.pub.pem    public keys that are believed, as ``openssl pkey -pubout`` writes
      revoked/KEY_ID.json     {"format":1,"name":"ci","reason":"...","when":"2026-01-31T12:00:00+00:00"}

Whatever somebody but this user and root could have written is refused, and a private key that others could
read. Files are created whole and never overwritten, one for each key, so no revocation is lost and no lock is
needed; a damaged one is an error, never passed over.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from warmrank.cache_store.cache_dir.private_files import (
    check_parents,
    check_status,
    make_private_directories,
    open_private,
    os_errors_are_unusable,
    write_whole,
)
from warmrank.cache_store.canonical import canonical_json
from warmrank.cache_store.errors import Conflict, Corrupt, StoreError, UnusableCache
from warmrank.cache_store.parsing import Strict, parse_document
from warmrank.cache_store.paths import part_fault

logger = logging.getLogger(__name__)
TRUSTED, REVOKED = "trusted", "revoked"
PRIVATE_SUFFIX, PUBLIC_SUFFIX = ".pem", ".pub.pem"
_BAD_PEM = (ValueError, TypeError, UnsupportedAlgorithm)
_MAX_PEM_BYTES = 16 << 10
_MAX_REVOCATION_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_KEY_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_FILE_REMEDY = ("check whose key it is, then copy it to a file of your own", "chmod 644")
_DIRECTORY_REMEDY = ("name a keyring of your own", "check what is in it, then chmod 700")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """A private key and the name that people know it by; never written into a store."""

    name: str
    private_key: Ed25519PrivateKey

    def __post_init__(self) -> None:
        if fault := part_fault(self.name):
            raise ValueError(f"signer's name {self.name!r} {fault}")

    @property
    def public_key(self) -> Ed25519PublicKey:
        """The public half."""
        return self.private_key.public_key()


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation:
    """A key that is not to be believed any more; all but its id may be empty."""

    key_id: str
    name: str = ""  # what it was called here
    when: str = ""  # UTC
    reason: str = ""

    def __str__(self) -> str:
        """For the middle of a sentence."""
        return f"revoked{f' on {self.when}' if self.when else ''}{f' ({self.reason})' if self.reason else ''}"


class _RevokedFile(Strict):
    format: Literal[1] = 1
    name: str
    reason: str
    when: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyring:
    """Trusted public keys by name, and revocations by key id."""

    trusted: Mapping[str, Ed25519PublicKey] = field(default_factory=dict)
    revoked: Mapping[str, Revocation] = field(default_factory=dict)


def key_id(public_key: Ed25519PublicKey) -> str:
    """Short name of a public key: the first 32 hex characters of its SHA-256."""
    return hashlib.sha256(public_key.public_bytes_raw()).hexdigest()[:32]


def is_key_id(text: str) -> bool:
    """Return True for the id of a key, as `key_id` spells it."""
    return _KEY_ID.fullmatch(text) is not None


def name_fault(name: str) -> str | None:
    """Say why a key of a keyring cannot have this name; None when it can."""
    if _NAME.fullmatch(name) is None:
        return "is not 1 to 64 letters, digits, '.', '-' or '_', the first a letter or digit"
    if name.endswith((".pem", ".pub")):
        return "ends as a file name does"
    return "looks like the id of a key" if is_key_id(name) else None


def private_path(keyring: Path, name: str) -> Path:
    """File of the private key of that name; raises ``ValueError`` for what is no name."""
    if fault := name_fault(name):
        raise ValueError(f"key name {name!r} {fault}")
    return keyring / f"{name}{PRIVATE_SUFFIX}"


def public_path(keyring: Path, name: str) -> Path:
    """File of the trusted public key of that name; raises ``ValueError`` for what is no name."""
    return private_path(keyring / TRUSTED, name).with_name(f"{name}{PUBLIC_SUFFIX}")


def generate_key_pair(name: str) -> Signer:
    """Make a new key pair."""
    return Signer(name=name, private_key=Ed25519PrivateKey.generate())


def save_private_key(signer: Signer, path: Path) -> None:
    """Write a private key (0600); raises `UnusableCache`, also when the file exists."""
    pem = signer.private_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with os_errors_are_unusable("file", path, setting="keyring"):
        write_whole(path, pem, replace=False)


def save_public_key(public_key: Ed25519PublicKey, path: Path) -> None:
    """Write a public key (0644); raises `UnusableCache`, also when the file exists."""
    pem = public_key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    with os_errors_are_unusable("file", path, setting="keyring"):
        write_whole(path, pem, replace=False, mode=0o644)


def load_signer(path: Path) -> Signer:
    """Read a private key, which goes by the file's stem."""
    with os_errors_are_unusable("file", path):
        try:
            with open_private(path) as file:
                data = file.read(_MAX_PEM_BYTES)
        except FileNotFoundError as error:
            raise _not_there(path) from error
    check_parents(path)
    return Signer(name=path.stem, private_key=_private_key(path, data))


def load_public_key(path: Path) -> Ed25519PublicKey:
    """Read a public key; raises `Corrupt` where it is none, `UnusableCache` where others could write it."""
    data = _read_vouched(path, limit_bytes=_MAX_PEM_BYTES)
    if data is None:
        raise _not_there(path)
    return _public_key(path, data)


def read_any_key(path: Path) -> Ed25519PublicKey:
    """Read the public half of a public or private key, whoever wrote the file: enough to revoke it."""
    with os_errors_are_unusable("file", path), path.open("rb") as file:
        data = file.read(_MAX_PEM_BYTES)
    return _private_key(path, data).public_key() if b"PRIVATE KEY" in data else _public_key(path, data)


def read_keyring(path: Path) -> Keyring:
    """Read whom a keyring trusts and what it revokes; one that is not there is empty."""
    trusted: dict[str, Ed25519PublicKey] = {}
    if not _is_usable_directory(path):
        return Keyring()
    for file in _files(path / TRUSTED):
        if file.name.endswith(PUBLIC_SUFFIX):
            trusted[file.name.removesuffix(PUBLIC_SUFFIX)] = load_public_key(file)
        else:
            logger.warning("Not trusted: %s; expected a name such as NAME%s", file, PUBLIC_SUFFIX)
    found = (_read_revocation(file) for file in _files(path / REVOKED))
    return Keyring(trusted=trusted, revoked={item.key_id: item for item in found if item})


def generate(keyring: Path, name: str) -> Signer:
    """Make a key pair in a keyring, which is made if need be, and trust its public half.

    A private key without its public half, as a kill between the two leaves it, gets that half and stays.

    Raises:
        Conflict: there is a pair of that name, or the key is revoked; nothing is changed.
        ValueError: the name is none.
    """
    private, public = private_path(keyring, name), public_path(keyring, name)
    _prepare(keyring)
    if public.exists():
        raise _taken(public, "choose another name; a key is never overwritten")
    if private.exists():
        signer = load_signer(private)
    else:
        signer = generate_key_pair(name)
        try:
            save_private_key(signer, private)
        except UnusableCache as error:
            if private.exists():
                raise _taken(private, "another command made it just now; run this again") from error
            raise
    trust_key(keyring, name, signer.public_key)
    return signer


def trust_key(keyring: Path, name: str, public_key: Ed25519PublicKey) -> bool:
    """Trust a public key under a name; False when it is trusted so already.

    Raises:
        Conflict: another key has that name, or the key is revoked; nothing is changed.
        ValueError: the name is none.
    """
    path, wanted = public_path(keyring, name), key_id(public_key)
    _prepare(keyring)
    if revocation := read_keyring(keyring).revoked.get(wanted):
        raise Conflict(
            what=f"key {wanted}",
            where=str(keyring),
            expected="a key that is not revoked",
            actual=str(revocation),
            remedy=f"ask for a new key; revocation wins, until {REVOKED}/{wanted}.json is removed",
        )
    if path.exists():
        if key_id(load_public_key(path)) == wanted:
            return False
        raise _taken(path, "it is another key; choose another name with --name")
    save_public_key(public_key, path)
    return True


def revoke(keyring: Path, revocation: Revocation) -> tuple[Revocation, bool]:
    """Revoke a key, known here or not; return the first revocation, which counts, and whether it is new."""
    item = _RevokedFile(name=revocation.name, reason=revocation.reason, when=revocation.when)
    path = keyring / REVOKED / f"{revocation.key_id}.json"
    _prepare(keyring)
    is_new = True
    with os_errors_are_unusable("keyring", keyring, setting="keyring"):
        try:
            write_whole(path, canonical_json(item.model_dump(mode="json")), replace=False)
        except FileExistsError:
            is_new = False
    return _read_revocation(path) or revocation, is_new


def _read_revocation(path: Path) -> Revocation | None:
    data = _read_vouched(path, limit_bytes=_MAX_REVOCATION_BYTES)
    if data is None:
        return None
    what, remedy = "revocation", "restore it, or revoke the key anew after moving it away"
    if path.suffix != ".json" or not is_key_id(path.stem):
        expected = "a name such as <key id>.json"
        raise Corrupt(what=what, where=str(path), expected=expected, actual="another", remedy=remedy)
    try:
        item = parse_document(_RevokedFile, data, what=what, where=str(path))
    except Corrupt as error:
        raise error.but(remedy=remedy) from error
    return Revocation(key_id=path.stem, name=item.name, when=item.when, reason=item.reason)


def _files(directory: Path) -> list[Path]:
    """Files that are not hidden, sorted; none where there is no directory."""
    if not _is_usable_directory(directory):
        return []
    with os_errors_are_unusable("directory", directory):
        return sorted(path for path in directory.iterdir() if not path.name.startswith("."))


def _is_usable_directory(path: Path) -> bool:
    check_parents(path)  # first: who can take it away makes it one that is not there
    with os_errors_are_unusable("directory", path):
        try:
            status = path.stat()
        except FileNotFoundError:
            return False
    check_status(path, status, what="keyring", remedy=_DIRECTORY_REMEDY, directory=True, root_too=True)
    return True


def _prepare(keyring: Path) -> None:
    """Make a keyring's directories; no lock is needed, as no file is ever overwritten."""
    for directory in (keyring, keyring / TRUSTED, keyring / REVOKED):
        with os_errors_are_unusable("keyring", directory, setting="keyring"):
            make_private_directories(directory)
        _is_usable_directory(directory)


def _read_vouched(path: Path, *, limit_bytes: int) -> bytes | None:
    """Read a file that decides whose code runs; None when it is not there."""
    check_parents(path)  # first: who can take it away makes it one that is not there
    with os_errors_are_unusable("file", path):
        try:
            # Without O_NONBLOCK the open itself would wait at a named pipe.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            check_status(path, os.fstat(descriptor), what="file", remedy=_FILE_REMEDY, root_too=True)
            data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        expected, remedy = f"at most {limit_bytes} bytes", "name another file"
        raise Corrupt(what="file", where=str(path), expected=expected, actual="more", remedy=remedy)
    return data


def _private_key(path: Path, data: bytes) -> Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except _BAD_PEM as error:
        raise _no_key("private key", path, _label(data)) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _no_key("private key", path, type(key).__name__)
    return key


def _public_key(path: Path, data: bytes) -> Ed25519PublicKey:
    try:
        key = serialization.load_pem_public_key(data)
    except _BAD_PEM as error:
        raise _no_key("public key", path, _label(data)) from error
    if not isinstance(key, Ed25519PublicKey):
        raise _no_key("public key", path, type(key).__name__)
    return key


def _label(data: bytes) -> str:
    """Contents of a PEM file that cannot be used, by its label."""
    found = re.search(rb"^-----BEGIN ([A-Z0-9 ]{1,40})-----", data, re.MULTILINE)
    return f"an unusable {found[1].decode()}" if found else "no PEM"


def _no_key(what: str, path: Path, actual: str) -> Corrupt:
    expected = f"an unencrypted Ed25519 {what} in PEM"
    remedy = "put one there, or remove the file; warmrank keys generate makes a key"
    return Corrupt(what=what, where=str(path), expected=expected, actual=actual, remedy=remedy)


def _not_there(path: Path) -> UnusableCache:
    return UnusableCache(
        what="key file",
        where=str(path),
        expected="a key in PEM",
        actual="No such file or directory",
        remedy="correct the path, or make a key with warmrank keys generate",
    )


def _taken(path: Path, remedy: str) -> Conflict:
    return Conflict(what="key file", where=str(path), expected="no such file", actual="a file", remedy=remedy)


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
    for path in _files(keyring):
        if not path.name.endswith(PRIVATE_SUFFIX) or path.name.endswith(PUBLIC_SUFFIX):
            continue
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
