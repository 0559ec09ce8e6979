"""What a launch tells whoever watches it. Display is the listener's business, never the driver's."""

from __future__ import annotations

from typing import Protocol

from worker.results import FunctionResult

STAGES = (
    "start",
    "fetch",
    "build",
    "probe",
    "compile",
    "load",
    "capture",
    "first_call",
    "verify",
    "script",
    "commit",
)
"""Every stage, in the order of a launch; `compile` and `load` may come again, one round after the other."""


class Listener(Protocol):
    """Receives events in the driver's process, one at a time."""

    def stage_started(self, stage: str, ranks: tuple[int, ...]) -> None:
        """A stage begins on these ranks; ranks not named have nothing to do in it."""

    def rank_finished(self, stage: str, rank: int, seconds: float) -> None:
        """A rank answered, this many seconds after the stage began."""

    def function_finished(self, stage: str, rank: int, result: FunctionResult) -> None:
        """A stage is over for one function on one rank."""

    def stage_finished(self, stage: str, seconds: float) -> None:
        """All ranks of a stage answered."""

    def problem(self, text: str) -> None:
        """Something went wrong that does not stop the launch."""


class Silence:
    """A listener that does nothing."""

    def stage_started(self, stage: str, ranks: tuple[int, ...]) -> None:
        """Do nothing."""

    def rank_finished(self, stage: str, rank: int, seconds: float) -> None:
        """Do nothing."""

    def function_finished(self, stage: str, rank: int, result: FunctionResult) -> None:
        """Do nothing."""

    def stage_finished(self, stage: str, seconds: float) -> None:
        """Do nothing."""

    def problem(self, text: str) -> None:
        """Do nothing."""
