"""A rank's process groups: one for the world, and one for each role that the rank has."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from worker.rank_spec import RankSpec


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
    dist.init_process_group(
        backend,
        init_method=f"tcp://{spec.master_addr}:{spec.master_port}",
        rank=spec.rank,
        world_size=spec.world_size,
        timeout=timedelta(seconds=spec.timeout_s),
    )
    world = dist.group.WORLD
    assert world is not None  # noqa: S101 - it was just initialised
    groups: dict[str, ProcessGroup] = {"world": world}
    # Every rank makes every group, in the same order, or the processes would wait for each other.
    for role in sorted(set(spec.groups) - {"world"}):
        for ranks in spec.groups[role]:
            group = dist.new_group(list(ranks))
            if spec.rank in ranks:
                groups[role] = group
    return groups
