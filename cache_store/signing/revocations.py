"""Keys that are not to be believed any more, and the directory that lists them.

Layout: one file for each key, named by its id, so that no lock is needed to keep those of others::

    revoked/<key id>.json      {"format":1,"name":"ci","reason":"...","when":"2026-01-31T12:00:00+00:00"}

Invariants: a file is created whole or not at all, and never overwritten, so the first revocation of a key
counts; a damaged file, or one whose name is no key's, is an error, never passed over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from warmrank.cache_store.canonical import canonical_json
from warmrank.cache_store.errors import Corrupt
from warmrank.cache_store.node.private_files import os_errors_are_unusable
from warmrank.cache_store.parsing import parse_document
from warmrank.cache_store.signing.signing_keys import read_vouched, write_new

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
    found = (_read(path) for path in paths)
    return {revocation.key_id: revocation for revocation in found if revocation}


def read_revocation(directory: Path, key_id: str) -> Revocation | None:
    """The revocation of one key, None where there is none; raises as `read_revoked`."""
    return _read(directory / f"{key_id}.json")


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


def _read(path: Path) -> Revocation | None:
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
        raise replace(error, remedy=remedy) from error
    return Revocation(key_id=match[1], name=item.name, when=item.when, reason=item.reason)
