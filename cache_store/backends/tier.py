"""One place of a store: what keeps its files, how it may be used, and whether it is still asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from warmrank.cache_store.backends.backend import BlobBackend
from warmrank.cache_store.backends.circuit import Circuit
from warmrank.cache_store.errors import StoreUnavailable

TierMode = Literal["ro", "rw", "required"]
ANSWER_S = 3.5  # and a second until the next sign of life is asked for: 5 s in all, with the ticks


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One place of a store.

    Attributes:
        name: its location, as it was named.
        backend: keeps its files.
        mode: ``ro`` is never written; ``required`` is ``rw``, and no verb goes on without it.
        answer_s: how long it may be silent.
        circuit: whether it is still asked.
    """

    name: str
    backend: BlobBackend
    mode: TierMode = "rw"
    answer_s: float = ANSWER_S
    circuit: Circuit = field(default_factory=Circuit)

    @property
    def is_writable(self) -> bool:
        """Whether files may be put here."""
        return self.mode != "ro"

    @property
    def state(self) -> TierState:
        """What has become of it so far."""
        reason = self.circuit.reason
        return TierState(
            location=self.name, mode=self.mode, state="away" if reason else "used", reason=reason
        )

    def away(self) -> StoreUnavailable:
        """The error that says that this place is left alone, and why."""
        return away(self.name, self.circuit.reason, required=self.mode == "required")


@dataclass(frozen=True, slots=True, kw_only=True)
class TierState:
    """What became of one place, for reports.

    Attributes:
        location: the place, as it was named.
        mode: its mode.
        state: ``away`` is left alone, ``off`` was not asked for.
        reason: why it is left alone; empty otherwise.
    """

    location: str
    mode: str
    state: Literal["used", "away", "off"]
    reason: str = ""


def away(name: str, reason: str, *, required: bool) -> StoreUnavailable:
    """The error for a place that is left alone for the rest of this process."""
    return StoreUnavailable(
        what=f"required store {name}" if required else f"store {name}",
        where=name,
        reason=f"{reason}, so it is left alone for the rest of this process",
        remedy="check that its file system or server answers, then start again",
        required=required,
    )
