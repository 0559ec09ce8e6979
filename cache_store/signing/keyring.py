"""A user's keys in one directory: those that sign, those that are trusted, and those that are revoked.

Layout::

    <keyring>/
      NAME.pem                private keys (0600)
      trusted/NAME.pub.pem    public keys that are believed
      revoked/KEY_ID.json     {"format":1,"name":"ci","reason":"...","when":"2026-01-31T12:00:00+00:00"}

Whatever somebody but this user and root could have written is refused. Files are created whole and never
overwritten, one for each key, so no revocation is lost, also where locks do nothing; a damaged one is an
error, never passed over.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from filelock import FileLock
from pydantic import BaseModel, ConfigDict

from warmrank.cache_store.cache_dir.private_files import (
    check_parents,
    make_private_directories,
    os_errors_are_unusable,
)
from warmrank.cache_store.errors import Conflict, Corrupt, UnusableCache
from warmrank.cache_store.keys import canonical_json
from warmrank.cache_store.parsing import parse_document
from warmrank.cache_store.signing.signing_keys import (
    Signer,
    generate_key_pair,
    key_id,
    load_public_key,
    read_vouched,
    save_private_key,
    save_public_key,
    write_new,
)

REVOKED_FORMAT: Final = 1
_MAX_BYTES = 1 << 20
_FILE = re.compile(r"([0-9a-f]{32})\.json", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation:
    """That a key is not to be believed any more.

    Attributes:
        key_id: which key.
        name: what it was called here; may be empty.
        when: when it was revoked, in UTC; empty where that is not known.
        reason: why; may be empty.
    """

    key_id: str
    name: str = ""
    when: str = ""
    reason: str = ""

    def __str__(self) -> str:
        """For the middle of a sentence."""
        return f"revoked{f' on {self.when}' if self.when else ''}{f' ({self.reason})' if self.reason else ''}"


class _RevokedFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    format: Literal[1] = REVOKED_FORMAT
    name: str
    reason: str
    when: str


def revocation_of(wanted: str, *, name: str, reason: str, now: datetime) -> Revocation:
    """A revocation made at ``now``, an aware time."""
    return Revocation(key_id=wanted, name=name, reason=reason, when=now.isoformat(timespec="seconds"))


def read_revoked(directory: Path) -> dict[str, Revocation]:
    """Read the revocations of a directory by key id.

    Raises:
        Corrupt: one is damaged.
        UnusableCache: one cannot be read, or somebody but this user and root could have written it.
    """
    with os_errors_are_unusable("directory", directory):
        paths = sorted(path for path in directory.iterdir() if not path.name.startswith("."))
    found = (_read_file(path) for path in paths)
    return {revocation.key_id: revocation for revocation in found if revocation}


def read_revocation(directory: Path, key_id: str) -> Revocation | None:
    """The revocation of one key, None where there is none; raises as `read_revoked`."""
    return _read_file(directory / f"{key_id}.json")


def write_revocation(directory: Path, revocation: Revocation) -> bool:
    """Create the file of a revocation; durable on return.

    Returns:
        False when its key is revoked already; then nothing is changed.

    Raises:
        OSError: it cannot be written.
    """
    item = _RevokedFile(name=revocation.name, reason=revocation.reason, when=revocation.when)
    try:
        write_new(directory / f"{revocation.key_id}.json", canonical_json(item.model_dump(mode="json")))
    except FileExistsError:
        return False
    return True


def _read_file(path: Path) -> Revocation | None:
    data = read_vouched(path, limit_bytes=_MAX_BYTES)
    if data is None:
        return None
    what, remedy = "revocation", "restore it, or revoke the key anew after moving it away"
    match = _FILE.fullmatch(path.name)
    if match is None:
        expected = "a name such as <key id>.json"
        raise Corrupt(what=what, where=str(path), expected=expected, actual="another", remedy=remedy)
    try:
        item = parse_document(_RevokedFile, data, supported_format=REVOKED_FORMAT, what=what, where=str(path))
    except Corrupt as error:
        raise error.but(remedy=remedy) from error
    return Revocation(key_id=match[1], name=item.name, when=item.when, reason=item.reason)


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
