"""What is compared: ways from a new process to the first output of the decode step.

A way runs in two kinds of process: one that ``fill``s (compiles, and leaves on disk what it can), and later
ones that are warm. Not every way leaves something.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.load_parts.decoder import Decoder

FILL = "fill"
WARM = "warm"


class NotHere(Exception):
    """Why a way cannot be measured here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one process has to do.

    Attributes:
        stage: `FILL` or `WARM`.
        work: where the ways of this number of layers keep what they leave.
        scratch: an empty directory of this process's own.
        layers: layers of the model.
        dynamic: trace with symbolic sizes.
        rounds: timed rounds of later calls.
        npugraph_ex: directory of an unpacked ``torch_npu`` wheel, or empty.
    """

    stage: str
    work: Path
    scratch: Path
    layers: int
    dynamic: bool
    rounds: int
    npugraph_ex: str = ""


class Way(Protocol):
    """One way to a compiled decode step."""

    def environment(self, task: Task) -> Mapping[str, str]:
        """Variables that its process needs from the start."""
        ...

    def imports(self, task: Task) -> None:
        """Import what a script imports before its model stands; counted.

        Raises:
            NotHere: something that this way needs is not installed.
        """
        ...

    def ready(self, decoder: Decoder, task: Task) -> Callable[..., Any]:
        """The step, compiled or loaded, or to be so at its first call; counted.

        Raises:
            NotHere: this way is not built yet.
        """
        ...

    def evidence(self, task: Task) -> dict[str, Any]:
        """After the first output: what shows that this way did what its name says.

        Raises:
            RuntimeError: it did not, so its figures would say nothing.
        """
        ...

    def bare(self) -> Callable[[], Any] | None:
        """The kernel alone, on inputs that are ready; None where that is not looked at."""
        ...
