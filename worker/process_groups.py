"""A rank's process groups: one for the world, and one for each role that the rank has."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

from warmrank.worker.ascend import hccl
from warmrank.worker.errors import PortInUse
from warmrank.worker.settings import settings

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from warmrank.worker.rank_spec import RankSpec


def pretend(spec: RankSpec) -> dict[str, ProcessGroup]:
    """The groups of a rank whose world is not there: only those that it is in, in the order of `start`.

    So every group has the position among this rank's groups that it has in a launch.
    """
    from warmrank.worker.torch_private.fake_ranks import start_world

    start_world(spec.rank, spec.world_size)
    groups = {"world": _world()}
    for role, ranks in _own(spec):
        groups[role] = dist.new_group(list(ranks))
    return groups


def start(spec: RankSpec, backend: str) -> dict[str, ProcessGroup]:
    """Meet the other ranks, and make every group of every role.

    Each role gets groups of its own, also where they hold the same ranks as another role's: an artifact
    binds to the role, and in another launch the roles' groups may differ.

    Args:
        spec: this rank's place.
        backend: name of the collectives' backend (``gloo``).

    Returns:
        Role -> the group of that role that this rank is in.
    """
    timeout = _timeout(spec.timeout_s, backend)
    if spec.device_kind == "npu":
        _tell_torchair(spec)
    try:
        dist.init_process_group(
            backend,
            init_method=f"tcp://{spec.master_addr}:{spec.master_port}",
            rank=spec.rank,
            world_size=spec.world_size,
            timeout=timeout,
        )
    except dist.DistNetworkError as error:
        if "EADDRINUSE" not in str(error):
            raise
        raise PortInUse(spec.master_addr, spec.master_port) from error
    groups = {"world": _world()}
    for role, ranks in _own(spec):
        # Only its members meet to make a group: all ranks for each would cost the square of their number.
        # Without its own time-out a group would get torch's default of half an hour, not the world's.
        groups[role] = dist.new_group(list(ranks), timeout=timeout, use_local_synchronization=True)
    return groups


def _own(spec: RankSpec) -> list[tuple[str, tuple[int, ...]]]:
    """The role and the ranks of each group that this rank is in, but for the world.

    In the same order on every rank, or the members of two groups would wait for each other; and one of each
    role, because torch names a group that its members alone make by how many groups they have.
    """
    return [
        (role, tuple(ranks))
        for role in sorted(set(spec.groups) - {"world"})
        for ranks in spec.groups[role]
        if spec.rank in ranks
    ]


def _timeout(timeout_s: float, backend: str) -> timedelta:
    """Time-out of collectives; HCCL has its own, which torch's watchdog must not come before."""
    if backend != "hccl":
        return timedelta(seconds=timeout_s)
    os.environ.update(hccl.time_outs(timeout_s, settings().ascend))
    return timedelta(seconds=hccl.watchdog_s(timeout_s, settings().ascend))


def _tell_torchair(spec: RankSpec) -> None:
    """TorchAir makes static kernels of several ranks only where it sees torchrun's variables."""
    os.environ.update(LOCAL_RANK=str(spec.local_rank), LOCAL_WORLD_SIZE=str(spec.local_world_size))


def _world() -> ProcessGroup:
    world = dist.group.WORLD
    assert world is not None  # noqa: S101 - it was just initialised
    return world
