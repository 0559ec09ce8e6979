"""Seconds side by side, bytes hashed, peak memory."""

from __future__ import annotations

import resource
import statistics
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from warmrank.cache_store import digests


@contextmanager
def counting() -> Iterator[list[int]]:
    """Sizes of all that is hashed."""
    sizes: list[int] = []
    chunks = digests._chunks  # noqa: SLF001 - all hashing passes here

    def counted(*arguments: Any) -> Iterator[bytes]:
        for chunk in chunks(*arguments):
            sizes.append(len(chunk))
            yield chunk

    digests._chunks = counted  # type: ignore[assignment]  # noqa: SLF001
    try:
        yield sizes
    finally:
        digests._chunks = chunks  # noqa: SLF001


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
