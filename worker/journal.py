"""A record of each look-up's outcome, for a script that knows nothing of the launch it runs in.

One JSON object per line is appended to the file named by ``WARMRANK_JOURNAL``; without it nothing is
written.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worker.results import FunctionResult, StageSeconds
from worker.settings import settings

if TYPE_CHECKING:
    from worker.artifact import Artifact


def append(result: FunctionResult, artifact: Artifact, root: Path) -> None:
    """Append one outcome, with what a manifest needs to know of the artifact."""
    if settings().journal is None:
        return  # before the work of making an entry
    _write(
        {
            "result": dataclasses.asdict(result),
            "components": artifact.components,
            "provenance": artifact.provenance(),
            "files": [[file.name, file.sha256, file.size_bytes] for file in artifact.files],
            "root": str(root),
        }
    )


def append_forbidden(function: str, reason: str) -> None:
    """Append that a function would have had to be compiled, where that is forbidden."""
    _write({"forbidden": {"function": function, "reason": reason}})


def _write(entry: dict[str, Any]) -> None:
    file = settings().journal
    if file is not None:
        with file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(entry) + "\n")


def read(file: Path) -> tuple[tuple[FunctionResult, dict[str, Any]], ...]:
    """The outcomes in a journal, each with its ``components``, ``provenance``, ``files`` and ``root``."""
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
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
