"""A rank's captures: what it proposes, each step, the streams that they take, and its manifest's plan.

All ranks capture in step, because graphs hold collectives: the driver gathers proposals, and hands every rank
its part of one order (`orchestrator.launch.steps`).
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from warmrank.worker.capture.plan import Shapes, inputs_for, parse
from warmrank.worker.devices.failures import Captures, problem
from warmrank.worker.results import CaptureProposal, PlannedCapture
from warmrank.worker.settings import settings

if TYPE_CHECKING:
    from warmrank.worker.rank.units import RankUnit
    from warmrank.worker.rank.workload import Call
    from warmrank.worker.runtime.artifact import Artifact

_log = logging.getLogger(__name__)


def propose(units: Sequence[RankUnit], planned: Iterable[PlannedCapture]) -> tuple[CaptureProposal, ...]:
    """The calls of the workload whose graphs are captured, and what else of a plan this rank can capture.

    ``planned`` are of manifests of earlier launches, of this rank and of others.
    """
    for unit in units:
        unit.signatures = tuple(shapes.to_text(_artifact(unit)) for shapes in _shapes(unit))
    # Compiled kernels run as they are, so there is no step to take for them.
    calls = [_of_call(unit) for unit in units if unit.variant is None or not unit.variant.runner.is_compiled]
    known = {signature for unit in units for signature in unit.signatures}
    num_left = {id(unit.variant): _num_left(unit, units) for unit in units if unit.variant is not None}
    proposals = []
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
    return (*calls, *proposals)


def capture(units: Sequence[RankUnit], step: CaptureProposal) -> None:
    """Take one step; a planned shape that cannot be captured after all is left out."""
    unit = next(unit for unit in units if unit.name == step.function)
    variant = unit.bound()
    if not step.planned:
        variant.capture(unit.call.args, unit.call.kwargs)
        return
    _, shapes = parse(step.signature)
    runner = variant.runner
    inputs = inputs_for(shapes, runner.layout, _example(unit))
    if isinstance(inputs, str):
        _log.info("not captured in advance: %s of the plan: %s", unit.name, inputs)
        return
    try:
        runner.prepare(*inputs)
    except (RuntimeError, ValueError, LookupError) as error:  # of the graph's own operators, or out of memory
        _log.warning("not captured in advance: %s of the plan: %s", unit.name, error)


def captured(units: Sequence[RankUnit]) -> dict[str, tuple[str, ...]]:
    """For each unit the signatures of what is captured, largest first; each once.

    What no call of the workload asked for (an earlier plan, the check) counts to its artifact's first unit.
    """
    left: dict[str, Shapes] = {}
    for unit in units:
        if unit.variant is not None:
            left |= {shapes.to_text(_artifact(unit)): shapes for shapes in unit.variant.runner.shapes()}
    found: dict[str, list[str]] = {unit.name: [] for unit in units}
    sizes = {signature: shapes.num_elements for signature, shapes in left.items()}
    for unit in units:
        own = [signature for signature in unit.signatures if signature in left]
        for signature in own:
            del left[signature]
        found[unit.name] += own
    for signature in left:
        digest, _ = parse(signature)
        owner = next(unit for unit in units if unit.variant is not None and _artifact(unit) == digest)
        found[owner.name].append(signature)
    return {name: tuple(sorted(own, key=lambda text: -sizes[text])) for name, own in found.items()}


def _of_call(unit: RankUnit) -> CaptureProposal:
    shapes = max(_shapes(unit), key=lambda shapes: shapes.num_elements, default=None)
    if shapes is None:
        size = _num_elements(unit.call)
        return CaptureProposal(function=unit.name, signature="", shapes="", num_elements=size, planned=False)
    return _proposal(unit, shapes.to_text(_artifact(unit)), shapes, planned=False)


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
    inputs = inputs_for(shapes, unit.bound().runner.layout, _example(unit))
    if isinstance(inputs, str):
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


def _example(unit: RankUnit) -> tuple[object, ...]:
    return unit.bound().inputs_of(unit.call.args, unit.call.kwargs)


def _artifact(unit: RankUnit) -> str:
    return unit.bound().stored.sha256


def _num_elements(call: Call) -> int:
    """Elements in all tensors among a call's arguments."""
    import torch

    from warmrank.worker.torch_private.places import leaves

    found = leaves((call.args, dict(call.kwargs)))
    return sum(leaf.numel() for leaf in found if isinstance(leaf, torch.Tensor))


def stream_problem(units: Sequence[RankUnit], proposals: Sequence[CaptureProposal]) -> str:
    """Warning about the streams of an NPU before the first capture; empty if they suffice."""
    return problem(
        graphs_of(units, proposals),
        expansion=settings().ascend.get("HCCL_OP_EXPANSION_MODE", ""),
    )


def graphs_of(units: Sequence[RankUnit], proposals: Sequence[CaptureProposal]) -> tuple[Captures, ...]:
    """The graphs that these proposals make, by artifact: calls of equal shapes share one."""
    by_name = {unit.name: unit for unit in units}
    owners: dict[str, str] = {}
    graphs: dict[str, set[str]] = {}
    artifacts: dict[str, Artifact] = {}
    for item in proposals:
        unit = by_name[item.function]
        if unit.variant is None:
            continue
        stored = unit.variant.stored
        owners.setdefault(stored.sha256, unit.name)
        graphs.setdefault(stored.sha256, set()).update((item.signature,) if item.planned else unit.signatures)
        artifacts[stored.sha256] = stored.artifact
    return tuple(
        Captures(
            name=owners[digest],
            num_graphs=len(own),
            roles=frozenset(artifacts[digest].roles),
            num_side_streams=_num_side_streams(artifacts[digest].sections),
        )
        for digest, own in graphs.items()
    )


def _num_side_streams(sections: Mapping[str, bytes]) -> int:
    """Streams that the model switches to (``npu_stream_switch``), which TorchAir lists in its code.

    Each joins the capture of each graph, where the runtime makes a stream for it.
    """
    code = sections.get("torchair.py", b"").decode()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.keyword) and node.arg == "user_stream_label":
            return len(node.value.elts) if isinstance(node.value, ast.Set | ast.List | ast.Tuple) else 0
    return 0
