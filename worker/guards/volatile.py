"""What a cached function itself writes to: conditions on it are checked on every call, not once per load.

A function that counts its calls, flips a flag or replaces its buffer makes its own conditions false.
"""

from __future__ import annotations

from collections.abc import Iterable

from warmrank.worker.errors import NotPortable
from warmrank.worker.guards.paths import PathTable
from warmrank.worker.torch_private.tracing import TracedWrite


def volatile_nodes(table: PathTable, writes: Iterable[TracedWrite]) -> tuple[int, ...]:
    """Nodes whose value a call may change.

    For an attribute: the object itself (whether it has the attribute) and all below the attribute. For a
    list, a dict or another container: the container and all below it.

    Raises:
        NotPortable: the function writes to an object that has no path.
    """
    found: set[int] = set()
    for write in writes:
        try:
            holder = table.add(write.source)
        except NotPortable as error:
            msg = f"the function writes to {write.source}, which no later process can find: {error.message}"
            raise NotPortable(msg, what=write.source) from error
        if write.attribute:
            found |= _of_attribute(table, holder, write.attribute)
        else:
            found |= _below(table, {holder})
    return tuple(sorted(found))


def _of_attribute(table: PathTable, holder: int, name: str) -> set[int]:
    owners = {holder}
    roots: set[int] = set()
    for index, (parent, step, argument) in enumerate(table.nodes):
        if parent == holder and (step, argument) == ("attr", "__dict__"):
            owners.add(index)
        elif parent in owners and argument == name:
            roots.add(index)
    return owners | _below(table, roots)


def _below(table: PathTable, roots: set[int]) -> set[int]:
    found = set(roots)
    for index, (parent, _, _) in enumerate(table.nodes):
        if parent in found:
            found.add(index)
    return found
