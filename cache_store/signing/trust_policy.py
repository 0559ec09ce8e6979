"""The trust policy of a store whose config names none.

``off`` only for a directory of this user on this machine's own disk into which nobody else can have put
anything; whatever is not known to be so (an object store, a network file system, a failing look) asks for
signatures.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from warmrank.cache_store.backends.durability import LOCAL_TYPES, file_system_type, read_mounts
from warmrank.cache_store.cache_dir.private_files import OTHERS_WRITE, way_to
from warmrank.cache_store.layout import BLOBS, QUARANTINE, TMP, TOP_LEVEL

_NEVER_USED = frozenset({QUARANTINE.rstrip("/"), TMP.rstrip("/")})  # nothing in there gets a name again
_BLOBS = BLOBS.partition("/")[0]  # their names say what is in them, whoever owns them; there may be millions


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file or directory that decides who can write into a store.

    One ``is_above`` lies on the way to the store (`way_to`), so root may own it, and others may write into it
    where they cannot rename what is not theirs (the sticky bit of ``/tmp``).
    """

    path: str
    uid: int
    mode: int  # type and permissions, as ``st_mode``
    is_above: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChoice:
    """A policy, and why it is this one."""

    policy: Literal["require", "off"]
    reason: str


def resolve_policy(file_system: str, entries: Iterable[Entry], *, uid: int) -> PolicyChoice:
    """Choose the policy for a directory, used by the user of that id.

    ``file_system`` is the type of its file system ("" if unknown), ``entries`` what a store uses of it.
    """
    if file_system not in LOCAL_TYPES:
        reason = f"its file system ({file_system or 'not known'}) may be shared"
        return PolicyChoice(policy="require", reason=reason)
    for entry in entries:
        if entry.uid != uid and not (entry.is_above and entry.uid == 0):
            reason = f"{entry.path} belongs to uid {entry.uid}, not {uid}"
            return PolicyChoice(policy="require", reason=reason)
        is_held = entry.is_above and (entry.mode & stat.S_ISVTX or stat.S_ISLNK(entry.mode))
        if entry.mode & OTHERS_WRITE and not is_held:
            mode = f"mode {stat.S_IMODE(entry.mode):04o}"
            return PolicyChoice(policy="require", reason=f"others can write {entry.path} ({mode})")
    return PolicyChoice(policy="off", reason="a directory of this user on a local disk")


def choose_policy(location: str) -> PolicyChoice:
    """Look at the location of a store, a directory or a URL, and choose its policy; never raises."""
    if "://" in location:
        return PolicyChoice(policy="require", reason="an object store is shared")
    try:
        return resolve_policy(*_look_at(Path(location)), uid=os.geteuid())
    except OSError as error:
        return PolicyChoice(policy="require", reason=f"it cannot be looked at: {error}")


def _look_at(path: Path) -> tuple[str, list[Entry]]:
    mounts, absolute = read_mounts(), path.absolute()
    if (kind := file_system_type(absolute, mounts)) not in LOCAL_TYPES:
        return kind, []  # not touched: a dead mount would hang here
    above = [_entry(place, status, is_above=True) for place, status in way_to(absolute)]
    path = absolute.resolve()
    links = [Path(entry.path) for entry in above if stat.S_ISLNK(entry.mode)]
    kinds = [file_system_type(place, mounts) for place in (*links, path)]
    kind = next((kind for kind in kinds if kind not in LOCAL_TYPES), kinds[-1])
    return kind, [*_entries(path), *above]


def _entries(path: Path) -> Iterator[Entry]:
    if not path.exists():
        return
    yield _entry(path, path.lstat())
    for name in sorted(TOP_LEVEL):
        if os.path.lexists(path / name):
            yield _entry(path / name, (path / name).lstat())
    others_get_in = path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    for name in sorted(TOP_LEVEL - _NEVER_USED):
        for entry in _below(path / name, with_files=name != _BLOBS):
            # Where they do not, only an owner can have kept a way to write, such as another name, or a link.
            as_it_is = others_get_in or stat.S_ISLNK(entry.mode)
            yield entry if as_it_is else replace(entry, mode=stat.S_IFMT(entry.mode))


def _below(root: Path, *, with_files: bool) -> Iterator[Entry]:
    """All entries below: whoever owns a document, or can write where one lies, decides what it says."""
    waiting = [root] if root.is_dir() else []
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                paths = [
                    Path(item.path) for item in found if with_files or not item.is_file(follow_symlinks=False)
                ]
            below = [_entry(path, path.lstat()) for path in paths]
        except FileNotFoundError:
            continue  # an evict removed an empty directory of the trash
        waiting += [Path(entry.path) for entry in below if stat.S_ISDIR(entry.mode)]
        yield from below


def _entry(path: Path, status: os.stat_result, *, is_above: bool = False) -> Entry:
    return Entry(path=str(path), uid=status.st_uid, mode=status.st_mode, is_above=is_above)
