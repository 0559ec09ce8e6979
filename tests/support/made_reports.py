"""Reports of launches that never ran, and rules that their traces keep."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from warmrank.cache_store.backends.deadline import TierState
from warmrank.cache_store.records.manifest import RankEnvironment
from warmrank.orchestrator.errors import Cause
from warmrank.orchestrator.gang.launcher import ProcessStatus
from warmrank.orchestrator.launch import events as e
from warmrank.orchestrator.launch.events import LaunchState
from warmrank.orchestrator.launch.report import (
    SCHEMA_VERSION,
    Failure,
    FunctionReport,
    NodeFetch,
    NodePublish,
    RankReport,
    Report,
    StageReport,
    totals,
)
from warmrank.orchestrator.nodes import RankPlacement
from warmrank.worker.results import FunctionResult, StageSeconds, Verification

FUNCTIONS = ("Llama.prefill", "Llama.decode")
MIB = 1 << 20
_STAGES = (("fetch", 0.8), ("build", 5.2), ("probe", 0.4))
_LATER = (("load", 0.9), ("capture", 2.4), ("first_call", 0.3), ("verify", 0.5), ("commit", 1.1))


def placements(num_ranks: int, per_node: int) -> tuple[RankPlacement, ...]:
    return tuple(
        RankPlacement(
            rank=rank,
            local_rank=rank % per_node,
            local_world_size=per_node,
            node_rank=rank // per_node,
            node_id=f"{rank // per_node:056x}",
            host=f"node-{rank // per_node}",
            pid=4000 + rank,
        )
        for rank in range(num_ranks)
    )


@cache
def classes(num_ranks: int) -> tuple[e.RankClass, ...]:
    """Four pipeline stages at most, whose leaders compile one function each."""
    num = min(4, num_ranks)
    parts = [tuple(range(part * num_ranks // num, (part + 1) * num_ranks // num)) for part in range(num)]
    return tuple(
        e.RankClass(
            round=0,
            function=function,
            request_key=f"{part:064x}",
            action="compile",
            ranks=ranks,
            leader=ranks[0 if function == FUNCTIONS[0] else -1],
        )
        for function in FUNCTIONS
        for part, ranks in enumerate(parts)
    )


def leaders(num_ranks: int) -> tuple[int, ...]:
    return tuple(sorted({found.leader for found in classes(num_ranks) if found.leader is not None}))


def result(name: str, *, compiled: bool) -> FunctionResult:
    return FunctionResult(
        function=name,
        ok=True,
        outcome="compiled" if compiled else "adopted",
        reason="torch 2.13.0 -> 2.13.1; source of model.py:Block.forward changed"
        if compiled
        else "from rank 0",
        digest=name.encode().hex(),
        size_bytes=3 * MIB,
        seconds=StageSeconds(trace_s=4.1, compile_s=7.9) if compiled else StageSeconds(load_s=0.034),
    )


def _step(
    stage: str, at_s: float, seconds: float, ranks: tuple[int, ...], *, slow: int = -1
) -> Iterator[e.Event]:
    yield e.StageStarted(at_s=at_s, stage=stage, ranks=ranks)
    for rank in ranks:
        part = 1.0 if rank == slow else 0.5 + 0.2 * ((rank * 7919) % 97) / 97
        yield e.RankFinished(at_s=at_s + seconds * part, stage=stage, rank=rank, ok=True)
    yield e.StageFinished(at_s=at_s + seconds, stage=stage, seconds=seconds)


def until_compile(
    num_ranks: int, per_node: int = 8, *, at_s: float = 0.0, attempt: int = 1, reason: str = ""
) -> Iterator[e.Event]:
    """A launch up to the moment in which its leaders compile."""
    everyone = tuple(range(num_ranks))
    yield e.AttemptStarted(at_s=at_s, attempt=attempt, reason=reason)
    yield e.StageStarted(at_s=at_s, stage="start", ranks=everyone)
    yield e.Placed(at_s=at_s + 1.9, placements=placements(num_ranks, per_node))
    yield e.StageFinished(at_s=at_s + 3.1, stage="start", seconds=3.1)
    at_s += 3.1
    for stage, seconds in _STAGES:
        yield from _step(stage, at_s, seconds, everyone, slow=num_ranks // 3 if stage == "build" else -1)
        at_s += seconds
    yield e.Planned(at_s=at_s, classes=classes(num_ranks))
    yield e.StageStarted(at_s=at_s, stage="compile", ranks=leaders(num_ranks))
    for rank in leaders(num_ranks):
        doing = "compile Llama.decode"
        status = ProcessStatus(state="R", cpu_s=31.2, resident_bytes=3 << 30, doing=doing)
        yield e.RankBusy(at_s=at_s + 6, rank=rank, status=status)


def whole(num_ranks: int, per_node: int = 8) -> Iterator[e.Event]:
    """A launch to its end, cold."""
    yield from until_compile(num_ranks, per_node)
    at_s = 9.5
    for index, rank in enumerate(leaders(num_ranks)):
        yield e.RankFinished(at_s=at_s + 10 + index, stage="compile", rank=rank, ok=True)
    at_s += 20
    for found in classes(num_ranks):
        if found.leader is not None:
            yield _got(at_s, "compile", found.leader, result(found.function, compiled=True))
    yield e.StageFinished(at_s=at_s, stage="compile", seconds=20.0)
    for stage, seconds in _LATER:
        yield from _step(stage, at_s, seconds, tuple(range(num_ranks)))
        at_s += seconds
        for found in classes(num_ranks) if stage == "load" else ():
            for rank in set(found.ranks) - {found.leader}:
                yield _got(at_s, stage, rank, result(found.function, compiled=False))


def _got(at_s: float, stage: str, rank: int, made: FunctionResult) -> e.FunctionFinished:
    return e.FunctionFinished(at_s=at_s, stage=stage, rank=rank, result=made)


def failing(num_ranks: int, per_node: int = 8) -> Iterator[e.Event]:
    """A launch of two attempts: a node is lost in the first, and in the second too."""
    text = "stage compile failed on 1 of 8 ranks; all ranks were stopped\n  rank 0: node lost"
    yield from until_compile(num_ranks, per_node)
    yield e.AttemptFailed(at_s=21.0, attempt=1, stage="compile", text=text, is_last=False)
    yield from until_compile(num_ranks, per_node, at_s=22.0, attempt=2, reason="node node-0 was lost")
    yield e.AttemptFailed(at_s=40.5, attempt=2, stage="compile", text=text, is_last=True)


def state_of(heard: Iterable[e.Event], num_ranks: int = 0) -> LaunchState:
    state = LaunchState(num_ranks=num_ranks)
    for event in heard:
        state.apply(event)
    return state


def made_report(num_ranks: int, *, per_node: int = 8, failed: bool = False) -> Report:
    """The report of such a launch."""
    state = state_of(failing(num_ranks, per_node) if failed else whole(num_ranks, per_node))
    ranks = tuple(_rank(placement, num_ranks, failed=failed) for placement in placements(num_ranks, per_node))
    nodes = [(rank.node_rank, rank.host) for rank in ranks if rank.local_rank == 0]
    none = {"found": False, "reason": "no launch that fits", "num_partitions": 0, "bytes_copied": 0}
    fetches = tuple(NodeFetch(node_rank=node, host=host, seconds=0.2, **none) for node, host in nodes)  # type: ignore[arg-type]
    publishes = tuple(
        NodePublish(
            node_rank=node,
            host=host,
            num_partitions=per_node,
            num_blobs_new=0 if node else 2,
            bytes_new=0 if node else 6 * MIB,
            num_queued=0,
        )
        for node, host in nodes
    )
    publishes = () if failed else publishes
    environment = {"python": "3.11.9", "torch": "2.13.1", "device": "npu", "cann": "8.0.0"}
    other = RankEnvironment(ranks=(3,), environment=environment | {"cann": "8.0.1"})
    return Report(
        schema_version=SCHEMA_VERSION,
        outcome="failed" if failed else "warm",
        exit_code=1 if failed else 0,
        failure=_failure(num_ranks, per_node) if failed else None,
        course=state.course(),
        name="llama-70b",
        launch_key="cd" * 32,
        identity={"entrypoint": "warmrank.examples.llama:build", "ranks": str(num_ranks)},
        environment=environment,
        other_environments=(other,) if num_ranks > 3 else (),
        world_size=num_ranks,
        parallel={"tp": min(8, num_ranks), "pp": 4 if num_ranks >= 32 else 1, "dp": max(num_ranks // 32, 1)},
        started="2026-11-21T12:00:00+00:00",
        cache_dir="/var/cache/warmrank",
        store="/mnt/store",
        tiers=(TierState(location="/mnt/store", mode="rw", state="used", reason=""),),
        record="" if failed else "ef" * 32,
        ranks=ranks,
        fetches=fetches,
        publishes=publishes,
        nondeterministic=(),
        queued_on=(),
        stages=tuple(StageReport(stage=name, seconds=spent) for name, spent in state.stage_seconds.items()),
        totals=totals(ranks, fetches=fetches, publishes=publishes, wall_s=state.now_s),
        problems=("rank 3: another environment than rank 0: cann 8.0.0 -> 8.0.1",) if num_ranks > 3 else (),
    )


def _rank(placement: RankPlacement, num_ranks: int, *, failed: bool) -> RankReport:
    leads = {found.function for found in classes(num_ranks) if found.leader == placement.rank}
    check = Verification(ok=True, max_error=1e-6, tolerance=1e-4, compared="logits with eager")
    part = placement.rank * 4 // num_ranks
    made = [result(name, compiled=name in leads) for name in FUNCTIONS if not failed]
    functions = tuple(
        FunctionReport(
            function=each.function,
            outcome=each.outcome,
            reason=each.reason,
            request_key=f"{part:064x}",
            digest=f"{each.digest}{part}",
            size_bytes=each.size_bytes,
            path="/cache/compiled_module",
            seconds=each.seconds,
        )
        for each in made
    )
    return RankReport(
        rank=placement.rank,
        host=placement.host,
        node_rank=placement.node_rank,
        local_rank=placement.local_rank,
        pid=placement.pid,
        log=f"/tmp/ray/session/logs/warmrank/rank-{placement.rank}.log",  # noqa: S108 - nothing is written
        functions=functions,
        verification=None if failed else check,
    )


def _failure(num_ranks: int, per_node: int) -> Failure:
    lost = tuple(range(min(per_node, num_ranks)))
    return Failure(
        kind="LaunchFailed",
        message=f"stage compile failed on {len(lost)} of {num_ranks} ranks; all ranks were stopped",
        stage="compile",
        causes=(
            Cause(
                ranks=lost,
                kind="node lost",
                function="",
                message="node-0 gave no sign of life for 10 s",
                remedy="look whether node-0 is up and reachable, and launch again",
                hosts=("node-0",),
            ),
        ),
        silent=(num_ranks - 1,),
    )


def faults_of(text: str) -> list[str]:
    """What Perfetto's importer would drop or mistake in a trace, in words."""
    trace = json.loads(text)
    events: list[dict[str, Any]] = trace["traceEvents"]
    faults = ["displayTimeUnit is taken for the unit of the times"] if "displayTimeUnit" in trace else []
    owner: dict[int, int] = {}
    named = {(event["name"], event["pid"], event["tid"]) for event in events if event["ph"] == "M"}
    for event in events:
        place = event["pid"], event["tid"]
        if list(event)[:2] != ["ph", "ts"] or min(*place, event.get("dur", 1) + 1) < 1:
            faults.append(f"ph and ts not first, a process or thread 0, or a duration below 0: {event}")
        if owner.setdefault(event["tid"], event["pid"]) != event["pid"]:
            faults.append(f"thread {event['tid']} is of processes {owner[event['tid']]} and {event['pid']}")
        if ("thread_name", *place) not in named:
            faults.append(f"thread {event['tid']} has no name")
    open_ends: dict[int, list[int]] = {}
    for event in sorted((each for each in events if each["ph"] == "X"), key=lambda each: each["ts"]):
        stack, end = open_ends.setdefault(event["tid"], []), event["ts"] + event["dur"]
        while stack and stack[-1] <= event["ts"]:
            stack.pop()
        if stack and end > stack[-1]:
            faults.append(f"{event['name']} outlasts what is open on thread {event['tid']}")
        stack.append(end)
    return faults
