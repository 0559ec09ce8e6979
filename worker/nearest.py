"""Why nothing lies under a request: the nearest other request for the same class, and what differs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from warmrank.cache_store.cache_dir.local import variants
from warmrank.cache_store.keys import changed_components
from warmrank.worker.artifact import read
from warmrank.worker.errors import ArtifactCorrupt
from warmrank.worker.guards.words import in_brief
from warmrank.worker.keys.request import Request

_MAX_CANDIDATES = 16
_DIGESTS = ("module", "parameters")
# As `partition_paths.model_directory` makes it; the name of a class may hold underscores itself.
_MODEL_DIR = re.compile(r"(?P<cls>.+)_(?:dynamic|static)(?:_aclgraphcache)?_[0-9a-f]+")


def explain_absence(
    model_dir: Path, function: str, asked: Request, misfits: Callable[[Path], tuple[str, ...]] = lambda _: ()
) -> str:
    """One line: the components in which the nearest stored artifact of this function differs.

    Args:
        model_dir: the directory in which the function was looked for.
        function: name of the method.
        asked: the request.
        misfits: the conditions of an artifact that do not hold; asked of the nearest where module or
            parameters differ, whose components are digests, to name what differs in them.
    """
    if model_dir.is_dir():
        return f"no artifact of {function} in {model_dir.name}"
    class_name = _class_of(model_dir)
    best: tuple[bool, int] | None = None
    text, nearest = "", None
    unreadable = ""
    for path in _candidates(model_dir.parent, class_name, function):
        try:
            artifact, _, _ = read(path)
        except ArtifactCorrupt as error:
            unreadable = unreadable or f", but one that cannot be used: {error.why}"
            continue
        except OSError:
            continue
        changes = changed_components(artifact.components, asked.components)
        # Another model, or another rank's part of it, is farther off than the same one from other sources.
        is_other = any(change.name in _DIGESTS for change in changes)
        if best is None or (is_other, len(changes)) < best:
            best = is_other, len(changes)
            text = "; ".join(str(change) for change in changes)
            nearest = path if is_other else None
    if nearest and (named := misfits(nearest)):
        text = f"{text} ({in_brief(named)})"
    return (
        f"nearest artifact differs: {text}"
        if best
        else f"the cache holds nothing for {class_name}.{function}{unreadable}"
    )


def _class_of(model_dir: Path) -> str:
    match = _MODEL_DIR.fullmatch(model_dir.name)
    return match["cls"] if match else model_dir.name


def _candidates(root: Path, class_name: str, function: str) -> list[Path]:
    """The newest artifacts of this function under other requests of the same class."""
    if not root.is_dir():
        return []
    found = [
        path
        for directory in root.iterdir()
        if directory.is_dir() and _class_of(directory) == class_name
        for parent in (directory / function, *directory.glob(f"*/{function}"))
        for path in variants(parent)
    ]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[:_MAX_CANDIDATES]
