"""Rules for relative paths that may be taken from outside and joined to a directory: pure functions of text.

Invariants: an accepted path is posix, relative, already normal, and stays below the directory it is joined
to; of two accepted paths of one set, neither is the other one's directory, and no two fall together on a
file system that ignores case.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator

MAX_PATH_BYTES = 1024
MAX_PART_BYTES = 255  # NAME_MAX of every file system in use
MAX_PARTS = 32


def path_fault(path: str) -> str | None:
    """Say why ``path`` must not be joined to a directory; None when it may."""
    if not path.isprintable() or "\\" in path:
        return "has a control character, a line break or a backslash"
    if path.startswith("/"):
        return "is absolute"
    if _size_bytes(path) > MAX_PATH_BYTES:
        return f"is longer than {MAX_PATH_BYTES} bytes"
    parts = path.split("/")
    if len(parts) > MAX_PARTS:
        return f"has more than {MAX_PARTS} parts"
    for part in parts:
        if part in ("", ".", ".."):
            return f"has the part {part!r}"
        if _size_bytes(part) > MAX_PART_BYTES:
            return f"has a part longer than {MAX_PART_BYTES} bytes"
    return None


def part_fault(part: str) -> str | None:
    """Say why ``part`` cannot be the name of one file or directory; None when it can."""
    if "/" in part:
        return "has a slash"
    return path_fault(part)


def refusing(fault: Callable[[str], str | None], what: str) -> Callable[[str], str]:
    """A check, for a model's field, that raises ``ValueError`` for text that has a fault."""

    def check(text: str) -> str:
        if found := fault(text):
            raise ValueError(f"{what} {shown(text)} {found}")
        return text

    return check


def shown(text: str) -> str:
    """Text of a document as an error names it."""
    return repr(text if len(text) <= 100 else f"{text[:97]}...")


def collision(paths: Iterable[str]) -> str | None:
    """Say which two of several paths cannot stand side by side; None when all can."""
    return next((fault for _, fault in collisions(paths)), None)


def collisions(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each path that cannot stand beside those before it that could, and why not.

    Every prefix counts: ``A/x`` and ``a/y`` would share one directory where case is ignored.
    """
    known: dict[str, tuple[str, bool]] = {}  # by folded prefix its spelling, and whether it is a file
    for path in paths:
        parts = path.split("/")
        prefixes = ["/".join(parts[:number]) for number in range(1, len(parts) + 1)]
        mine = {_folded(prefix): (prefix, prefix == path) for prefix in prefixes}
        clashes = ((known[key], item) for key, item in mine.items() if known.get(key, item) != item)
        if clash := next(clashes, None):
            (other, _), (prefix, _) = clash
            if other == prefix:
                yield path, f"{prefix!r} is a file and a directory"
            else:
                yield path, f"{other!r} and {prefix!r} are one name where case is ignored"
        elif _folded(path) in known:
            yield path, f"{path!r} appears twice"
        else:
            known |= mine


def _folded(text: str) -> str:
    if text.isascii():  # most are, and normal forms leave ASCII alone
        return text.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


def _size_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
