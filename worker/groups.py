"""Process groups by role: what a graph refers to instead of this process's name for a group.

A rank of a launch declares its groups under their roles (``world``, ``tp``, ...). Groups that nobody
declared get the role ``group<i>``, their position among this rank's groups in creation order, which is
the same on every rank that runs the same script; the first is ``world``, unless another one is declared so.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from warmrank.worker.errors import GroupError
from warmrank.worker.torch_private.warm import group_references, known_groups

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_POSITION = re.compile(r"group\d+")
_declared: tuple[tuple[weakref.ref[ProcessGroup], str], ...] = ()


def declare_groups(groups: Mapping[str, ProcessGroup]) -> None:
    """Give this process's groups their roles, in place of earlier ones.

    The same group may serve under several roles (``tp`` is ``world`` without other axes); the first one
    in the mapping names it in artifacts.

    Raises:
        GroupError: a role is ``group`` and a number, by which groups go that nobody declared.
    """
    global _declared  # noqa: PLW0603 - replaced whole: other threads may read it
    for role in filter(_POSITION.fullmatch, groups):
        msg = f"{role} is what warmrank calls a group without a role, by its position; declare it as another"
        raise GroupError(msg, name=role)
    roles: dict[ProcessGroup, str] = {}
    for role, group in groups.items():
        roles.setdefault(group, role)
    _declared = tuple((weakref.ref(group), role) for group, role in roles.items())


def state() -> tuple[Any, ...]:
    """A value that stays equal until a group comes or goes, or roles are declared; keeps no group alive."""
    return _declared, group_references()


def by_role() -> dict[str, tuple[str, ProcessGroup]]:
    """Name in this process, and group, of each role."""
    known, declared = known_groups(), {reference(): role for reference, role in _declared}
    first = "group0" if "world" in map(declared.get, known.values()) else "world"
    return {
        declared.get(group) or (f"group{position}" if position else first): (name, group)
        for position, (name, group) in enumerate(known.items())
    }


def is_group(kind: type[Any]) -> bool:
    """True if a class is one of process groups, which another process knows by their roles.

    Not of an object, which torch would ask for attributes, and so may run code of the user's.
    """
    import torch.distributed as dist

    return dist.is_available() and issubclass(kind, dist.ProcessGroup)


def role_of(group: ProcessGroup | str) -> str:
    """The role of a group, given the group or its name in this process.

    Raises:
        GroupError: this rank is in no such group.
    """
    wanted = group if isinstance(group, str) else str(group.group_name)
    found = {name: role for role, (name, _) in by_role().items()}
    if wanted not in found:
        msg = f"this rank is in no process group named {wanted!r}; known: {sorted(found)}"
        raise GroupError(msg, name=wanted)
    return found[wanted]


def resolve(role: str) -> tuple[str, ProcessGroup]:
    """Name and group of a role in this process.

    Raises:
        GroupError: no group of this rank has it.
    """
    found = by_role()
    if role not in found:
        known = sorted(found) or "no groups"
        raise GroupError(f"the artifact uses a process group with role {role!r}; this rank has {known}")
    return found[role]
