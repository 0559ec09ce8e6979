"""Process groups by role: what a graph refers to instead of this process's name for a group.

A rank of a launch registers its groups under their roles (``world``, ``tp``, ...). Groups that nobody
registered get the role ``group<i>``, their position among this rank's groups in creation order, which is
the same on every rank that runs the same script.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from warmrank.worker.errors import GroupError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_registered: dict[str, str] = {}


def declare_groups(groups: Mapping[str, ProcessGroup]) -> None:
    """Give this process's groups their roles, in place of earlier ones.

    The same group may serve under several roles (``tp`` is ``world`` without other axes); the first one
    in the mapping names it in artifacts.
    """
    _registered.clear()
    for role, group in groups.items():
        _registered.setdefault(str(group.group_name), role)


def is_group(kind: type[Any]) -> bool:
    """True if a class is one of process groups, which another process knows by their roles.

    Not of an object, which torch would ask for attributes, and so may run code of the user's.
    """
    import torch.distributed as dist

    return dist.is_available() and issubclass(kind, dist.ProcessGroup)


def role_of(group: ProcessGroup | str) -> str:
    """The role of a group, given the group or its name in this process."""
    from warmrank.worker.torch_private.warm import known_groups

    name = group if isinstance(group, str) else str(group.group_name)
    if name in _registered:
        return _registered[name]
    for position, known in enumerate(known_groups()):
        if known == name:
            return "world" if position == 0 else f"group{position}"
    msg = f"this rank is in no process group named {name!r}; known: {sorted(known_groups())}"
    raise GroupError(msg, name=name)


def resolve(role: str) -> tuple[str, Any]:
    """Name and group of a role in this process."""
    from warmrank.worker.torch_private.warm import known_groups

    found = reversed(known_groups().items())  # of two with one role the first
    by_role = {role_of(name): (name, group) for name, group in found}
    if role not in by_role:
        known = sorted(by_role) or "no groups"
        raise GroupError(f"the artifact uses a process group with role {role!r}; this rank has {known}")
    return by_role[role]
