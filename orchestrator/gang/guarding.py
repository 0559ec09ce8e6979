"""Starts a guardian (`orchestrator.gang.guardian`), and talks to it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from warmrank.orchestrator.gang import guardian

_FOR_EVER_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Until when what is guarded may live without a word.

    Attributes:
        seconds: how long silence is borne.
        renewed_by: process that ends too, as the last, when the lease runs out; None for none.
    """

    seconds: float
    renewed_by: int | None


class Guarding:
    """A guardian that runs: it guards as long as this process lives, and is told.

    Args:
        marks: the mark of each process that it guards.
        started: when each was started, in ticks since boot, where that is known: a process that has the id of
            one that ended is left alone.
        lease: after which silence it ends them; None for none.
        remove: directories that go, with who uses them, when nobody else is left to remove them.
        spare: processes that use these and must not be ended.
        asked_s: how long it leaves processes that were asked to end; None for as long as Ray needs.
    """

    def __init__(
        self,
        marks: Mapping[int, str],
        *,
        started: Mapping[int, int] | None = None,
        lease: Lease | None = None,
        remove: Iterable[str] = (),
        spare: Iterable[int] = (),
        asked_s: float | None = None,
    ) -> None:
        # Isolated and without site packages it is up in 15 ms; -E and -s go with -I. It has no file of this
        # process open, because that may lie in a directory which another guardian removes with who uses it.
        self._process = subprocess.Popen(  # noqa: S603 - this very Python, and a file of ours
            [sys.executable, "-I", "-S", guardian.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        self._process.wait()  # not for its end: it has left
        self._tell(
            {
                "guard": dict(marks),
                "started": dict(started or {}),
                "lease_s": lease.seconds if lease is not None else _FOR_EVER_S,
                "remove": list(remove),
                "spare": list(spare),
                "last": lease.renewed_by if lease is not None else None,
                **({} if asked_s is None else {"asked_s": asked_s}),
            }
        )

    def renew(self) -> None:
        """Begin the lease anew."""
        self._tell({"renew": True})

    def end(self) -> None:
        """End what it guards, and itself; the directories stay. Returns when nothing is left."""
        with contextlib.suppress(BrokenPipeError):  # killed itself, so it guards nothing any more
            self._tell({"end": True})
        self.abandon()

    def abandon(self) -> None:
        """Have it do what it does when this process is gone; returns when nothing is left."""
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        self._process.stdin.close()
        self._process.stdout.read()
        self._process.stdout.close()

    def _tell(self, command: Mapping[str, object]) -> None:
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
