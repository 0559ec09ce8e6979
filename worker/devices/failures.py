"""Reasons against capturing on an accelerator, and the streams that captured graphs take on an NPU.

A captured graph keeps its streams for life, and an NPU has few: when they are used up, a capture fails with
error 207008 (no stream) or 207005 (a resource that cannot be had, mostly the same). Counts are estimates, on
the cautious side. Sources:

* numbers of streams: ``aclrtCreateStream`` in CANN's reference, section "restrictions",
  https://www.hiascend.com/document/detail/zh/CANNCommunityEdition/910beta3/API/runtimeapi/aclcppdevg_03_0065.html
* streams of a graph and its communicators, and the reserve: the rule by which vllm-ascend chose how many
  batch sizes to capture (``update_aclgraph_sizes``, until pull request #9962), with 1800 of 1984 streams for
  graphs; see also its issues #1168, #8585 (streams of a shared NPU), #9564 and #9596
* the errors: ``NPUErrorCodes.h`` of torch_npu; vllm-ascend's issues #9564 (207005) and #9691 (207008)
"""

from __future__ import annotations

import dis
import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from warmrank.worker.errors import NotCapturable
from warmrank.worker.values import Value

_LIMIT = 1984  # of Atlas A2, A3 and later, the ones that capture graphs
_RESERVE = 184  # for what runs beside graphs: 1984 less vllm-ascend's 1800
# HCCL unfolds a collective into streams of its own. By AIV it does so within a kernel, at one more stream.
_PER_GROUP, _PER_GROUP_AIV = 2, 1
_FIXED_PER_GROUP = 40  # of a communicator, whatever the number of graphs; none by AIV
# Text, not a pattern: it is compiled where a capture failed.
_EXHAUSTED = r"(?i)\b(20700[58]|EL0009)\b|no stream resource|stream resources are insufficient"

REMEDY = (
    "Capture fewer graphs: fewer gears or shapes, or a lower debug.aclgraph.static_capture_size_limit "
    "(npugraph_ex: capture_limit); let functions share communicators; and set HCCL_OP_EXPANSION_MODE=AIV, by "
    "which collectives take fewer streams."
)


class Captures(Value):
    """Graphs of one artifact that a rank will capture."""

    name: str
    num_graphs: int  # graphs: one for each shape or gear
    roles: frozenset[str] = frozenset()  # roles of the communicators that each graph uses
    num_side_streams: int = 0  # further streams of each graph, where the model spreads its operators


def needed(captures: Iterable[Captures], *, expansion: str = "") -> int:
    """Streams that these graphs take in all, with those of their communicators.

    ``expansion`` is ``HCCL_OP_EXPANSION_MODE``; empty where it is not set.
    """
    planned = tuple(captures)
    aiv = expansion == "AIV"
    roles = frozenset[str]().union(*(one.roles for one in planned if one.num_graphs))
    fixed = 0 if aiv else _FIXED_PER_GROUP * len(roles)
    return fixed + sum(one.num_graphs * _streams_of(one, aiv=aiv) for one in planned)


def problem(captures: Iterable[Captures], *, expansion: str = "") -> str:
    """Warning before too much is captured; empty if the streams suffice; ``expansion`` as in `needed`."""
    planned = tuple(captures)
    wanted = needed(planned, expansion=expansion)
    if wanted <= _LIMIT - _RESERVE:
        return ""
    aiv = expansion == "AIV"
    largest = sorted(planned, key=lambda one: -one.num_graphs * _streams_of(one, aiv=aiv))
    listed = ", ".join(
        f"{one.name}: {one.num_graphs} graphs of {_streams_of(one, aiv=aiv)} streams" for one in largest[:3]
    )
    return (
        f"captures will take about {wanted} streams ({listed}), and {_LIMIT - _RESERVE} of an NPU's {_LIMIT} "
        "are for graphs: captures beyond them fail with error 207008 or 207005, and run without capture. "
        f"{REMEDY}"
    )


def exhausted(error: BaseException) -> bool:
    """True if an error says that the NPU has no stream left; so may one of an error's causes."""
    found: BaseException | None = error
    while found is not None:
        if re.search(_EXHAUSTED, str(found)):
            return True
        found = found.__cause__
    return False


def _streams_of(captures: Captures, *, aiv: bool) -> int:
    """Streams of one graph: its own, those of its communicators, and those that the model asks for."""
    per_group = _PER_GROUP_AIV if aiv else _PER_GROUP
    return 1 + len(captures.roles) * per_group + captures.num_side_streams


# File name in the code that engine graph writes; each operator stands there on a line of its own.
_GENERATED = "<warmrank graph>"


def refuse_foreign(values: Sequence[Any], what: str, device: torch.device) -> None:
    """Refuse tensors that lie elsewhere, or in no one place.

    Kernels take what lies elsewhere by value, or work on it outside of the recording: every replay would
    repeat what it held at the capture.
    """
    for position, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            continue
        if value.layout != torch.strided:
            msg = f"{what} {position} of the graph has layout {value.layout}, which has no fixed address"
            raise NotCapturable(msg, operator="", where=f"{what} {position}")
        if value.device.type != device.type or (value.device.index or 0) != (device.index or 0):
            msg = (
                f"{what} {position} of the graph is on {value.device}; a graph captured on {device} would "
                f"repeat its present value for ever. Move it to {device}, or set debug.run_eagerly."
            )
            raise NotCapturable(msg, operator="", where=f"{what} {position}")


def not_capturable(error: RuntimeError, kind: str) -> Exception:
    """Error to raise for one in a capture whose warm-up succeeded: a lack of memory stays as it is."""
    if isinstance(error, torch.OutOfMemoryError):
        return error
    if kind == "npu" and exhausted(error):
        return _no_stream_left(error)
    operator = failing_operator(error)
    named = f"operator {operator}" if operator else "the graph (its traceback names no operator)"
    reason = str(error).partition("\n")[0] or repr(error)
    msg = (
        f"{named} cannot be captured on {kind}: {reason}. Replace what waits for the device or moves data "
        "to or from the host, or set debug.run_eagerly."
    )
    return NotCapturable(msg, operator=operator)


def refuse_exhausted(error: RuntimeError, kind: str) -> None:
    """Say of an error of an engine that captures by itself what it is, if streams ran out."""
    if kind == "npu" and exhausted(error):
        raise _no_stream_left(error) from error


def _no_stream_left(error: RuntimeError) -> NotCapturable:
    reason = str(error).partition("\n")[0]
    msg = (
        "the NPU has no stream left for another captured graph (or, with error 207005, no memory): "
        f"{reason}. {REMEDY}"
    )
    return NotCapturable(msg, operator="", exhausted="streams")


def failing_operator(error: BaseException) -> str:
    """The operator that an error came out of, by the name that the generated source gives it; or empty.

    An operator's name is the first that its line loads.
    """
    operator = ""
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename == _GENERATED:
            names = (
                str(step.argval)
                for step in dis.get_instructions(code)
                if step.opname in ("LOAD_DEREF", "LOAD_GLOBAL")
                and step.positions is not None
                and step.positions.lineno == traceback.tb_lineno
            )
            operator = next(names, operator)
        traceback = traceback.tb_next
    return operator
