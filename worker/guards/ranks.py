"""What traced code asked ``torch.distributed`` for: Dynamo burns the answers in without a guard.

Named numbers, which `check.py` compares with the loading process: ``rank``, ``world_size`` (0 without a
process group), ``distributed`` (whether there is one), ``size of group <role>``.
"""

from __future__ import annotations

import types
from collections.abc import Iterable

from worker.sources import names_used

_RANK_NAMES = frozenset(
    {
        "get_rank",
        "get_group_rank",
        "get_global_rank",
        "get_process_group_ranks",
        "get_node_local_rank",
        "get_local_rank",
        "get_coordinate",
    }
)


def asked_ranks(codes: Iterable[types.CodeType]) -> dict[str, int]:
    """The numbers that the traced code is bound to, since it asks for them."""
    import torch.distributed as dist

    names = names_used(codes)
    initialized = dist.is_available() and dist.is_initialized()
    asked: dict[str, int] = {}
    if "is_initialized" in names:
        asked["distributed"] = int(initialized)
    if _RANK_NAMES & names and initialized:
        asked["rank"] = dist.get_rank()
    if (_RANK_NAMES | {"get_world_size"}) & names:
        asked["world_size"] = dist.get_world_size() if initialized else 0
    return asked
