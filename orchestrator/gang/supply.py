"""What there is for ranks: in a cluster that this process is on, and on this machine before there is one."""

from __future__ import annotations

import os
from collections.abc import Mapping

from orchestrator.config.models import RayConfig
from orchestrator.errors import LacksDevice
from orchestrator.gang.ray_trouble import Supply, describe_shortage

_OVERRIDE = "RAY_OVERRIDE_RESOURCES"  # ray/_private/ray_constants.py: what a Ray offers, whatever it finds


def supply_of_cluster() -> Supply:
    """What the cluster has that this process is on."""
    import ray

    everyone = ray.nodes()  # type: ignore[no-untyped-call]
    return Supply(
        total=ray.cluster_resources(),  # type: ignore[no-untyped-call]
        available=ray.available_resources(),  # type: ignore[no-untyped-call]
        nodes=tuple((node["NodeManagerHostname"], node["Resources"]) for node in everyone if node["Alive"]),
    )


def lacks_devices(bundle: Mapping[str, float], num_ranks: int, total: Mapping[str, float]) -> bool:
    """Whether there are too few accelerators, whatever there is of CPUs."""
    return any(num_ranks * need > total.get(name, 0.0) for name, need in bundle.items() if name != "CPU")


def refuse_missing_devices(bundle: Mapping[str, float], num_ranks: int, config: RayConfig) -> None:
    """Before an own Ray starts, which takes seconds: it would find no more devices than there are here.

    Raises:
        LacksDevice: there are too few.
    """
    if _OVERRIDE in os.environ:
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
