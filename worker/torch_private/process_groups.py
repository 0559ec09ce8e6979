"""Process groups: the names by which functional collectives refer to them."""

from __future__ import annotations

from typing import Any

FACTS = {
    "torch.distributed.distributed_c10d:_World": "pg_names",
}


def group_name(group: Any) -> str:
    """The name by which functional collectives refer to a process group in this process."""
    return str(group.group_name)


def known_groups() -> dict[str, Any]:
    """All process groups of this process that this rank belongs to, in the order of their creation.

    Relies on ``torch.distributed.distributed_c10d._world.pg_names`` being an insertion-ordered mapping
    of group to name.
    """
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return {}
    from torch.distributed import distributed_c10d

    names = distributed_c10d._world.pg_names
    return {str(name): group for group, name in names.items() if group.rank() >= 0}


def group_addresses() -> tuple[int, ...]:
    """What is equal as long as no process group comes or goes; under a microsecond for a few groups."""
    from torch.distributed import distributed_c10d

    return tuple(map(id, distributed_c10d._world.pg_names))
