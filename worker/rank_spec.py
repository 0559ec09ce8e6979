"""What the driver tells one rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warmrank.worker.values import Value


class RankSpec(Value):
    """What the driver tells one rank.

    Attributes:
        rank: global rank, from 0.
        world_size: number of ranks.
        local_rank: rank within its node.
        local_world_size: ranks on its node.
        node_rank: number of its node.
        master_addr: address of rank 0's node.
        master_port: free port there; 0 where no process groups are wanted.
        device_kind: ``cpu``, ``cuda`` or ``npu``.
        groups: role -> the ranks of every group of that role; every rank is in one group of each role.
        entrypoint: ``module:function``; empty for a script.
        arguments: keyword arguments of the entrypoint.
        cache_dir: the rank's cache directory.
        guards: ``once``, ``always`` or ``skip``.
        timeout_s: time-out of collectives, in seconds.
        no_compile: a miss is an error, wherever on this rank it comes up.
        engine: ``auto``, ``graph``, ``aoti`` or ``torchair``, for functions that do not say.
        audited: what is compiled is compared with other ranks' traces before they adopt it.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    master_addr: str
    master_port: int
    device_kind: str
    groups: Mapping[str, tuple[tuple[int, ...], ...]]
    entrypoint: str
    arguments: Mapping[str, Any]
    cache_dir: str
    guards: str
    timeout_s: float
    no_compile: bool = False
    engine: str = "auto"
    audited: bool = False
