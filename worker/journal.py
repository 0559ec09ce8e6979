"""A record of each look-up's outcome, for a script that knows nothing of the launch it runs in.

One JSON object per line is appended to the file named by ``WARMRANK_JOURNAL``, which one process has for
itself; or, for several, to a file of each rank and process in the directory ``WARMRANK_JOURNAL_DIR``,
``world<N>global_rank<r>-<pid>.jsonl``. Without either nothing is written. Whoever reads while it is written
finds whole lines. A launch needs its file; a command of somebody's own goes on where its directory is full or
gone, and what is not noted there is not published.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warmrank.worker.results import FunctionResult, StageSeconds
from warmrank.worker.settings import settings

if TYPE_CHECKING:
    from warmrank.worker.runtime.artifact import Artifact

_log = logging.getLogger(__name__)

_PARTITION = re.compile(r"world([0-9]+)global_rank([0-9]+)(?:_[a-z0-9_]+)?", re.ASCII)
_NAME = re.compile(r"world([0-9]+)global_rank([0-9]+)-[0-9]+\.jsonl", re.ASCII)


def append(result: FunctionResult, artifact: Artifact) -> None:
    """Append one outcome, with what a manifest needs to know of the artifact."""
    file = _file(result.path)
    if file is None:
        return  # before the work of making an entry
    from warmrank.worker.runtime.files import provenance

    _write(
        file,
        {
            "result": dataclasses.asdict(result),
            "components": artifact.components,
            "provenance": provenance(artifact),
            "files": [[file.name, file.sha256, file.size_bytes] for file in artifact.files],
        },
    )


def append_forbidden(function: str, reason: str) -> None:
    """Append that a function would have had to be compiled, where that is forbidden."""
    file = _file("")
    if file is not None:
        _write(file, {"forbidden": {"function": function, "reason": reason}})


def _file(artifact: str) -> Path | None:
    """Journal file of this process; the partition of an artifact knows the rank better than torchrun does."""
    found = settings()
    if found.journal is not None or found.journal_dir is None:
        return found.journal
    match = next(filter(None, (_PARTITION.fullmatch(part) for part in Path(artifact).parts[-4:])), None)
    world_size, rank = match.groups()[:2] if match else (found.world_size, found.rank)
    return found.journal_dir / f"world{world_size}global_rank{rank}-{os.getpid()}.jsonl"


def _write(file: Path, entry: dict[str, Any]) -> None:
    try:
        with file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(entry) + "\n")
    except OSError as error:
        if settings().journal is not None:
            raise
        _log.warning("Not noted, so not published: %s", error)


def by_rank(directory: Path) -> dict[tuple[int, int], tuple[Path, ...]]:
    """The journals in a directory, the oldest first, by world size and rank; without those of other names."""
    found: dict[tuple[int, int], list[Path]] = {}
    for path in sorted(directory.iterdir(), key=lambda path: (path.stat().st_mtime_ns, path.name)):
        if match := _NAME.fullmatch(path.name):
            found.setdefault((int(match[1]), int(match[2])), []).append(path)
    return {whose: tuple(found[whose]) for whose in sorted(found)}


def read(file: Path) -> tuple[tuple[FunctionResult, dict[str, Any]], ...]:
    """The outcomes in a journal, each with its ``components``, ``provenance`` and ``files``."""
    found = []
    for entry in _entries(file):
        if "result" in entry:
            data = entry.pop("result")
            seconds = StageSeconds(**data.pop("seconds"))
            beside = tuple((sha256, size) for sha256, size in data.pop("beside", ()))
            found.append((FunctionResult(**data, seconds=seconds, beside=beside), entry))
    return tuple(found)


def forbidden(file: Path) -> tuple[tuple[str, str], ...]:
    """Function and reason of each compile that was forbidden."""
    entries = (entry["forbidden"] for entry in _entries(file) if "forbidden" in entry)
    return tuple((entry["function"], entry["reason"]) for entry in entries)


def _entries(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    whole, _, _ = file.read_text(encoding="utf-8").rpartition("\n")  # the last line may be on its way
    return [json.loads(line) for line in whole.splitlines()]
