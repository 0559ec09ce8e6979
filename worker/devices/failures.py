"""Why a graph cannot be captured on an accelerator, with the operator's name where the traceback has it."""

from __future__ import annotations

import dis
from collections.abc import Sequence
from typing import Any

import torch

from warmrank.worker.devices import streams
from warmrank.worker.errors import NotCapturable

# File name in the code that engine graph writes; each operator stands there on a line of its own.
_GENERATED = "<warmrank graph>"


def refuse_foreign(values: Sequence[Any], what: str, device: torch.device) -> None:
    """Refuse tensors that lie elsewhere, or in no one place.

    Kernels take what lies elsewhere by value, or work on it outside of the recording: every replay would
    repeat what it held at the capture.

    Raises:
        NotCapturable: a tensor does not lie on ``device``, or is sparse.
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
    """What to raise for an error in a capture whose warm-up succeeded: a lack of memory stays what it is."""
    if isinstance(error, torch.OutOfMemoryError):
        return error
    if kind == "npu" and streams.exhausted(error):
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
    """Say of an error of an engine that captures by itself what it is, if streams ran out.

    Raises:
        NotCapturable: they did.
    """
    if kind == "npu" and streams.exhausted(error):
        raise _no_stream_left(error) from error


def _no_stream_left(error: RuntimeError) -> NotCapturable:
    reason = str(error).partition("\n")[0]
    msg = (
        "the NPU has no stream left for another captured graph (or, with error 207005, no memory): "
        f"{reason}. {streams.REMEDY}"
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
