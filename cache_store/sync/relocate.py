"""Whether a directory may be restored at another path, and with which files changed: pure functions.

Invariants: a directory at its own path is never changed; one that names its path in a file that nobody here
knows how to change is refused, with the file's name.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from warmrank.cache_store.errors import Conflict
from warmrank.cache_store.records.directory_listing import ListedFile
from warmrank.cache_store.sync.tools import Tool, is_rewritten

MAX_REWRITTEN_BYTES = 64 << 20
_SHOWN = 3
# Spelled alike in JSON, in Python literals and on disk; anything else would need each format's own quoting.
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=@%,:~")


@dataclass(frozen=True, slots=True, kw_only=True)
class Relocation:
    """What to replace in which files; no files where nothing has to change."""

    old: bytes
    new: bytes
    paths: frozenset[str]

    def apply(self, data: bytes) -> bytes:
        """``data`` with the old path replaced where it stands as a whole path or as a path's beginning."""
        parts = data.split(self.old)
        joined = [parts[0]]
        for before, after in itertools.pairwise(parts):
            inside = _continues(before[-1:]) or _is_name(after[:1])
            joined += [self.old if inside else self.new, after]
        return b"".join(joined)


def relocation(tool: Tool, files: Sequence[ListedFile], *, old: str, new: str) -> Relocation:
    """Decide how a directory read at ``old`` is restored at ``new``.

    Raises:
        Conflict: it must not be moved; says which files name the old path.
    """
    nothing = Relocation(old=old.encode(), new=new.encode(), paths=frozenset())
    if old == new:
        return nothing
    named = [file for file in files if file.names_root]
    rewritten = [file for file in named if is_rewritten(tool, file.path)]
    others = [file.path for file in named if not is_rewritten(tool, file.path)]
    if others and not tool.ignores_other_mentions:
        shown = ", ".join(others[:_SHOWN]) + (f" and {len(others) - _SHOWN} more" * (len(others) > _SHOWN))
        raise _refused(old, new, f"{shown} contain the old path, and {tool.name!r} is no tool known here")
    if not rewritten:
        return nothing
    if not (set(old) | set(new)) <= _PLAIN:
        raise _refused(old, new, "one of the paths has characters that files may spell in several ways")
    if large := [file.path for file in rewritten if file.size_bytes > MAX_REWRITTEN_BYTES]:
        raise _refused(old, new, f"{large[0]} has to be changed and is over {MAX_REWRITTEN_BYTES} bytes")
    return Relocation(old=old.encode(), new=new.encode(), paths=frozenset(file.path for file in rewritten))


def _is_name(byte: bytes) -> bool:
    # After the path a slash or anything that ends it may follow; a letter makes it another directory's.
    return byte.isalnum() or byte in (b"_", b"-", b".")


def _continues(byte: bytes) -> bool:
    # Before it stands a quote or the like; a name or a slash makes it the middle of a longer path.
    return byte.isalnum() or byte in (b"_", b"-", b".", b"/")


def _refused(old: str, new: str, why: str) -> Conflict:
    return Conflict(
        what="directory",
        where=new,
        expected=f"the path that it was read from, {old}",
        actual=why,
        remedy=f"restore it at {old}, for example with a bind mount or the tool's own setting",
    )
