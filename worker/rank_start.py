"""How a rank comes up, and goes down: the device, the process groups, and the workload built between them."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from warmrank.worker.keys.environment import environment

from warmrank.worker.results import RankPlace

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from warmrank.worker.rank.start import RankSpec
    from warmrank.worker.rank.workload import RankContext, Workload

    from warmrank.worker.runtime.options import LaunchDefaults


def bring_up(spec: RankSpec) -> dict[str, ProcessGroup]:
    """Bring up the device and the process groups.

    Returns:
        Role -> the group of that role that this rank is in; empty where none are wanted.

    Raises:
        DeviceUnavailable: the device kind cannot be used on this node, or has no device for this rank.
    """
    import torch

    from warmrank.worker.devices import backend_for
    from warmrank.worker.rank import start as process_groups

    backend = backend_for(spec.device_kind)
    device = backend.device(spec.local_rank)
    # Collectives and new tensors go to the current device. The CPU's function of this name does nothing.
    torch.get_device_module(device.type).set_device(device)
    return process_groups.start(spec, backend.collectives) if spec.master_port else {}


def name_groups(started: Mapping[str, ProcessGroup]) -> None:
    """Let artifacts name the groups of this rank by their roles."""
    from warmrank.worker import groups

    # World comes last: a group of its own role names an artifact's group more exactly.
    groups.register(dict(sorted(started.items(), key=lambda item: item[0] == "world")))


def place_of(spec: RankSpec) -> RankPlace:
    """Where this rank runs."""
    return RankPlace(rank=spec.rank, host=socket.gethostname(), pid=os.getpid(), environment=environment())


def workload_of(spec: RankSpec, groups: Mapping[str, ProcessGroup]) -> Workload:
    """Import the entrypoint and build model and calls.

    Raises:
        WorkloadError: the entrypoint does not import, or returns something else than a workload.
    """
    from warmrank.worker.rank.workload import build_workload

    return build_workload(spec.entrypoint, _context(spec, groups), spec.arguments)


def defaults_of(spec: RankSpec) -> LaunchDefaults:
    """What the launch lays down for cached functions of this rank."""
    from warmrank.worker.runtime.options import LaunchDefaults

    return LaunchDefaults(
        cache_dir=spec.cache_dir,
        guards=spec.guards,  # type: ignore[arg-type]
        engine=spec.engine,  # type: ignore[arg-type]
        no_compile=spec.no_compile,
        place=None if spec.master_port else (spec.rank, spec.world_size),
    )


def _context(spec: RankSpec, groups: Mapping[str, ProcessGroup]) -> RankContext:
    from warmrank.worker.rank.workload import RankContext

    from warmrank.worker.devices import backend_for

    return RankContext(
        rank=spec.rank,
        world_size=spec.world_size,
        local_rank=spec.local_rank,
        device_kind=spec.device_kind,
        device=backend_for(spec.device_kind).device(spec.local_rank),
        groups=dict(groups),
    )


def take_down() -> None:
    """Take the process groups down."""
    import torch.distributed as dist

    from warmrank.worker import groups

    groups.register({})
    dist.destroy_process_group()
