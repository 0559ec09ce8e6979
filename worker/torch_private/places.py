"""Where tensors lie: storages and layouts in them, without the tensors themselves.

Relies on: views of one tensor have one ``UntypedStorage._cdata``, and tensors that are nothing but a layout
over memory all have the same dispatch keys.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from warmrank.worker.errors import NotCapturable


class Place(NamedTuple):
    """Where a tensor lies: a storage by its number, and the layout in it (offset and strides in elements)."""

    storage: int
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    conjugate: bool
    negative: bool


_new_place = tuple.__new__  # without the checks of a named tuple's constructor


def place_of(number: int, tensor: torch.Tensor) -> Place:
    """The place of a tensor whose storage has this number."""
    return _new_place(
        Place,
        (
            number,
            tensor.storage_offset(),
            tensor.size(),
            tensor.stride(),
            tensor.dtype,
            tensor.is_conj(),
            tensor.is_neg(),
        ),
    )


def ordinary(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a plain tensor, which may be written to even if it was made in inference mode."""
    check(tensor)
    plain = torch.empty(0, dtype=tensor.dtype, device="cpu").set_(
        tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
    )
    return lazily(plain, place_of(0, tensor))


def lazily(tensor: torch.Tensor, place: Place) -> torch.Tensor:
    """The tensor with the bits of its place, by which kernels conjugate or negate what they read."""
    if place.conjugate:
        tensor = tensor.conj()
    return torch._neg_view(tensor) if place.negative else tensor


def identity_of(tensor: torch.Tensor) -> int:
    """What is the same for all tensors in one storage, and for no others that live at the same time."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except NotImplementedError:  # sparse, for one
        check(tensor)
        raise


def check(tensor: torch.Tensor) -> None:
    """Refuses tensors that are more than a layout over plain memory of the CPU.

    Raises:
        NotCapturable: says what the tensor is.
    """
    if torch._C._dispatch_keys(tensor).raw_repr() in _PLAIN:
        return
    kind = type(tensor)
    if tensor.device.type != "cpu":
        what = f"a tensor on {tensor.device}"
    elif tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        what = f"a tensor of layout {tensor.layout}, nested or quantized"
    elif kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        what = f"a {kind.__qualname__}, which has a __torch_dispatch__ of its own"
    elif torch._is_zerotensor(tensor):
        what = "a tensor of zeros without memory"
    else:
        return
    msg = f"the graph uses {what}, which a captured graph on the CPU cannot hold"
    raise NotCapturable(msg, operator="", why=what)


def _plain_keys() -> frozenset[int]:
    """Dispatch keys of tensors that are nothing but a layout over memory, made in any mode."""
    keys = set()
    for mode in (False, True):
        with torch.inference_mode(mode=mode):
            keys.add(torch._C._dispatch_keys(torch.empty(0, device="cpu")).raw_repr())
    return frozenset(keys)


_PLAIN = _plain_keys()
