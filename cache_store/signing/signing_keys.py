"""Ed25519 key pairs and their PEM files.

Layout: the private key as unencrypted PKCS#8 PEM in a private file (0600, own user), the public key as
SubjectPublicKeyInfo PEM beside it; what ``openssl genpkey -algorithm ed25519`` and ``openssl pkey -pubout``
write.

Invariants: a key file is created, never overwritten; a private key that others could read is refused,
and a public key that others could write, because it decides whose code runs.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from warmrank.cache_store.cache_dir.private_files import (
    FILE_MODE,
    check_parents,
    create_private,
    make_private_directories,
    open_private,
    os_errors_are_unusable,
    sync_directory,
    temporary_name,
)
from warmrank.cache_store.errors import Corrupt, UnusableCache
from warmrank.cache_store.paths import part_fault

_MAX_PEM_BYTES = 16 << 10


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


def key_id(public_key: Ed25519PublicKey) -> str:
    """Short name of a public key: the first 32 hex characters of its SHA-256."""
    return hashlib.sha256(public_key.public_bytes_raw()).hexdigest()[:32]


def generate_key_pair(name: str) -> Signer:
    """Make a new key pair."""
    return Signer(name=name, private_key=Ed25519PrivateKey.generate())


def save_private_key(signer: Signer, path: Path) -> None:
    """Write a private key (0600); raises `UnusableCache`, also when the file exists."""
    pem = signer.private_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with os_errors_are_unusable("file", path):
        write_new(path, pem)


def save_public_key(public_key: Ed25519PublicKey, path: Path) -> None:
    """Write a public key (0644); raises `UnusableCache`, also when the file exists."""
    pem = public_key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    with os_errors_are_unusable("file", path):
        write_new(path, pem, mode=0o644)


def load_signer(path: Path, *, name: str = "") -> Signer:
    """Read a private key; its name is the file's stem unless given.

    Raises:
        Corrupt: no unencrypted Ed25519 private key in PEM.
        UnusableCache: it is not there, or others could have read or changed it.
    """
    with os_errors_are_unusable("file", path):
        try:
            file = open_private(path)
        except FileNotFoundError as error:
            raise _not_there(path) from error
        with file:
            data = file.read(_MAX_PEM_BYTES)
    check_parents(path)
    return Signer(name=name or path.stem, private_key=_private_key(path, data))


def load_public_key(path: Path) -> Ed25519PublicKey:
    """Read a public key.

    Raises:
        Corrupt: no Ed25519 public key in PEM.
        UnusableCache: it cannot be read, or somebody but this user and root could have written it.
    """
    data = read_vouched(path, limit_bytes=_MAX_PEM_BYTES)
    if data is None:
        raise _not_there(path)
    return _public_key(path, data)


def read_any_key(path: Path) -> Ed25519PublicKey:
    """Read the public half of a public or private key, whoever wrote the file: enough to revoke it.

    Raises:
        Corrupt: no Ed25519 key in PEM.
        UnusableCache: it cannot be read.
    """
    with os_errors_are_unusable("file", path), path.open("rb") as file:
        data = file.read(_MAX_PEM_BYTES)
    return _private_key(path, data).public_key() if b"PRIVATE KEY" in data else _public_key(path, data)


def read_vouched(path: Path, *, limit_bytes: int) -> bytes | None:
    """Read a file that decides whose code runs; None when it is not there.

    Raises:
        Corrupt: it is larger than ``limit_bytes``.
        UnusableCache: it cannot be read, or somebody but this user and root could have written it.
    """
    check_parents(path)  # first: who can take it away makes it one that is not there
    with os_errors_are_unusable("file", path):
        try:
            # Without O_NONBLOCK the open itself would wait at a named pipe.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            _check_owned(path, os.fstat(file.fileno()))
            data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        expected, remedy = f"at most {limit_bytes} bytes", "name another file"
        raise Corrupt(what="file", where=str(path), expected=expected, actual="more", remedy=remedy)
    return data


def write_new(path: Path, data: bytes, *, mode: int = FILE_MODE) -> None:
    """Create a file whole, because a launch may read the directory at any moment; durable on return.

    Raises:
        OSError: it exists, or cannot be written.
    """
    temporary = path.parent / f".{temporary_name()}.tmp"
    make_private_directories(path.parent)
    try:
        with create_private(temporary) as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def _private_key(path: Path, data: bytes) -> Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _no_key("private key", path, str(error)) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _no_key("private key", path, type(key).__name__)
    return key


def _public_key(path: Path, data: bytes) -> Ed25519PublicKey:
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _no_key("public key", path, str(error)) from error
    if not isinstance(key, Ed25519PublicKey):
        raise _no_key("public key", path, type(key).__name__)
    return key


def _check_owned(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        expected, actual, remedy = "a regular file", stat.filemode(status.st_mode), f"remove {path}"
    elif status.st_uid not in (os.geteuid(), 0):
        expected, actual = f"owner uid {os.geteuid()} or root", f"uid {status.st_uid}"
        remedy = "copy it to a file of your own once you know whose key it is"
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        expected, actual = "not writable by group or others", f"mode {stat.S_IMODE(status.st_mode):04o}"
        remedy = f"check whose key it is, then chmod 644 {path}"
    else:
        return
    raise UnusableCache(what="file", where=str(path), expected=expected, actual=actual, remedy=remedy)


def _no_key(what: str, path: Path, actual: str) -> Corrupt:
    return Corrupt(
        what=what,
        where=str(path),
        expected=f"an unencrypted Ed25519 {what} in PEM",
        actual=actual,
        remedy="make one with warmrank keys generate or 'openssl genpkey -algorithm ed25519'",
    )


def _not_there(path: Path) -> UnusableCache:
    return UnusableCache(
        what="key file",
        where=str(path),
        expected="a key in PEM",
        actual="No such file or directory",
        remedy="correct the path, or make a key with warmrank keys generate",
    )
