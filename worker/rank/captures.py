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


def propose(units: Sequence[RankUnit], planned: Iterable[PlannedCapture]) -> tuple[CaptureProposal, ...]:
    """The calls of the workload whose graphs are captured, and what else of a plan this rank can capture.

    ``planned`` are of manifests of earlier launches, of this rank and of others.
    """
    shapes_of = {unit.name: _shapes(unit) for unit in units}
    for unit in units:
        unit.signatures = tuple(shapes.to_text(_artifact(unit)) for shapes in shapes_of[unit.name])
    # Compiled kernels run as they are, so there is no step to take for them.
    proposals = [
        _of_call(unit, shapes_of[unit.name])
        for unit in units
        if unit.variant is None or not unit.variant.runner.is_compiled
    ]
    known = {signature for unit in units for signature in unit.signatures}
    num_left = {id(unit.variant): _num_left(unit, units) for unit in units if unit.variant is not None}
    for entry in planned:
        if entry.signature in known:
            continue
        known.add(entry.signature)
        found = _of_plan(entry, units)
        if found is None:
            continue
        unit, shapes = found
        if num_left[id(unit.variant)] == 0:
            _log.info("not captured in advance: %s of the plan is beyond the limit", entry.function)
            continue
        num_left[id(unit.variant)] -= 1
        proposals.append(_proposal(unit, entry.signature, shapes, planned=True))
    return tuple(proposals)


def capture(units: Sequence[RankUnit], step: CaptureProposal) -> None:
    """Take one step; a planned shape that cannot be captured after all is left out."""
    unit = next(unit for unit in units if unit.name == step.function)
    variant = unit.bound()
    if not step.planned:
        variant.capture(unit.call.args, unit.call.kwargs)
        return
    _, shapes = parse(step.signature)
    inputs = _inputs(unit, shapes)
    if isinstance(inputs, str):
        _log.info("not captured in advance: %s of the plan: %s", unit.name, inputs)
        return
    try:
        variant.runner.prepare(*inputs)
    except (RuntimeError, ValueError, LookupError) as error:  # of the graph's own operators, or out of memory
        _log.warning("not captured in advance: %s of the plan: %s", unit.name, error)


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


def _of_plan(entry: PlannedCapture, units: Sequence[RankUnit]) -> tuple[RankUnit, Shapes] | None:
    """The call whose artifact an entry is of, and the shapes; None if it cannot be captured here."""
    try:
        digest, shapes = parse(entry.signature)
    except ValueError as error:
        _log.info("not captured in advance: %s of the plan: %s", entry.function, error)
        return None
    unit = next((unit for unit in units if unit.variant is not None and _artifact(unit) == digest), None)
    if unit is None:
        _log.debug("not captured in advance: %s of the plan has artifact %s", entry.function, digest[:12])
        return None
    if isinstance(inputs := _inputs(unit, shapes), str):
        _log.info("not captured in advance: %s of the plan: %s", entry.function, inputs)
        return None
    return unit, shapes


def _num_left(unit: RankUnit, units: Sequence[RankUnit]) -> int:
    """Number of graphs that may be captured of a unit's artifact beyond those of the workload's calls."""
    calls = {text for other in units if other.variant is unit.variant for text in other.signatures}
    return max(0, unit.bound().runner.max_captures - len(calls))


def _shapes(unit: RankUnit) -> list[Shapes]:
    """Plan entries of the graphs that a call needs: one, or one for every gear."""
    if unit.variant is None:
        return []
    every = unit.variant.gear_inputs(unit.call.args, unit.call.kwargs)
    found = [unit.variant.runner.shapes_for(inputs) for inputs in every]
    return [shapes for shapes in found if shapes is not None]


def _inputs(unit: RankUnit, shapes: Shapes) -> tuple[object, ...] | str:
    """Inputs of these shapes, made of the call's own; or why there are none."""
    variant = unit.bound()
    return inputs_for(shapes, variant.runner.layout, variant.inputs_of(unit.call.args, unit.call.kwargs))


def _artifact(unit: RankUnit) -> str:
    return unit.bound().stored.sha256
