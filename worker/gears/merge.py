"""Gears of several dimensions become the combinations that a function runs with. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from warmrank.worker.errors import GearError

MAX_COMBINATIONS = 100

Combination = tuple[int, ...]


def merged(
    gears: Sequence[Sequence[int]], policy: str, names: Sequence[str] | None = None
) -> tuple[Combination, ...]:
    """The combinations, each once, in the order in which the policy gives them.

    Args:
        gears: one list of sizes per geared dimension.
        policy: ``zip`` takes the first of each list, then the second; ``product`` takes all with all.
        names: of the dimensions, for the error.

    Raises:
        GearError: ``zip`` of lists of different lengths, or more than `MAX_COMBINATIONS`.
    """
    if policy == "zip" and len({len(sizes) for sizes in gears}) > 1:
        named = names or [f"dimension {index}" for index in range(len(gears))]
        lengths = ", ".join(f"{name} has {len(sizes)}" for name, sizes in zip(named, gears, strict=True))
        msg = (
            'inference_config.dynamic_gears_merge_policy is "zip", which pairs gears by position, but the '
            f'lists differ in length: {lengths}. Give all as many, or set the policy to "product".'
        )
        raise GearError(msg, policy=policy)
    # A product of many lists is counted before it is written out.
    found: dict[Combination, None] = {}
    for combination in zip(*gears, strict=True) if policy == "zip" else itertools.product(*gears):
        found[combination] = None
        if len(found) > MAX_COMBINATIONS:
            msg = (
                f"the gears make more than {MAX_COMBINATIONS} combinations under the policy {policy!r}; "
                'set fewer gears, or the policy "zip"'
            )
            raise GearError(msg, policy=policy)
    return tuple(found)


def covering(combinations: Sequence[Combination], sizes: Sequence[int]) -> Combination | None:
    """The last combination that is nowhere smaller than ``sizes``, where the largest come first."""
    for combination in reversed(combinations):
        if all(gear >= size for gear, size in zip(combination, sizes, strict=True)):
            return combination
    return None
