"""What the calls of a whole launch cost the driver, through real Ray; nodes and ranks only answer.

A few processes stand for all nodes: the driver sends each node's message to one of them, and gets back what
the ranks of that node would say, each with seconds of its own. So messages, their sizes and their number are
those of a launch, and the driver's CPU seconds are its own; those of nodes are not counted. Nodes are looked
at as often as in a launch. Not counted: the start of the processes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.scale_parts.opening import config_of, placements_of
from benchmarks.scale_parts.world import ENVIRONMENT, FUNCTIONS, World, digest_of, probes, proposals
from warmrank.orchestrator.config.models import RayConfig
from warmrank.orchestrator.gang import ray_session
from warmrank.orchestrator.gang.launcher import ProcessStatus
from warmrank.orchestrator.gang.node_watch import Charge, Said
from warmrank.orchestrator.gang.rank_host import Opened, init_of
from warmrank.orchestrator.gang.ray_launcher import RayLauncher
from warmrank.orchestrator.gang.ray_watch import RayWatch
from warmrank.orchestrator.nodes import Gang
from warmrank.worker.results import FunctionResult, StageSeconds, Verification

Arguments = dict[int, tuple[Any, ...]]

NUM_PROCESSES = 2
TIMEOUT_S = 600.0


class Node:
    """Answers for the ranks of any node, as `NodeWatch` does."""

    def __init__(self, ranks: int) -> None:
        world = World(ranks=ranks)
        self._world = world
        self._probes, self._proposals = probes(world, state="miss"), proposals(world)

    def guard(self, charges: dict[int, Charge], *_others: Any) -> None:
        """Ranks of a node; nothing is to be done for them."""

    def look(self) -> dict[int, ProcessStatus]:
        """The ranks of a node."""
        return {}

    def call(self, _number: int, _stage: str, method: str, arguments: dict[int, Any]) -> Said:
        """What the ranks answer."""
        known: dict[str, Any] = {}  # equal answers become one object
        answers = {rank: self._answer(method, rank) for rank in arguments}
        return Said({rank: known.setdefault(repr(each), each) for rank, each in answers.items()}, True, {})

    def _answer(self, method: str, rank: int) -> Any:
        if method == "open":
            return Opened(environment=ENVIRONMENT, problem="")
        if method == "probe":
            return self._probes[rank]
        if method == "propose_captures":
            return self._proposals[rank]
        if method in {"compile", "settle", "capture", "first_call"}:
            return tuple(self._result(rank, name) for name in FUNCTIONS)
        return (
            Verification(ok=True, max_error=0.0, tolerance=1e-4, compared="") if method == "verify" else None
        )

    def _result(self, rank: int, name: str) -> FunctionResult:
        digest = digest_of(name, self._world.stage(rank))
        return FunctionResult(
            function=name,
            ok=True,
            outcome="adopted",
            reason="",
            digest=digest.sha256,
            size_bytes=digest.size_bytes,
            path=f"/cache/Llama_dynamic_aclgraphcache_0f/world{self._world.ranks}global_rank{rank}/{name}",
            seconds=StageSeconds(load_s=rank / 7.0),
        )


def launch_calls(world: World, work: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each stage of a cold launch, and how to make its calls; ranks are up when the first is yielded."""
    import ray

    session = ray_session.enter(RayConfig(num_cpus=NUM_PROCESSES), timeout_s=TIMEOUT_S)
    exported: Any = ray.remote(Node)
    handles = [
        exported.options(num_cpus=0, enable_task_events=False).remote(world.ranks)
        for _ in range(NUM_PROCESSES)
    ]
    ray.get([handle.look.remote() for handle in handles])
    config = config_of(world, work)
    placements = placements_of(world)
    gang = Gang(placements=placements, master_addr="10.0.0.1", master_port=1234)
    launcher = _launcher_of(config, gang, handles)
    everyone: Arguments = dict.fromkeys(range(world.ranks), ())
    leaders = dict.fromkeys(range(0, world.tp * world.pp, world.tp), (FUNCTIONS, ()))

    def openings() -> Arguments:
        return {
            placement.rank: (init_of(config, placement, master_addr="10.0.0.1", master_port=1234),)
            for placement in placements
        }

    def settling() -> Arguments:
        offers = [{name: digest_of(name, stage).sha256 for name in FUNCTIONS} for stage in range(world.pp)]
        return {rank: ((), offers[world.stage(rank)], {}, FUNCTIONS) for rank in range(world.ranks)}

    def steps() -> Arguments:
        return {rank: (own[0],) for rank, own in proposals(world).items()}

    calls: tuple[tuple[str, str, Callable[[], Arguments]], ...] = (
        ("start", "open", openings),
        ("build", "build", lambda: everyone),
        ("probe", "probe", lambda: everyone),
        ("compile", "compile", lambda: leaders),
        ("load", "settle", settling),
        ("captures", "propose_captures", lambda: dict.fromkeys(range(world.ranks), ((),))),
        *((f"capture {number}", "capture", steps) for number in range(4)),
        ("first_call", "first_call", lambda: everyone),
        ("verify", "verify", lambda: everyone),
        ("extra", "extra", lambda: everyone),
        ("commit", "publish", lambda: dict.fromkeys(range(world.ranks), ("0" * 64, True, False))),
        ("stop", "close", lambda: everyone),
    )
    for name, method, arguments in calls:
        yield name, partial(_num_answers, launcher, method, arguments)
    ray_session.leave(session)


def _num_answers(launcher: RayLauncher, method: str, made: Callable[[], Arguments]) -> int:
    arguments = made()
    found = launcher.call("first_call", method, arguments, timeout_s=TIMEOUT_S)
    num = sum(not isinstance(answer, ProcessStatus) for _, answer in found)
    if num != len(arguments):
        sys.exit(f"{method}: {num} of {len(arguments)} ranks answered")
    return num


def _launcher_of(config: Any, gang: Gang, handles: list[Any]) -> RayLauncher:
    """A launcher whose ranks are up, on nodes that a few processes stand for."""
    nodes = gang.by_node()
    watch = RayWatch(config.watch, (), {})
    watch._group.actors = {own[0].node_id: handles[node % len(handles)] for node, own in nodes.items()}  # noqa: SLF001 - see above
    charges = {placement.rank: Charge(pid=1, mark="", log=Path("rank.log")) for placement in gang.placements}
    watch.guard(gang, charges)
    launcher = RayLauncher(config)
    launcher._watch = watch  # noqa: SLF001 - likewise
    launcher._actors = [None] * len(gang.placements)  # noqa: SLF001 - likewise
    return launcher
