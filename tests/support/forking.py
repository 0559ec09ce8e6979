"""Trials of faults, each in a process of its own that costs a fork and not a start of Python."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

from tests.support.stored import REPOSITORY

_TIME_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How the process of one trial ended.

    Attributes:
        exit: exit status, negative for a signal.
        overran: it was killed because its time was over.
        result: what the action returned.
        error: the `StoreError` that it raised.
        bug: any other exception.
        steps: steps that it reached.
        calls: calls that the plan counted.
    """

    exit: int
    overran: bool
    result: Any = None
    error: str | None = None
    bug: str | None = None
    steps: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)


class Forker:
    """A `tests.support.fault_child` and the way to ask it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fault_child"],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self, action: str, plan: dict[str, Any] | None = None, *, time_s: float = _TIME_S, **arguments: Any
    ) -> Trial:
        """Run an action in a fork; arguments that are paths may be given as such."""
        trial = {"action": action, "arguments": arguments, "plan": plan or {}, "time_s": time_s}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(trial, default=str) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "tests.support.fault_child ended"
        return Trial(**json.loads(answer))

    def close(self) -> None:
        """End the process; its children ended with their trials."""
        self._process.communicate()
