"""Keys that are not to be believed any more, and the file that lists them.

Layout: canonical JSON::

    {"format":1,"revoked":{"<key id>":{"name":"ci","reason":"...","when":"2026-01-31T12:00:00+00:00"}}}

Invariants: a damaged file is an error, never an empty list; the file is replaced whole or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from cache_store.canonical import canonical_json
from cache_store.errors import Corrupt
from cache_store.node.private_files import create_private, sync_directory, temporary_name
from cache_store.parsing import parse_document
from cache_store.signing.signing_keys import read_vouched

REVOKED_FORMAT: Final = 1
_MAX_BYTES = 1 << 20


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


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    reason: str
    when: str


class _RevokedFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    format: Literal[1] = REVOKED_FORMAT
    revoked: dict[Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")], _Entry]


def revocation_of(wanted: str, *, name: str, reason: str, now: datetime) -> Revocation:
    """A revocation made at ``now``, an aware time."""
    return Revocation(key_id=wanted, name=name, reason=reason, when=now.isoformat(timespec="seconds"))


def read_revoked(path: Path) -> dict[str, Revocation]:
    """Read revocations by key id; none where there is no file.

    Raises:
        Corrupt: it is damaged.
        UnusableCache: it cannot be read, or somebody but this user and root could have written it.
    """
    data = read_vouched(path, limit_bytes=_MAX_BYTES)
    if data is None:
        return {}
    try:
        parsed = parse_document(
            _RevokedFile, data, supported_format=REVOKED_FORMAT, what="list of revoked keys", where=str(path)
        )
    except Corrupt as error:
        remedy = "restore it, or write it anew with warmrank keys revoke after moving it away"
        raise Corrupt(
            what=error.what, where=error.where, expected=error.expected, actual=error.actual, remedy=remedy
        ) from error
    return {
        wanted: Revocation(key_id=wanted, name=entry.name, when=entry.when, reason=entry.reason)
        for wanted, entry in parsed.revoked.items()
    }


def write_revoked(path: Path, revoked: Mapping[str, Revocation]) -> None:
    """Replace the file of revocations in one step; durable on return; raises ``OSError``."""
    entries = {
        wanted: {"name": item.name, "reason": item.reason, "when": item.when}
        for wanted, item in revoked.items()
    }
    temporary = path.parent / f".{temporary_name()}.tmp"
    try:
        with create_private(temporary) as file:
            file.write(canonical_json({"format": REVOKED_FORMAT, "revoked": entries}))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
