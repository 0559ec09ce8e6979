"""One stage at one size in a process of its own: seconds and the memory that it took at its peak."""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from benchmarks.scale_parts import opening, planning, storing
from benchmarks.scale_parts.world import RANKS_A_NODE, World, manifests, write_artifacts


class Watch:
    """Measures steps; ``figures`` has seconds, CPU seconds and memory of each, and of all together."""

    def __init__(self) -> None:
        self._start_bytes = peak_bytes()
        self.figures: dict[str, Any] = {"seconds": 0.0, "cpu_s": 0.0, "steps": {}}

    def step(self, name: str, call: Callable[[], Any]) -> Any:
        """Do one step."""
        wall, cpu = perf_counter(), process_time()
        value = call()
        taken = {"seconds": perf_counter() - wall, "cpu_s": process_time() - cpu}
        self.figures["steps"][name] = taken
        for unit, amount in taken.items():
            self.figures[unit] += amount
        self.figures["peak_bytes"] = peak_bytes() - self._start_bytes
        return value


def peak_bytes() -> int:
    """Peak memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def plan(world: World, work: Path) -> dict[str, Any]:
    """All that the driver decides."""
    del work
    watch = Watch()
    cold = watch.step("cold", lambda: planning.cold(world))
    warm = watch.step("warm", lambda: planning.warm(world))
    resized = watch.step("resized", lambda: planning.resized(world))
    captures = watch.step("captures", lambda: planning.captures(world))
    found = {"cold": cold, "warm": warm, "resized": resized, "capture_steps": captures}
    return {**watch.figures, "found": found}


def hand_out(world: World, work: Path) -> dict[str, Any]:
    """What the driver sends to every rank, and what one of them makes of it."""
    watch = Watch()
    sent = watch.step("pack", lambda: opening.packed(world, work))
    watch.step("unpack", lambda: [opening.unpacked(data) for data in sent[:: max(1, world.ranks // 16)]])
    return {**watch.figures, "found": {"bytes_a_rank": sum(map(len, sent)) / world.ranks}}


def commit(world: World, work: Path) -> dict[str, Any]:
    """A cold launch's manifests and record into an empty store."""
    storing.make_key(work)
    root = work / "cache"
    files = write_artifacts(world, root)
    made = manifests(world)
    store = storing.open_store(work)
    gc.freeze()  # in a launch each rank has its own manifest; here all would be walked by each collection
    watch = Watch()
    refs = watch.step("manifests", lambda: storing.publish(store, made, files, root))
    record = watch.step("record", lambda: storing.commit(store, refs))
    stored = [path for path in (work / "store" / "ac").rglob("*") if path.is_file()]
    return {**watch.figures, "found": {"record": record, "manifests": len(stored)}}


def look_up(world: World, work: Path) -> dict[str, Any]:
    """What a later launch of the same ranks asks the store: one node, and the driver."""
    store = storing.open_store(work)
    refs = storing.refs_there(store)
    last = (world.ranks - 1) // RANKS_A_NODE
    watch = Watch()
    first = watch.step("a new node", lambda: storing.seed_node(store, world, last, work / "node"))
    again = watch.step("a warm node", lambda: storing.seed_node(store, world, last, work / "node"))
    record = watch.step("driver", lambda: storing.commit(store, refs))
    return {**watch.figures, "found": {"record": record, "nodes": [_seeded(first), _seeded(again)]}}


def resized(world: World, work: Path) -> dict[str, Any]:
    """What the first node of a launch of another size asks: which artifacts are there at all."""
    store = storing.open_store(work)
    watch = Watch()
    found = watch.step(
        "node", lambda: storing.seed_node(store, world, 0, work / "other", ranks=2 * world.ranks)
    )
    return {**watch.figures, "found": {"nodes": [_seeded(found)]}}


def _seeded(report: Any) -> dict[str, Any]:
    return {
        "found": report.found,
        "partitions": len(report.partitions),
        "files": sum(item.num_files for item in report.partitions),
        "faults": list(report.faults),
    }


def calls(world: World, work: Path) -> dict[str, Any]:
    """All calls of all ranks, as the driver makes them."""
    from benchmarks.scale_parts.calling import launch_calls  # Ray, which the others do without

    watch = Watch()
    num = {name: watch.step(name, call) for name, call in launch_calls(world, work)}
    return {**watch.figures, "found": {"answers": sum(num.values())}}


STAGES: dict[str, Callable[[World, Path], dict[str, Any]]] = {
    "plan": plan,
    "hand-out": hand_out,
    "commit": commit,
    "look-up": look_up,
    "resized": resized,
}


def measure(stage: str, ranks: int, work: Path) -> dict[str, Any]:
    """Figures of one stage at one size."""
    figures = {**STAGES, "calls": calls}[stage](World(ranks=ranks), work)
    if "torch" in sys.modules:
        raise RuntimeError("torch was imported: these figures must not depend on it")
    return figures
