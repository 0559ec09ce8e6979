"""Reasons against capturing on an accelerator.

A captured graph keeps its streams for life, and an NPU has few (1984 on Atlas A2 and A3): when they are used
up, a capture fails with error 207008 (no stream) or 207005 (a resource that cannot be had, mostly the same).
See ``NPUErrorCodes.h`` of torch_npu; vllm-ascend's issues #9564 (207005) and #9691 (207008).
"""

from __future__ import annotations

import dis
import re
from collections.abc import Sequence
from typing import Any

import torch

from warmrank.worker.errors import NotCapturable

# Text, not a pattern: it is compiled where a capture failed.
_EXHAUSTED = r"(?i)\b(20700[58]|EL0009)\b|no stream resource|stream resources are insufficient"
_GENERATED = "<warmrank graph>"  # file name in the code that engine graph writes, an operator on each line


def refuse_foreign(values: Sequence[Any], what: str, device: torch.device) -> None:
    """Refuse tensors that lie elsewhere, or in no one place.

    Kernels take what lies elsewhere by value, or work on it outside of the recording: every replay would
    repeat what it held at the capture.
    """
    for position, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            continue
        where = f"{what} {position}"
        if value.layout != torch.strided:
            msg = f"{where} of the graph has layout {value.layout}, which has no fixed address"
            raise NotCapturable(msg, operator="", where=where)
        if value.device.type != device.type or (value.device.index or 0) != (device.index or 0):
            msg = (
                f"{where} of the graph is on {value.device}; a graph captured on {device} would repeat its "
                f"present value for ever. Move it to {device}, or set debug.run_eagerly."
            )
            raise NotCapturable(msg, operator="", where=where)


def not_capturable(error: RuntimeError, kind: str) -> Exception:
    """Error to raise for one in a capture whose warm-up succeeded: a lack of memory stays as it is."""
    if isinstance(error, torch.OutOfMemoryError):
        return error
    if kind == "npu" and _exhausted(error):
        return _no_stream_left(error)
    operator = _failing_operator(error)
    named = f"operator {operator}" if operator else "the graph (its traceback names no operator)"
    reason = str(error).partition("\n")[0] or repr(error)
    msg = (
        f"{named} cannot be captured on {kind}: {reason}. Replace what waits for the device or moves data "
        "to or from the host, or set debug.run_eagerly."
    )
    return NotCapturable(msg, operator=operator)


def refuse_exhausted(error: RuntimeError, kind: str) -> None:
    """Say of an error of an engine that captures by itself what it is, if streams ran out."""
    if kind == "npu" and _exhausted(error):
        raise _no_stream_left(error) from error


def _exhausted(error: BaseException | None) -> bool:
    """True if an error, or one of its causes, says that the NPU has no stream left."""
    while error is not None:
        if re.search(_EXHAUSTED, str(error)):
            return True
        error = error.__cause__
    return False


def _no_stream_left(error: RuntimeError) -> NotCapturable:
    msg = (
        "the NPU has no stream left for another captured graph (or, with error 207005, no memory): "
        f"{str(error).partition(chr(10))[0]}. Capture fewer graphs: fewer gears or shapes, or a lower "
        "debug.aclgraph.static_capture_size_limit (npugraph_ex: capture_limit); let functions share "
        "communicators; and set HCCL_OP_EXPANSION_MODE=AIV, by which collectives take fewer streams."
    )
    return NotCapturable(msg, operator="", exhausted="streams")


def _failing_operator(error: BaseException) -> str:
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
