"""One rank through the stages of a launch; nothing here knows Ray."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from warmrank.cache_store.cache_dir.node_files import NodeFile
    from warmrank.cache_store.records.manifest import CaptureEntry, PartitionManifest
    from warmrank.worker.rank.units import Handed
    from warmrank.worker.results import (
        CaptureProposal,
        FunctionProbe,
        FunctionResult,
        Published,
        TraceResult,
        Verification,
    )


class Rank(Protocol):
    """Port of a rank, as the driver uses it.

    Functions are named as units of work (`worker.rank.units`). What fails for one function is a result with a
    `Failure`; an exception of `worker.errors` or `cache_store.errors` is about the whole rank.
    """

    def start(self) -> dict[str, str]:
        """Bring up the device and the process groups; returns the rank's environment."""

    def build(self) -> tuple[str, ...]:
        """Build model and calls; return the names of the functions, in call order."""

    def probe(self) -> tuple[FunctionProbe, ...]:
        """Look each function up; compile nothing."""

    def compile(self, functions: tuple[str, ...]) -> tuple[FunctionResult, ...]:
        """Trace and compile functions without running them."""

    def load(self, functions: tuple[str, ...]) -> tuple[FunctionResult, ...]:
        """Load what the probe found, or what was compiled since."""

    def adopt(self, offers: Mapping[str, str], fresh: Collection[str] = ()) -> tuple[FunctionResult, ...]:
        """Take over artifacts of other ranks, function to digest; ``fresh`` ones were compiled just now."""

    def consider(self, offers: Mapping[str, str]) -> tuple[FunctionResult, ...]:
        """Answer as `adopt` would, and load nothing."""

    def release(self, digests: Mapping[str, str]) -> None:
        """Let other partitions have artifacts, function to digest, since no audit found a fault."""

    def audit(self, functions: tuple[str, ...]) -> tuple[TraceResult, ...]:
        """Trace functions as their compile would, for a comparison with other ranks."""

    def trace(self, function: str) -> bytes:
        """The trace that a function's artifact was made of, for `difference` on another rank."""

    def difference(self, function: str, trace: bytes) -> str:
        """The first difference between another rank's trace and this rank's own; empty if none."""

    def hand_out(self, digests: Mapping[str, str]) -> dict[str, Handed | None]:
        """Artifacts for other nodes, by function; None for one that is not here."""

    def take_in(self, name: str, handed: Handed) -> None:
        """Keep a function's artifact of another node, for all ranks of this one."""

    def propose_captures(
        self, planned: tuple[CaptureEntry, ...], names: Collection[str] | None = None
    ) -> tuple[CaptureProposal, ...]:
        """The graphs that this rank would capture: of the workload's calls, and of an earlier plan."""

    def stream_problem(self) -> str:
        """Message on captures that take more streams than the device has; empty if they do not."""

    def capture(self, step: CaptureProposal) -> tuple[FunctionResult, ...]:
        """Take one step of the order that the driver made of all ranks' proposals."""

    def first_call(self, place: int) -> tuple[FunctionResult | FunctionProbe, ...]:
        """Run the call before a place in the workload, and look the next one up."""

    def verify(self) -> Verification:
        """Compare the warm model with its reference."""

    def extra(self) -> tuple[FunctionResult, ...]:
        """Artifacts that the check, or one call inside of another, needed beyond the workload's calls."""

    def keep_for_node(self, files: tuple[NodeFile, ...]) -> None:
        """Take node artifacts into the manifest of this rank, the first one of its node."""

    def manifest(self) -> PartitionManifest:
        """The contents of this rank's partition."""

    def publish(self, launch_key: str) -> Published | None:
        """Put manifest and artifacts into the store; None without a store."""

    def stop(self) -> None:
        """Take the process groups down."""
