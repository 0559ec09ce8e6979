"""What stands for each leaf of Dynamo's guard tree: a portable condition, or a named rule; else a refusal."""

from __future__ import annotations

from collections.abc import Container

from warmrank.worker.errors import NotPortable
from warmrank.worker.torch_private.dynamo_guards import KEY, MARKS, GuardTree, Leaf
from warmrank.worker.values import Value

# Leaves that need no condition of their own, and why.
RULES = {
    "pinned": "the versions in the environment fingerprint fix it",
    "ambient": "read from the process on every load and call",
    "identity": "objects that were distinct, tensors among them, have to be so",
    "keys": "all keys of the dict are a condition, in their order",
    "marks": "marks of dimensions say how to compile, and change no result",
}


class Account(Value):
    """A leaf, and what stands for it: ``guard KIND`` for a translated guard, or a name in `RULES`."""

    leaf: Leaf
    by: str


def accounts(
    tree: GuardTree, *, ambient: Container[str], translated: Container[str], pinned: tuple[str, ...]
) -> tuple[Account, ...]:
    """What stands for each leaf of a tree.

    Args:
        tree: the tree.
        ambient: kinds of guards on the state of the process.
        translated: kinds of guards that have a portable form.
        pinned: expressions for objects whose content the versions fix.

    Raises:
        NotPortable: nothing stands for a leaf; the message names it and the object that it looks at.
    """
    return tuple(
        Account(
            leaf=leaf,
            by="pinned" if any(name in leaf.source for name in pinned) else _by(leaf, ambient, translated),
        )
        for leaf in tree.leaves
    )


def _by(leaf: Leaf, ambient: Container[str], translated: Container[str]) -> str:
    if leaf.made_by in ambient:
        return "ambient"
    if leaf.made_by == KEY:
        return "keys"
    if leaf.made_by == "TENSOR_MATCH" and leaf.kind in MARKS:
        return "marks"
    if leaf.made_by in translated:
        return f"guard {leaf.made_by}"
    if leaf.kind == "NO_TENSOR_ALIASING":
        return "identity"
    msg = (
        f"Dynamo checks {leaf.source} by {leaf.kind} ({'; '.join(leaf.conditions)}), which no condition can. "
        "Pass the object as an argument, keep it as a plain attribute, or leave it out of the function."
    )
    raise NotPortable(msg, guard=leaf.kind, source=leaf.source)
