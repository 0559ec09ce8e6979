"""A pull from a place that falls silent: ``python -m tests.support.silent_pull DIRECTORY``.

Pushes a directory into a near and a far place, lets the near one go silent in the midst of every blob, and
pulls. Prints how many files came, and ends although threads still wait for the near place.
"""

from __future__ import annotations

import io
import sys
import threading
from pathlib import Path
from typing import BinaryIO

from tests.support.stored import OFF
from warmrank.cache_store.backends.directory import DirectoryBackend
from warmrank.cache_store.backends.places import Tier, TieredBackend
from warmrank.cache_store.layout import BLOBS
from warmrank.cache_store.store import Store

_NUM_FILES = 20
_FALLEN_SILENT = threading.Event()


class _SilentBackend(DirectoryBackend):
    """From `_FALLEN_SILENT` on it opens blobs, and says nothing more, to a ping either."""

    def open(self, name: str) -> BinaryIO:
        if _FALLEN_SILENT.is_set():
            if name.startswith(BLOBS):
                return io.BufferedReader(_Silence())
            threading.Event().wait()
        return super().open(name)


class _Silence(io.RawIOBase):
    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object, /) -> int:
        threading.Event().wait()
        return 0


def main(directory: Path) -> int:
    tool = directory / "tool"
    tool.mkdir(mode=0o700)
    for number in range(_NUM_FILES):
        (tool / str(number)).write_bytes(bytes(number))
    tiers = [
        Tier(name="near", backend=_SilentBackend(directory / "near"), answer_s=0.5),
        Tier(name="far", backend=DirectoryBackend(directory / "far"), answer_s=20.0),
    ]
    for tier in tiers:
        Store(TieredBackend([tier]), trust=OFF, location=tier.name).push_directory("mine", tool, {})
    store = Store(TieredBackend(tiers), trust=OFF, location="both")
    _FALLEN_SILENT.set()
    return store.pull_directory("mine", directory / "pulled", {}).num_new


if __name__ == "__main__":
    print(main(Path(sys.argv[1])), flush=True)  # noqa: T201
