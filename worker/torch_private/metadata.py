"""Compare the metadata of tensors with what it was, in C++ where that can be.

Relied on (``tests/unit/test_unchanged.py``): ``TensorGuards`` compares type, dispatch keys (of the calling
thread: inference mode has others), dtype, device index, sizes and strides; ``requires_grad`` only while
gradients are recorded. It reads a null pointer where ``dynamic_dims_sizes`` and ``..._strides`` are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_is_recording = torch.is_grad_enabled
_record = torch._C._set_grad_enabled
_is_inference = torch.is_inference_mode_enabled


class Metadata:
    """Type, dtype, device, layout, sizes, strides, lazy bits and ``requires_grad`` of some tensors."""

    __slots__ = ("_guards", "_known", "_strided")

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._known = [*map(metadata_of, tensors)]
        self._strided = all(tensor.layout is torch.strided for tensor in tensors)
        self._guards: dict[bool, torch._C._dynamo.guards.TensorGuards] = {}

    def of(self, tensors: Sequence[Any]) -> bool:
        """True if tensors have the same metadata; about 0.1 us each."""
        guards = self._guards.get(_is_inference())
        if guards is not None:
            recording = _is_recording()
            _record(True)
            try:
                if guards.check(*tensors):
                    return True
            except TypeError:  # no tensor any more
                return False
            finally:
                _record(recording)
        return self._compared(tensors)

    def changed(self, tensors: Sequence[Any]) -> tuple[int, ...]:
        """Positions of the tensors that differ now."""
        pairs = zip(self._known, tensors, strict=True)
        return tuple(
            index
            for index, (known, value) in enumerate(pairs)
            if not isinstance(value, torch.Tensor) or metadata_of(value) != known
        )

    def _compared(self, tensors: Sequence[Any]) -> bool:
        """The same in Python, for modes that no check was made in yet, and layouts that have no strides."""
        if self.changed(tensors):
            return False
        if self._strided and tensors:
            self._guards[_is_inference()] = torch._C._dynamo.guards.TensorGuards(
                *tensors,
                dynamic_dims_sizes=[list(tensor.size()) for tensor in tensors],  # type: ignore[misc]
                dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors],  # type: ignore[misc]
            )
            # What it compares is only known to it from here on.
            return not self.changed(tensors)
        return True


def metadata_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Comparable with ``==`` inside one process."""
    strides = tensor.stride() if tensor.layout is torch.strided else None
    lazy_bits = tensor.is_conj(), tensor.is_neg()
    return (
        type(tensor), tensor.dtype, tensor.device, tensor.layout, tensor.requires_grad, tensor.shape, strides,
        *lazy_bits,
    )  # fmt: skip
