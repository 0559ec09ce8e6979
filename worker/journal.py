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
    file = settings().journal
    if file is None:
        return
    entry = {
        "result": dataclasses.asdict(result),
        "components": artifact.components,
        "provenance": artifact.provenance(),
        "root": str(root),
    }
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(entry) + "\n")


def read(file: Path) -> tuple[tuple[FunctionResult, dict[str, Any]], ...]:
    """The outcomes in a journal, each with its ``components``, ``provenance`` and ``root``."""
    if not file.exists():
        return ()
    entries = []
    for line in file.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        data = entry.pop("result")
        seconds = StageSeconds(**data.pop("seconds"))
        entries.append((FunctionResult(**data, seconds=seconds), entry))
    return tuple(entries)
