"""Names in the store; the only place that spells them.

Layout of format 1::

    FORMAT                                          {"digest":"sha256","format":1}
    cas/sha256/ab/<sha256>                          a blob; immutable
    ac/ab/<partition key>                           a sealed partition manifest; create-only, after its blobs
    launch/ab/<launch key>/<sha256 of the record>   a sealed launch record; create-only, after its manifests
    tmp/<host>-<pid>-<random>/                      files on their way in
    quarantine/<name, / as __>.<random>             files found bad, each with a .reason beside it

Here ``ab`` stands for the first two characters of what follows, so that no directory grows without bound.
"""

from __future__ import annotations

from cache_store.digests import is_sha256

FORMAT_FILE = "FORMAT"
BLOBS = "cas/sha256/"
MANIFESTS = "ac/"
LAUNCHES = "launch/"
TMP = "tmp"
QUARANTINE = "quarantine"
TOP_LEVEL = frozenset({FORMAT_FILE, "cas", "ac", "launch", TMP, QUARANTINE})


def blob_name(sha256: str) -> str:
    """Name of a blob; raises ``ValueError`` for what is no sha256."""
    return f"{BLOBS}{_fanned(sha256)}"


def manifest_name(key: str) -> str:
    """Name of a manifest; raises ``ValueError`` for what is no key."""
    return f"{MANIFESTS}{_fanned(key)}"


def launch_prefix(launch_key: str) -> str:
    """Prefix of the records of one launch key; raises ``ValueError`` for what is no key."""
    return f"{LAUNCHES}{_fanned(launch_key)}/"


def launch_name(launch_key: str, record_sha256: str) -> str:
    """Name of a launch record; raises ``ValueError`` for what is no key or no sha256."""
    return f"{launch_prefix(launch_key)}{_checked(record_sha256)}"


def split_launch_name(name: str) -> tuple[str, str] | None:
    """Launch key and record sha256 in a launch record's name; None for any other name."""
    parts = name.split("/")
    if len(parts) != 4 or not (is_sha256(parts[2]) and is_sha256(parts[3])):
        return None
    return (parts[2], parts[3]) if launch_name(parts[2], parts[3]) == name else None


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
