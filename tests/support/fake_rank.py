"""Ranks without torch that keep the contract of `RankWorker`, for tests of the driver."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from warmrank.worker.rank.manifests import packed
from warmrank.worker.results import (
    CaptureProposal,
    Failure,
    FunctionProbe,
    FunctionResult,
    Partition,
    StageSeconds,
    TraceResult,
    Verification,
)

FUNCTIONS = ("Model.prefill", "Model.decode")


def digest_of(function: str, kind: object) -> str:
    return hashlib.sha256(f"{function} {kind}".encode()).hexdigest()


@dataclass
class FakeWorld:
    """What all ranks share, and what lasts from launch to launch.

    Attributes:
        kind_of: ranks of equal kind can use each other's artifacts: their guards hold.
        asks: ranks that ask for the same have the same request key.
        trace_of: what a rank traces of a function; by default its kind.
        num_captures: calls that each rank captures.
        raises: what a method of a rank raises.
        broken: functions that compile nowhere, and why.
        max_error: what verification finds.
        held: digests in partitions, by rank and function.
        calls: every call of a rank, in order.
    """

    kind_of: Callable[[int], object] = lambda rank: 0
    asks: Callable[[int], str] = lambda rank: "same"
    trace_of: Callable[[int, str], object] | None = None
    functions: tuple[str, ...] = FUNCTIONS
    num_captures: Callable[[int], int] = lambda rank: 2
    raises: dict[tuple[str, int], Exception] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    max_error: float = 0.0
    environments: Mapping[int, dict[str, str]] = field(default_factory=dict)
    held: dict[tuple[int, str], str] = field(default_factory=dict)
    known: dict[str, object] = field(default_factory=dict)
    calls: list[tuple[str, int, Any]] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)

    def make_worker(self, spec: Any, store: Any) -> FakeRank:
        return FakeRank(self, spec, store)

    def traced(self, rank: int, function: str) -> str:
        trace = self.kind_of(rank) if self.trace_of is None else self.trace_of(rank, function)
        return f"trace {trace}"

    def called(self, method: str) -> list[tuple[int, Any]]:
        return [(rank, argument) for name, rank, argument in self.calls if name == method]


class FakeRank:
    def __init__(self, world: FakeWorld, spec: Any, store: Any) -> None:
        self.world, self.spec, self.store = world, spec, store
        self.results: dict[str, FunctionResult] = {}

    def start(self) -> dict[str, str]:
        self._enter("start")
        return self.environment()

    def environment(self) -> dict[str, str]:
        return self.world.environments.get(self.spec.rank, {"python": "cpython 3.11"})

    def build(self) -> tuple[str, ...]:
        self._enter("build")
        return self.world.functions

    def probe(self) -> tuple[FunctionProbe, ...]:
        self._enter("probe")
        return tuple(self._probe(function) for function in self.world.functions)

    def _probe(self, function: str) -> FunctionProbe:
        held = self.world.held.get((self.spec.rank, function), "")
        key = digest_of(function, self.world.asks(self.spec.rank))
        return FunctionProbe(
            function=function,
            request_key=key,
            components={"function": function},
            state="hit" if held else "miss",
            reason="held" if held else "nothing lies there",
            digest=held,
        )

    def compile(self, functions: tuple[str, ...]) -> tuple[FunctionResult, ...]:
        self._enter("compile", functions)
        kind = self.world.kind_of(self.spec.rank)
        for function in functions:
            trace = self.world.traced(self.spec.rank, function)
            digest = digest_of(function, kind if self.world.trace_of is None else (kind, trace))
            self.world.known[digest] = kind
            seconds = StageSeconds(trace_s=1.0, compile_s=2.0)
            self._settled(function, "compiled", digest, seconds, ok=function not in self.world.broken)
        return tuple(self.results[function] for function in functions)

    def audit(self, functions: tuple[str, ...]) -> tuple[TraceResult, ...]:
        self._enter("audit", functions)
        traces = ((function, self.world.traced(self.spec.rank, function)) for function in functions)
        return tuple(
            TraceResult(function=function, trace=trace, seconds=1.0, cpu_s=0.5) for function, trace in traces
        )

    def trace(self, function: str) -> bytes:
        self._enter("trace", function)
        return self.world.traced(self.spec.rank, function).encode()

    def difference(self, function: str, trace: bytes) -> str:
        self._enter("difference", function)
        return f"graph 1: {trace.decode()} / {self.world.traced(self.spec.rank, function)}"

    def consider(self, offers: dict[str, str]) -> tuple[FunctionResult, ...]:
        self._enter("consider", offers)
        return tuple(self._would(function, digest) for function, digest in offers.items())

    def load(self, functions: tuple[str, ...]) -> tuple[FunctionResult, ...]:
        self._enter("load", functions)
        return tuple(
            self._load(function, "loaded", self.world.held[self.spec.rank, function])
            for function in functions
        )

    def release(self, digests: dict[str, str]) -> None:
        self._enter("release", digests)

    def adopt(self, offers: dict[str, str], fresh: Any = ()) -> tuple[FunctionResult, ...]:
        self._enter("adopt", offers)
        return tuple(self._load(function, "adopted", digest) for function, digest in offers.items())

    def _load(self, function: str, outcome: Any, digest: str) -> FunctionResult:
        answer = self._would(function, digest)
        if answer.ok:
            self._settled(function, outcome, digest, StageSeconds(load_s=0.01))
            return self.results[function]
        return replace(answer, outcome=outcome)

    def _would(self, function: str, digest: str) -> FunctionResult:
        fits = self.world.known.get(digest) == self.world.kind_of(self.spec.rank)
        reason = "" if fits else "another kind"
        return FunctionResult(
            function=function,
            ok=fits,
            outcome="adopted",
            reason=reason,
            digest=digest,
            failure=None if fits else Failure.GUARDS,
        )

    def _settled(
        self, function: str, outcome: Any, digest: str, seconds: StageSeconds, *, ok: bool = True
    ) -> None:
        why = "" if ok else self.world.broken[function]
        if ok:
            self.world.held[self.spec.rank, function] = digest
        self.results[function] = FunctionResult(
            function=function,
            ok=ok,
            outcome=outcome,
            reason=why,
            error=why.partition(": ")[0] if ": " in why else "",
            digest=digest,
            size_bytes=100,
            path=f"{self.spec.cache_dir}/{function}/compiled_module",
            seconds=seconds,
            trace=self.world.traced(self.spec.rank, function) if outcome == "compiled" else "",
        )

    def propose_captures(self, planned: Any, _names: Any = None) -> tuple[CaptureProposal, ...]:
        self._enter("propose_captures", planned)
        functions = self.world.functions
        numbers = range(self.world.num_captures(self.spec.rank))
        return tuple(
            CaptureProposal(
                function=functions[number % len(functions)],
                signature="",
                shapes="",
                num_elements=len(numbers) - number,
                planned=False,
            )
            for number in numbers
        )

    def capture(self, step: CaptureProposal) -> tuple[FunctionResult, ...]:
        self._enter("capture", step.function)
        return (self._spent(step.function, capture_s=0.5),)

    def first_call(self, place: int) -> tuple[FunctionResult, ...]:
        self._enter("first_call")
        functions = self.world.functions[max(0, place - 1) : place]
        return tuple(self._spent(function, first_call_s=0.25) for function in functions)

    def extra(self) -> tuple[FunctionResult, ...]:
        return ()

    def _spent(self, function: str, **seconds: float) -> FunctionResult:
        known = self.results[function]
        self.results[function] = replace(known, seconds=replace(known.seconds, **seconds))
        return self.results[function]

    def verify(self) -> Verification:
        self._enter("verify")
        worst = self.world.max_error
        return Verification(ok=worst <= 0.1, max_error=worst, tolerance=0.1, compared="logits with eager")

    def partition(self) -> Partition:
        self._enter("partition")
        rank, world_size = self.spec.rank, self.spec.world_size
        fields = {
            "partition": f"world{world_size}global_rank{rank}",
            "rank": rank,
            "world_size": world_size,
            "environment": self.environment(),
            "requests": (),
            "artifacts": (),
            "captures": (),
        }
        return Partition(manifest=packed(fields), num_shared=1, bytes_shared=100)

    def hand_out(self, digests: Mapping[str, str]) -> dict[str, str]:
        self._enter("hand_out", digests)
        return dict(digests)

    def take_in(self, function: str, handed: str) -> None:
        self._enter("take_in", (function, handed))

    def stop(self) -> None:
        self.world.stopped.append(self.spec.rank)

    def _enter(self, method: str, argument: Any = None) -> None:
        self.world.calls.append((method, self.spec.rank, argument))
        error = self.world.raises.get((method, self.spec.rank))
        if error is not None:
            raise error


def make_alone(spec: Any, store: Any) -> FakeRank:
    """A rank of a world of its own, for processes that share nothing."""
    return FakeWorld().make_worker(spec, store)
