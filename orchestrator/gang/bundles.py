"""How ranks are bundled for Ray: pure.

Each bundle is on one node, so a bundle for each group of ranks keeps groups whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def slots(resources: Mapping[str, float], need: Mapping[str, float], most: int) -> int:
    """How many ranks fit into resources; ``most`` where they need nothing of it."""
    # Ray counts in ten-thousandths.
    fits = [(resources.get(name, 0.0) + 1e-4) // amount for name, amount in need.items() if amount > 0]
    return int(min([*fits, most]))


def bundle_sizes(node_slots: Iterable[int], num_ranks: int, group_size: int) -> tuple[int, ...]:
    """The number of ranks in each bundle.

    Args:
        node_slots: how many ranks fit on each node.
        num_ranks: how many there are.
        group_size: how many are to stay together.

    Returns:
        A bundle for each group, as long as nodes have room for whole ones; then a bundle for each rank.
    """
    num_whole = min(num_ranks // group_size, sum(number // group_size for number in node_slots))
    return (group_size,) * num_whole + (1,) * (num_ranks - num_whole * group_size)


def index_in(sizes: Iterable[int]) -> tuple[int, ...]:
    """For each rank the index of its bundle."""
    return tuple(index for index, size in enumerate(sizes) for _ in range(size))


def times(need: Mapping[str, float], number: int) -> dict[str, float]:
    """What so many ranks need."""
    return {name: round(amount * number, 4) for name, amount in need.items() if amount > 0}
