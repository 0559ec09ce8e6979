"""The order in which ranks capture: pure, from what every rank proposes.

Invariants: ranks take part in a step together, for graphs hold collectives; the largest comes first, so that
smaller graphs fit into the pool that is there; what comes from a plan is captured by all ranks that have the
artifact, or by none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import zip_longest

from warmrank.worker.results import CaptureProposal

Proposals = Mapping[int, tuple[CaptureProposal, ...]]
"""What each rank proposes."""

Step = dict[int, CaptureProposal]
"""What each rank that takes part in a step captures."""


def num_calls(proposals: tuple[CaptureProposal, ...]) -> int:
    """How many of a rank's proposals are calls of the workload."""
    return sum(not proposal.planned for proposal in proposals)


def order(proposals: Proposals, digests: Mapping[tuple[int, str], str]) -> tuple[Step, ...]:
    """All steps, the largest first.

    Args:
        proposals: of all ranks, each with as many calls as the others.
        digests: of the artifact that a rank has of a function.
    """
    steps = [*_calls(proposals), *_planned(proposals, digests)]
    return tuple(sorted(steps, key=_size, reverse=True))  # stable: of equal ones, calls come first


def _size(step: Step) -> int:
    return max(proposal.num_elements for proposal in step.values())


def _calls(proposals: Proposals) -> list[Step]:
    """Every rank's calls side by side, from its largest to its smallest."""
    ordered = [
        sorted((item for item in own if not item.planned), key=lambda item: -item.num_elements)
        for own in proposals.values()
    ]
    return [
        {rank: item for rank, item in zip(proposals, items, strict=True) if item is not None}
        for items in zip_longest(*ordered)
    ]


def _planned(proposals: Proposals, digests: Mapping[tuple[int, str], str]) -> list[Step]:
    """Planned captures on which all ranks with the artifact agree; one step for equal shapes."""
    owners = Counter((function, digest) for (_, function), digest in digests.items())
    proposers: Counter[tuple[str, str, str]] = Counter()
    for rank, own in proposals.items():
        signatures = dict.fromkeys((item.function, item.signature) for item in own if item.planned)
        for function, signature in signatures:
            proposers[function, signature, digests.get((rank, function), "")] += 1
    steps: dict[tuple[str, str], Step] = {}
    for rank, own in proposals.items():
        for item in own:
            digest = digests.get((rank, item.function), "")
            # Counted, not compared rank by rank, which would be quadratic in the number of ranks.
            agreed = proposers[item.function, item.signature, digest] >= owners[item.function, digest]
            if item.planned and agreed:
                steps.setdefault((item.function, item.shapes), {})[rank] = item
    return [steps[label] for label in sorted(steps)]
