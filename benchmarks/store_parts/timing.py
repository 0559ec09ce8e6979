"""Seconds side by side, bytes hashed, peak memory."""

from __future__ import annotations

import hashlib
import resource
import statistics
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

from warmrank.cache_store import digests


@contextmanager
def counting() -> Iterator[list[int]]:
    """Sizes of all that is hashed by `cache_store.digests`, piece by piece."""
    sizes: list[int] = []

    class Counted:
        def __init__(self, data: bytes = b"") -> None:
            self._hash = hashlib.sha256()
            self.hexdigest = self._hash.hexdigest
            self.update(data)

        def update(self, data: bytes) -> None:
            sizes.append(len(data))
            self._hash.update(data)

    vars(digests)["hashlib"] = SimpleNamespace(sha256=Counted)
    try:
        yield sizes
    finally:
        vars(digests)["hashlib"] = hashlib


def timed(call: Callable[[], Any]) -> float:
    """Seconds of one call."""
    started = perf_counter()
    call()
    return perf_counter() - started


def shell(*command: str) -> None:
    """Run a command, which must succeed."""
    subprocess.run(command, check=True)


def settle(work: Path) -> None:
    """Nothing that ran before is written at the cost of what is timed next."""
    shell("sync", "-f", str(work))


def in_turn(rounds: int, one: Callable[[], float], other: Callable[[], float]) -> dict[str, Any]:
    """Median seconds of two, which take turns at being first, and their ratio."""
    firsts, seconds = [], []
    for number in range(rounds):
        if number % 2:
            seconds.append(other())
            firsts.append(one())
        else:
            firsts.append(one())
            seconds.append(other())
    ours, theirs = statistics.median(firsts), statistics.median(seconds)
    return {"ours_s": ours, "theirs_s": theirs, "ratio": ours / theirs, "all_s": [firsts, seconds]}


def peak_bytes() -> int:
    """Peak memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
