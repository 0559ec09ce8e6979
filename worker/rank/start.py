"""Start of a rank as its driver specifies it: device, process groups, workload.

Time-outs of HCCL, the collectives of Ascend, follow the launch's, which a user is to see. HCCL reads its
variables when a communicator is made; what a user has set stays. Of CANN's reference
(https://www.hiascend.com/document/detail/zh/canncommercial/900/maintenref/envvar/envref_07_0077.html, _0078):
``HCCL_CONNECT_TIMEOUT``, how long ranks wait for each other to connect, 120 to 7200 s; ``HCCL_EXEC_TIMEOUT``,
how long a collective waits for the other ranks, where 0 is for ever. torch's watchdog must come later, or
HCCL's own report of the missing rank is lost: torch_npu warns of that (``ProcessGroupHCCL.cpp``).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from warmrank.worker.errors import PortInUse
from warmrank.worker.settings import settings
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


_CONNECT, _EXECUTE = "HCCL_CONNECT_TIMEOUT", "HCCL_EXEC_TIMEOUT"
_LEAST_CONNECT_S, _MOST_CONNECT_S = 120, 7200
_GRACE_S = 60.0


class RankSpec(Value):
    """Specification of one rank."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    master_addr: str
    master_port: int  # free port there; 0 where no process groups are wanted
    device_kind: str
    groups: Mapping[str, Sequence[int]]  # role -> ranks of the group of that role that this rank is in
    entrypoint: str  # ``module:function``; empty for a script
    arguments: Mapping[str, Any]
    cache_dir: str
    guards: str
    timeout_s: float  # time-out of collectives, in seconds
    no_compile: bool = False  # a miss is an error, wherever on this rank it comes up
    engine: str = "auto"  # ``auto``, ``graph``, ``aoti`` or ``torchair``, for functions that do not say
    audited: bool = False  # what is compiled is compared with other ranks' traces before they adopt it


def pretend_groups(spec: RankSpec) -> dict[str, ProcessGroup]:
    """The groups of a rank whose world is not there, each at the position that it has in a launch."""
    from warmrank.worker.torch_private.fake_ranks import start_world

    start_world(spec.rank, spec.world_size)
    return _groups(spec)


def start_groups(spec: RankSpec, backend: str) -> dict[str, ProcessGroup]:
    """Meet the other ranks, and make this rank's group of every role.

    Each role gets groups of its own, also where they hold the same ranks as another role's: an artifact
    binds to the role, and in another launch the roles' groups may differ.

    Returned by role: the group that this rank is in.
    """
    import torch.distributed as dist

    timeout_s = _set_hccl_time_outs(spec.timeout_s) if backend == "hccl" else spec.timeout_s
    timeout = timedelta(seconds=timeout_s)
    if spec.device_kind == "npu":
        # TorchAir makes static kernels of several ranks only where it sees torchrun's variables.
        os.environ.update(LOCAL_RANK=str(spec.local_rank), LOCAL_WORLD_SIZE=str(spec.local_world_size))
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
        raise PortInUse(
            f"port {spec.master_port} of {spec.master_addr}, where ranks were to meet, was free a moment ago "
            "and is another process's now; another attempt takes another port"
        ) from error
    # Only its members meet to make a group: all ranks for each would cost the square of their number.
    # Without its own time-out a group would get torch's default of half an hour, not the world's.
    return _groups(spec, timeout=timeout, use_local_synchronization=True)


def _groups(spec: RankSpec, **options: Any) -> dict[str, ProcessGroup]:
    """The world, and each group that this rank is in.

    In the same order on every rank, or the members of two groups would wait for each other; and one of each
    role, because torch names a group that its members alone make by how many groups they have.
    """
    import torch.distributed as dist

    world = dist.group.WORLD
    assert world is not None  # noqa: S101 - it was just initialised
    roles = sorted(spec.groups.keys() - {"world"})
    return {"world": world, **{role: dist.new_group([*spec.groups[role]], **options) for role in roles}}


def _set_hccl_time_outs(timeout_s: float) -> float:
    """Let HCCL wait as long as the launch, unless a user said how long; return the watchdog's time-out."""
    given, longest = settings().ascend, math.ceil(timeout_s)
    if not given.get(_CONNECT):
        os.environ[_CONNECT] = str(min(max(longest, _LEAST_CONNECT_S), _MOST_CONNECT_S))
    if not given.get(_EXECUTE):
        os.environ[_EXECUTE] = str(max(longest, 1))  # 0 would be for ever
    text = os.environ[_EXECUTE]
    execute_s = int(text) if text.isdecimal() else 0  # 0: HCCL waits for ever, and the watchdog alone ends it
    return max(timeout_s, execute_s) + _GRACE_S
