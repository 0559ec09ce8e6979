"""A rank's captures: what it proposes, each step, and its manifest's plan.

All ranks capture in step, because graphs hold collectives: the driver gathers proposals, and hands every rank
its part of one order (`orchestrator.launch.stages`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from warmrank.worker.capture.plan import Shapes, inputs_for, parse
from warmrank.worker.results import CaptureProposal, PlannedCapture

if TYPE_CHECKING:
    from warmrank.worker.rank.units import RankUnit

_log = logging.getLogger(__name__)
_NOT_IN_ADVANCE = "not captured in advance: %s of the plan: %s"


def propose(units: Sequence[RankUnit], planned: Iterable[PlannedCapture]) -> tuple[CaptureProposal, ...]:
    """The calls of the workload whose graphs are captured, and what else of a plan this rank can capture.

    ``planned`` are of manifests of earlier launches, of this rank and of others.
    """
    proposals = []
    calls: dict[int, set[str]] = {}  # of each variant
    for unit in units:
        shapes = _shapes(unit)
        unit.signatures = tuple(one.to_text(_artifact(unit)) for one in shapes)
        calls.setdefault(id(unit.variant), set()).update(unit.signatures)
        # Compiled kernels run as they are, so there is no step to take for them.
        if unit.variant is None or not unit.variant.runner.is_compiled:
            proposals.append(_of_call(unit, shapes))
    for entry in planned:
        if any(entry.signature in known for known in calls.values()):
            continue
        try:
            unit, one, _ = _planned(entry.signature, units)
        except LookupError as reason:  # only other ranks have it
            _log.debug(_NOT_IN_ADVANCE, entry.function, reason)
            continue
        except ValueError as reason:
            _log.info(_NOT_IN_ADVANCE, entry.function, reason)
            continue
        known = calls[id(unit.variant)]
        if len(known) >= unit.bound().runner.max_captures:
            _log.info(_NOT_IN_ADVANCE, entry.function, "it is beyond the limit")
            continue
        known.add(entry.signature)
        proposals.append(_proposal(unit, entry.signature, one, planned=True))
    return tuple(proposals)


def capture(units: Sequence[RankUnit], step: CaptureProposal) -> None:
    """Take one step; a planned shape that cannot be captured after all is left out."""
    unit = next(unit for unit in units if unit.name == step.function)
    if not step.planned:
        unit.bound().capture(unit.call.args, unit.call.kwargs)
        return
    try:
        _, _, inputs = _planned(step.signature, (unit,))
        unit.bound().runner.prepare(*inputs)
    except (RuntimeError, ValueError, LookupError) as error:  # of the graph's own operators, or out of memory
        _log.warning(_NOT_IN_ADVANCE, unit.name, error)


def captured(units: Sequence[RankUnit]) -> dict[str, tuple[str, ...]]:
    """For each unit the signatures of what is captured, largest first; each once.

    What no call of the workload asked for (an earlier plan, the check) counts to its artifact's first unit.
    """
    loaded = [unit for unit in units if unit.variant is not None]
    sizes = {
        shapes.to_text(_artifact(unit)): shapes.num_elements
        for unit in loaded
        for shapes in unit.bound().runner.shapes()
    }
    left = dict(sizes)
    found: dict[str, list[str]] = {unit.name: [] for unit in units}
    for unit in units:
        found[unit.name] += [text for text in unit.signatures if left.pop(text, None) is not None]
    for signature in left:
        digest, _ = parse(signature)
        found[next(unit.name for unit in loaded if _artifact(unit) == digest)].append(signature)
    return {name: tuple(sorted(own, key=lambda text: -sizes[text])) for name, own in found.items()}


def _of_call(unit: RankUnit, every: Sequence[Shapes]) -> CaptureProposal:
    if every:
        shapes = max(every, key=lambda shapes: shapes.num_elements)
        return _proposal(unit, shapes.to_text(_artifact(unit)), shapes, planned=False)
    import torch

    from warmrank.worker.torch_private.places import leaves

    tensors = leaves((unit.call.args, dict(unit.call.kwargs)))
    size = sum(leaf.numel() for leaf in tensors if isinstance(leaf, torch.Tensor))
    return CaptureProposal(function=unit.name, signature="", shapes="", num_elements=size, planned=False)


def _proposal(unit: RankUnit, signature: str, shapes: Shapes, *, planned: bool) -> CaptureProposal:
    return CaptureProposal(
        function=unit.name,
        signature=signature,
        shapes=shapes.to_text(""),
        num_elements=shapes.num_elements,
        planned=planned,
    )


def _planned(signature: str, units: Sequence[RankUnit]) -> tuple[RankUnit, Shapes, tuple[object, ...]]:
    """The call whose artifact an entry of a plan is of, the shapes, and inputs of these, made of the call's.

    Raises `LookupError`: no call has this artifact; `ValueError`: it cannot be captured here; says why.
    """
    digest, shapes = parse(signature)
    unit = next((unit for unit in units if unit.variant is not None and _artifact(unit) == digest), None)
    if unit is None:
        raise LookupError(f"it has artifact {digest[:12]}")
    variant = unit.bound()
    inputs = inputs_for(shapes, variant.runner.layout, variant.inputs_of(unit.call.args, unit.call.kwargs))
    if isinstance(inputs, str):
        raise ValueError(inputs)  # noqa: TRY004 - text is the reason
    return unit, shapes, inputs


def _shapes(unit: RankUnit) -> list[Shapes]:
    """Plan entries of the graphs that a call needs: one, or one for every gear."""
    if unit.variant is None:
        return []
    every = unit.variant.gear_inputs(unit.call.args, unit.call.kwargs)
    found = [unit.variant.runner.shapes_for(inputs) for inputs in every]
    return [shapes for shapes in found if shapes is not None]


def _artifact(unit: RankUnit) -> str:
    return unit.bound().stored.sha256
