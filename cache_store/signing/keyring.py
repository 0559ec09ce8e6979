"""A user's keys in one directory: those that sign, those that are trusted, and those that are revoked.

Layout::

    <keyring>/
      NAME.pem                private keys (0600)
      trusted/NAME.pub.pem    public keys that are believed
      revoked/KEY_ID.json     see `cache_store.signing.revocations`

Invariants: what is in it decides whose code runs, so whatever somebody but this user and root could have
written is refused; a key file is never overwritten; a revocation is never lost, also to another process that
revokes at the same time, on another node, where locks do nothing.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from filelock import FileLock

from warmrank.cache_store.errors import Conflict, UnusableCache
from warmrank.cache_store.node.private_files import (
    check_parents,
    make_private_directories,
    os_errors_are_unusable,
)
from warmrank.cache_store.signing.revocations import (
    Revocation,
    read_revocation,
    read_revoked,
    write_revocation,
)
from warmrank.cache_store.signing.signing_keys import (
    Signer,
    generate_key_pair,
    key_id,
    load_public_key,
    save_private_key,
    save_public_key,
)

logger = logging.getLogger(__name__)

TRUSTED, REVOKED = "trusted", "revoked"
PRIVATE_SUFFIX, PUBLIC_SUFFIX = ".pem", ".pub.pem"
_LOCK_TIMEOUT_S = 10.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_KEY_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyring:
    """What a keyring says of whom to believe."""

    trusted: Mapping[str, Ed25519PublicKey] = field(default_factory=dict)
    revoked: Mapping[str, Revocation] = field(default_factory=dict)


def is_key_id(text: str) -> bool:
    """Whether this is the id of a key, as `signing_keys.key_id` spells it."""
    return _KEY_ID.fullmatch(text) is not None


def name_fault(name: str) -> str | None:
    """Say why a key of a keyring cannot have this name; None when it can."""
    if _NAME.fullmatch(name) is None:
        return "is not 1 to 64 letters, digits, '.', '-' or '_', the first a letter or digit"
    if name.endswith((".pem", ".pub")):
        return "ends as a file name does"
    return "looks like the id of a key" if is_key_id(name) else None


def private_path(keyring: Path, name: str) -> Path:
    """Where the private key of that name stands; raises ``ValueError`` for what is no name."""
    return keyring / f"{_checked(name)}{PRIVATE_SUFFIX}"


def public_path(keyring: Path, name: str) -> Path:
    """Where the trusted public key of that name stands; raises ``ValueError`` for what is no name."""
    return keyring / TRUSTED / f"{_checked(name)}{PUBLIC_SUFFIX}"


def read_keyring(path: Path) -> Keyring:
    """Read whom a keyring trusts and what it revokes; one that is not there is empty.

    Raises:
        Corrupt: a file of it is damaged.
        UnusableCache: it cannot be read, or somebody but this user and root could have written it.
    """
    if not _is_usable_directory(path):
        return Keyring()
    trusted = {}
    if _is_usable_directory(path / TRUSTED):
        with os_errors_are_unusable("directory", path / TRUSTED):
            files = sorted(file for file in (path / TRUSTED).iterdir() if not file.name.startswith("."))
        for file in files:
            if file.name.endswith(PUBLIC_SUFFIX):
                trusted[file.name.removesuffix(PUBLIC_SUFFIX)] = load_public_key(file)
            else:
                logger.warning("Not trusted: %s; expected a name such as NAME%s", file, PUBLIC_SUFFIX)
    revoked = read_revoked(path / REVOKED) if _is_usable_directory(path / REVOKED) else {}
    return Keyring(trusted=trusted, revoked=revoked)


def private_keys(keyring: Path) -> tuple[Path, ...]:
    """The files of private keys of a keyring, sorted; raises `UnusableCache`."""
    if not _is_usable_directory(keyring):
        return ()
    with os_errors_are_unusable("directory", keyring):
        return tuple(
            path
            for path in sorted(keyring.iterdir())
            if path.name.endswith(PRIVATE_SUFFIX) and not path.name.endswith(PUBLIC_SUFFIX)
        )


def generate(keyring: Path, name: str) -> Signer:
    """Make a key pair in a keyring, which is made if need be, and trust its public half.

    Raises:
        Conflict: there is a key of that name; nothing is changed.
        UnusableCache: the keyring cannot be written, or others can write it.
        ValueError: the name is none.
    """
    signer = generate_key_pair(name)
    private, public = private_path(keyring, name), public_path(keyring, name)
    with _changing(keyring):
        for path in (private, public):
            if path.exists():
                raise _taken(path, "choose another name; a key is never overwritten")
        save_private_key(signer, private)
        save_public_key(signer.public_key, public)
    return signer


def trust_key(keyring: Path, name: str, public_key: Ed25519PublicKey) -> bool:
    """Trust a public key under a name; False when it is trusted so already.

    Raises:
        Conflict: another key has that name, or the key is revoked; nothing is changed.
        UnusableCache: the keyring cannot be written, or others can write it.
        ValueError: the name is none.
    """
    path, wanted = public_path(keyring, name), key_id(public_key)
    with _changing(keyring):
        ring = read_keyring(keyring)
        if revocation := ring.revoked.get(wanted):
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
    """Revoke a key, known here or not.

    Returns:
        The revocation that counts, which is the first one of a key, and whether it is new.

    Raises:
        Corrupt: the revocation of this key is damaged.
        UnusableCache: the keyring cannot be written, or others can write it.
    """
    with _changing(keyring):
        is_new = write_revocation(keyring / REVOKED, revocation)
        standing = read_revocation(keyring / REVOKED, revocation.key_id)
    return standing or revocation, is_new


def _checked(name: str) -> str:
    if fault := name_fault(name):
        raise ValueError(f"key name {name!r} {fault}")
    return name


def _is_usable_directory(path: Path) -> bool:
    check_parents(path)  # first: who can take it away makes it one that is not there
    with os_errors_are_unusable("directory", path):
        try:
            status = path.stat()
        except FileNotFoundError:
            return False
    if not stat.S_ISDIR(status.st_mode):
        expected, actual, remedy = "a directory", stat.filemode(status.st_mode), "name another keyring"
    elif status.st_uid not in (os.geteuid(), 0):
        expected, actual = f"owner uid {os.geteuid()} or root", f"uid {status.st_uid}"
        remedy = "name a keyring of your own"
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        expected, actual = "not writable by group or others", f"mode {stat.S_IMODE(status.st_mode):04o}"
        remedy = f"check what is in it, then chmod 700 {path}"
    else:
        return True
    raise UnusableCache(what="keyring", where=str(path), expected=expected, actual=actual, remedy=remedy)


@contextmanager
def _changing(keyring: Path) -> Iterator[None]:
    """Hold the keyring for a change; makes its directories."""
    with os_errors_are_unusable("keyring", keyring):
        make_private_directories(keyring / TRUSTED)
        make_private_directories(keyring / REVOKED)
    for directory in (keyring, keyring / TRUSTED, keyring / REVOKED):
        _is_usable_directory(directory)
    lock = FileLock(keyring / ".lock", timeout=_LOCK_TIMEOUT_S, mode=0o600, fallback_to_soft=False)
    with os_errors_are_unusable("keyring", keyring), lock:
        yield


def _taken(path: Path, remedy: str) -> Conflict:
    return Conflict(what="key file", where=str(path), expected="no such file", actual="a file", remedy=remedy)
