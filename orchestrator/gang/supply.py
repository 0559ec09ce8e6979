"""What there is for ranks: on nodes of a cluster, and on this machine before there is one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from warmrank.orchestrator.config.doubts import RAY_OVERRIDE
from warmrank.orchestrator.config.models import RayConfig
from warmrank.orchestrator.errors import LacksDevice
from warmrank.orchestrator.gang.eligible import Eligible, RayNode
from warmrank.orchestrator.gang.ray_trouble import Supply, describe_shortage


def supply_of(eligible: Eligible) -> Supply:
    """What the nodes have that may have ranks."""
    free: dict[str, float] = {}
    for resources in available_on(eligible.nodes):
        for name, amount in resources.items():
            free[name] = free.get(name, 0.0) + amount
    return Supply(
        total=eligible.total(),
        available=free,
        nodes=tuple((known.node.host, known.resources) for known in eligible.nodes),
        silent=tuple(f"{node}" for node in eligible.silent),
        wanted_labels=eligible.wanted,
        unlabelled=tuple((known.node.host, known.labels) for known in eligible.unlabelled),
    )


def available_on(nodes: Iterable[RayNode]) -> list[Mapping[str, float]]:
    """What of each node is free."""
    from ray._private import state  # Ray has no public name for it

    found = state.available_resources_per_node()  # type: ignore[no-untyped-call]
    return [found.get(known.node.node_id, {}) for known in nodes]


def lacks_devices(bundle: Mapping[str, float], num_ranks: int, total: Mapping[str, float]) -> bool:
    """Whether there are too few accelerators, whatever there is of CPUs."""
    return any(num_ranks * need > total.get(name, 0.0) for name, need in bundle.items() if name != "CPU")


def refuse_missing_devices(bundle: Mapping[str, float], num_ranks: int, config: RayConfig) -> None:
    """Before an own Ray starts, which takes seconds: it would find no more devices than there are here.

    Raises:
        LacksDevice: there are too few.
    """
    if RAY_OVERRIDE in os.environ:
        return
    here = {"CPU": float(config.num_cpus or os.cpu_count() or 1)}
    for name in bundle:
        if name == "CPU":
            continue
        num_here = _num_here(name)
        if num_here is None:
            return
        here[name] = float(num_here)
    if lacks_devices(bundle, num_ranks, here):
        supply = Supply(total=here, available=here)
        raise LacksDevice(describe_shortage(bundle, num_ranks, supply, state="INFEASIBLE", own=True))


def _num_here(resource: str) -> int | None:
    """How many Ray would find; None for a Ray that cannot be asked before it has started."""
    try:
        from ray._private.accelerators import get_accelerator_manager_for_resource
    except ImportError:
        return None
    manager = get_accelerator_manager_for_resource(resource)
    return None if manager is None else int(manager.get_current_node_num_accelerators())
