"""Names in the store; the only place that spells them.

Layout of format 1::

    FORMAT                                          {"digest":"sha256","format":1}
    cas/sha256/ab/<sha256>                          a blob; immutable
    ac/ab/<partition key>                           a sealed partition manifest; create-only, after its blobs
    launch/ab/<launch key>/<sha256 of the record>   a sealed launch record; create-only, after its manifests
    dir/ab/<key>/<sha256 of the document>           a sealed listing of another tool's directory; create-only,
                                                    after its blobs
    used/<YYYY-MM-DD>/<name of a record, / as __>   empty: the record was used on that day
    pins/<name of a record, / as __>                why the record must not be evicted
    tmp/<host>-<pid>-<random>/                      files on their way in
    trash/<YYYYMMDDTHHMMSSZ>/<name>                 what an evict of that time took away, for a while
    quarantine/<name, / as __>.<random>             files found bad, each with a .reason beside it

A *record* is a root of the store: what it names, directly or not, stays. Launch records and listings are
records. Here ``ab`` stands for the first two characters of what follows, so that no directory grows without
bound.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

from warmrank.cache_store.digests import is_sha256

FORMAT_FILE = "FORMAT"
BLOBS = "cas/sha256/"
MANIFESTS = "ac/"
LAUNCHES = "launch/"
DIRECTORIES = "dir/"
USED = "used/"
PINS = "pins/"
TRASH = "trash/"
QUARANTINE = "quarantine/"
TMP = "tmp/"
PROBE = f"{TMP}create-only-probe"  # in an object store only
_PREFIXES = (BLOBS, MANIFESTS, LAUNCHES, DIRECTORIES, USED, PINS, TRASH, QUARANTINE, TMP)
TOP_LEVEL = frozenset({FORMAT_FILE, *(prefix.partition("/")[0] for prefix in _PREFIXES)})
# Number of parts of the names in each room; a deeper directory stands where a file should.
_DEPTHS = {"cas": 4, "ac": 3, "launch": 4, "dir": 4, "used": 3, "pins": 2, "quarantine": 2}
_TRASHED = re.compile(r"trash/([0-9]{8}T[0-9]{6}Z)/(.+)", re.ASCII)
_DAY = re.compile(r"used/([0-9]{4}-[0-9]{2}-[0-9]{2})/([^/]+)", re.ASCII)
_STAMP = "%Y%m%dT%H%M%SZ"


RecordKind = Literal["launch", "directory"]
_RECORDS: Final[dict[RecordKind, str]] = {"launch": LAUNCHES, "directory": DIRECTORIES}


class RecordName(NamedTuple):
    """The parts of a record's name."""

    kind: RecordKind
    key: str
    sha256: str


def blob_name(sha256: str) -> str:
    """Name of a blob; raises ``ValueError`` for what is no sha256."""
    return f"{BLOBS}{_fanned(sha256)}"


def manifest_name(key: str) -> str:
    """Name of a manifest; raises ``ValueError`` for what is no key."""
    return f"{MANIFESTS}{_fanned(key)}"


def record_prefix(kind: RecordKind, key: str) -> str:
    """Prefix of the records of one key; raises ``ValueError`` for what is no key."""
    return f"{_RECORDS[kind]}{_fanned(key)}/"


def record_name(kind: RecordKind, key: str, sha256: str) -> str:
    """Name of a record; raises ``ValueError`` for what is no key or no sha256."""
    return f"{record_prefix(kind, key)}{_checked(sha256)}"


def split_record_name(name: str) -> RecordName | None:
    """The parts of a record's name; None for any other name."""
    parts = name.split("/")
    if len(parts) != 4 or not (is_sha256(parts[2]) and is_sha256(parts[3])):
        return None
    names = (RecordName(kind, parts[2], parts[3]) for kind in _RECORDS)
    return next((found for found in names if record_name(*found) == name), None)


def is_record(name: str) -> bool:
    """Return True for the name of a root: a launch record or a listing."""
    return split_record_name(name) is not None


def used_name(record: str, day: str) -> str:
    """Name of the mark that the record of that name was used on ``day``, such as 2026-01-31."""
    return f"{USED}{day}/{_flat(record)}"


def split_used_name(name: str) -> tuple[str, str] | None:
    """Record's name and day in the name of a mark of use; None for any other name."""
    match = _DAY.fullmatch(name)
    return (match[2].replace("__", "/"), match[1]) if match else None


def pin_name(record: str) -> str:
    """Name of the pin of the record of that name."""
    return f"{PINS}{_flat(record)}"


def split_pin_name(name: str) -> str | None:
    """Name of the record in the name of a pin; None for any other name."""
    last = name.removeprefix(PINS)
    return last.replace("__", "/") if last != name and "/" not in last else None


def trash_name(name: str, at: datetime) -> str:
    """Name in the trash of a file that an evict of that time takes away."""
    return f"{TRASH}{at.astimezone(UTC).strftime(_STAMP)}/{name}"


def split_trash_name(name: str) -> tuple[str, datetime] | None:
    """Former name and time in the name of a file in the trash; None for any other name."""
    match = _TRASHED.fullmatch(name)
    if match is None:
        return None
    try:
        return match[2], datetime.strptime(match[1], _STAMP).replace(tzinfo=UTC)
    except ValueError:
        return None


def quarantine_name(name: str, unique: str) -> str:
    """Name of a bad file; ``unique`` keeps several of one name apart."""
    return f"{QUARANTINE}{_flat(name)}.{unique}"


def split_quarantine_name(name: str) -> str:
    """Former name in the name of a bad file; that of no file for any other name."""
    return name.removeprefix(QUARANTINE).rpartition(".")[0].replace("__", "/")


def file_depth(name: str) -> int:
    """Largest number of parts of the name of a file that lies where ``name`` does."""
    parts = name.split("/", 3)
    if parts[0] == TRASH.rstrip("/"):
        return 2 + _DEPTHS.get(parts[2] if len(parts) > 2 else "", max(_DEPTHS.values()))
    return _DEPTHS.get(parts[0], max(_DEPTHS.values()))


def _flat(name: str) -> str:
    return name.replace("/", "__")


def split_fanned_name(prefix: str, name: str) -> str | None:
    """The sha256 or key in the name of a blob or manifest; None for any other name."""
    last = name.rpartition("/")[2]
    return last if is_sha256(last) and name == f"{prefix}{_fanned(last)}" else None


def _fanned(key: str) -> str:
    return f"{_checked(key)[:2]}/{key}"


def _checked(key: str) -> str:
    if not is_sha256(key):
        raise ValueError(f"a key is 64 lowercase hex characters, not {key[:80]!r}")
    return key
