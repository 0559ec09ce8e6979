"""A command that runs in a node: what it says, how it ends; a test that waits for it waits within a bound."""

from __future__ import annotations

import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.netns import Node, until

COMMAND_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A command of warmrank that ended; ``said`` is its output and its errors."""

    exit_code: int
    output: str
    said: str
    seconds: float


@dataclass(slots=True, kw_only=True)
class Running:
    """A command of warmrank that runs in a node; what it says goes to ``lines`` and a file beside it."""

    node: Node
    process: subprocess.Popen[str]
    lines: Path
    began_s: float = field(default_factory=time.monotonic)

    def said(self) -> str:
        """Its output and its errors so far."""
        return self.lines.read_text() + self.lines.with_suffix(".err").read_text()

    def await_said(self, text: str, *, timeout_s: float = COMMAND_S) -> None:
        """Wait until it says something; fails when it ends before."""

        def is_there() -> bool:
            has_ended = self.process.poll() is not None
            if text in self.said():
                return True
            assert not has_ended, f"ended without saying {text!r}:\n{self.said()}"
            return False

        until(is_there, timeout_s=timeout_s, what=lambda: f"{text!r} in {self.said()}")

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.node.send(self.process, number)

    def wait(self, *, timeout_s: float = COMMAND_S) -> Ended:
        """Wait for its end."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            msg = f"still running after {timeout_s:g} s:\n{self.said()}"
            raise AssertionError(msg) from None
        seconds = time.monotonic() - self.began_s
        output = self.lines.read_text()
        return Ended(exit_code=self.process.returncode, output=output, said=self.said(), seconds=seconds)
