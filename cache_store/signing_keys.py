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

from cache_store.errors import Conflict, Corrupt, UnusableCache
from cache_store.paths import part_fault
from cache_store.private_files import (
    create_private,
    make_private_directories,
    open_private,
    os_errors_are_unusable,
)

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


def save_key_pair(signer: Signer, directory: Path) -> tuple[Path, Path]:
    """Write ``<name>.pem`` (private, 0600) and ``<name>.pub.pem``.

    Returns:
        Both paths, the private key's first.

    Raises:
        Conflict: one of the files exists; neither is changed.
        UnusableCache: they cannot be written.
    """
    private_path, public_path = directory / f"{signer.name}.pem", directory / f"{signer.name}.pub.pem"
    private_pem = signer.private_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public_pem = signer.public_key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for path in (private_path, public_path):
        if path.exists():
            raise Conflict(
                what="key file",
                where=str(path),
                expected="no such file",
                actual="a file",
                remedy="choose another name; a key is never overwritten",
            )
    with os_errors_are_unusable("directory", directory):
        make_private_directories(directory)
        _write_new(private_path, private_pem)
        _write_new(public_path, public_pem)
        public_path.chmod(0o644)
    return private_path, public_path


def load_signer(path: Path, *, name: str = "") -> Signer:
    """Read a private key; its name is the file's stem unless given.

    Raises:
        Corrupt: no unencrypted Ed25519 private key in PEM.
        UnusableCache: it is not there, or others could have read or changed it.
    """
    with os_errors_are_unusable("file", path), open_private(path) as file:
        data = file.read(_MAX_PEM_BYTES)
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _no_key("private key", path, str(error)) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _no_key("private key", path, type(key).__name__)
    return Signer(name=name or path.stem, private_key=key)


def load_public_key(path: Path) -> Ed25519PublicKey:
    """Read a public key.

    Raises:
        Corrupt: no Ed25519 public key in PEM.
        UnusableCache: it cannot be read, or somebody but this user and root could have written it.
    """
    with os_errors_are_unusable("file", path), path.open("rb") as file:
        _check_owned(path, os.fstat(file.fileno()))
        data = file.read(_MAX_PEM_BYTES)
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _no_key("public key", path, str(error)) from error
    if not isinstance(key, Ed25519PublicKey):
        raise _no_key("public key", path, type(key).__name__)
    return key


def _write_new(path: Path, data: bytes) -> None:
    with create_private(path) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _check_owned(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in (os.geteuid(), 0):
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
        remedy="write one with cache_store.save_key_pair or 'openssl genpkey -algorithm ed25519'",
    )
