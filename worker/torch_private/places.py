"""Storage and layout of tensors, and the relation of a captured graph's outputs to its inputs.

A replay leaves results in fixed memory. What a caller does to a tensor (``t_()``, ``requires_grad_()``)
must reach neither the input that it is a view of, nor what later calls return, so every call makes its own
outputs, related as eager's are.

Relied on: views of one tensor have one ``UntypedStorage._cdata``; tensors that are nothing but a layout
over memory all have the same dispatch keys; views, and what ``detach`` gives, count writes together. On
accelerators: ``_construct_storage_from_data_pointer`` gives a storage without deleter, whose Python object
lives as long; ``_cuda_...`` as in ``torch/_inductor/cudagraph_trees.py``, ``_weak_ref_tensor`` and
``_npu_endAllocateToPool`` as in torch_npu's ``npu/graphs.py`` and ``npu/memory.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree

from warmrank.worker.errors import NotCapturable


class Place(NamedTuple):
    """Place of a tensor: a storage by its number, and the layout in it (offset and strides in elements)."""

    storage: int
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    conjugate: bool
    negative: bool


def place_of(number: int, tensor: torch.Tensor) -> Place:
    """The place of a tensor whose storage has this number."""
    offset: Any = tensor.storage_offset()
    bits = tensor.is_conj(), tensor.is_neg()
    return Place(number, offset, tensor.size(), tensor.stride(), tensor.dtype, *bits)


def ordinary(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a plain tensor, which may be written to even if it was made in inference mode.

    It requires gradients as before: by that composite operators (``matmul``) choose their kernels.
    """
    check(tensor)
    plain = torch.empty(0, dtype=tensor.dtype, device="cpu").set_(
        tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
    )
    return lazily(plain.requires_grad_(tensor.requires_grad), place_of(0, tensor))


def follow(tensors: Sequence[Any], ordinaries: Sequence[Any]) -> None:
    """Give tensors the memory and layout that an operator gave the `ordinary` ones that stood for them."""
    for tensor, plain in zip(tensors, ordinaries, strict=True):
        if isinstance(tensor, torch.Tensor):
            place = place_of(identity_of(plain), plain)
            if place != place_of(identity_of(tensor), tensor):
                with torch.no_grad():
                    tensor.set_(plain.untyped_storage(), place.offset, place.size, place.stride)


def lazily(tensor: torch.Tensor, place: Place) -> torch.Tensor:
    """The tensor with the bits of its place, by which kernels conjugate or negate what they read."""
    if place.conjugate:
        tensor = tensor.conj()
    return torch._neg_view(tensor) if place.negative else tensor


def identity_of(tensor: torch.Tensor) -> int:
    """Identity of a storage: equal for all tensors in it, and for no others that live at the same time."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except NotImplementedError:  # sparse, for one
        check(tensor)
        raise


def check(tensor: torch.Tensor) -> None:
    """Refuse tensors that are more than a layout over plain memory of the CPU, by `NotCapturable`."""
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


_PLAIN = set[int]()  # dispatch keys of tensors that are nothing but a layout over memory, made in any mode
for _mode in (False, True):
    with torch.inference_mode(mode=_mode):
        _PLAIN.add(torch._C._dispatch_keys(torch.empty(0, device="cpu")).raw_repr())


class Origin(NamedTuple):
    """Origin of an output."""

    source: int  # position of an input; behind these, of an earlier output
    kind: str  # ``same`` object; ``view``, which knows its base; ``detached``, of which that is not known


def origins(
    inputs: Sequence[Any], outputs: Sequence[Any], copied: Collection[int]
) -> tuple[Origin | None, ...]:
    """The origin of each output of a run; None for memory without uncopied inputs and earlier outputs."""
    known = [None if index in copied else value for index, value in enumerate(inputs)]
    found = []
    for value in outputs:
        found.append(_origin(value, known) if isinstance(value, torch.Tensor) else None)
        known.append(value)
    return tuple(found)


def _origin(value: torch.Tensor, known: Sequence[Any]) -> Origin | None:
    memory = identity_of(value)
    near = [
        (index, other)
        for index, other in enumerate(known)
        if isinstance(other, torch.Tensor) and identity_of(other) == memory
    ]
    for index, other in near:
        if other is value:
            return Origin(index, "same")
    for index, other in near:
        if value._base is (other if other._base is None else other._base):
            return Origin(index, "view")
    return Origin(near[0][0], "detached") if near else None


def hand_out(
    outputs: Sequence[Any],
    origins: Sequence[Origin | None],
    num_inputs: int,
    *,
    clone: bool,
    stored: Collection[int] = (),
) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Function from a call's inputs to its outputs, after a replay that left ``outputs`` at fixed addresses.

    Memory of the graph's own in which ``stored`` outputs lie, by their positions, is copied as a whole: what
    they share stays shared. With ``clone``, other outputs that lie in memory of its own are copied, too.
    """
    tensors = (outputs[index] for index in stored)
    kept = {identity_of(value) for value in tensors if isinstance(value, torch.Tensor)}
    makers: list[Callable[[Sequence[Any]], Any]] = []
    for value, origin in zip(outputs, origins, strict=True):
        is_kept = isinstance(value, torch.Tensor) and identity_of(value) in kept
        if origin is not None and (
            origin.source < num_inputs
            or (
                (is_kept or not clone)
                and identity_of(outputs[origin.source - num_inputs]) == identity_of(value)
            )
        ):
            makers.append(_again(value, origin))
        else:
            makers.append(_with_memory(value) if is_kept else _own(value, clone=clone))

    def handed_out(inputs: Sequence[Any]) -> tuple[Any, ...]:
        known = list(inputs)
        for make in makers:
            known.append(make(known))
        return tuple(known[num_inputs:])

    return handed_out


def _own(value: Any, *, clone: bool) -> Callable[[Sequence[Any]], Any]:
    if not isinstance(value, torch.Tensor):
        return lambda _: value
    make = value.clone if clone else value.detach
    return lambda _: make()


def _with_memory(value: torch.Tensor) -> Callable[[Sequence[Any]], Any]:
    storage: Any = value.untyped_storage()
    place = place_of(0, value)

    def make(_: Sequence[Any]) -> torch.Tensor:
        with torch.inference_mode(mode=False):
            empty = torch.empty(0, dtype=place.dtype, device=storage.device)
            return lazily(empty.set_(storage.clone(), place.offset, place.size, place.stride), place)

    return make


def _again(value: torch.Tensor, origin: Origin) -> Callable[[Sequence[Any]], Any]:
    """Function that gives the tensor from which `value` came the layout of `value`."""
    source, kind = origin
    if kind == "same":
        return lambda known: known[source]
    place = place_of(0, value)

    def view(known: Sequence[Any]) -> torch.Tensor:
        plain: torch.Tensor = known[source]
        if plain.is_conj() or plain.is_neg():
            plain = lazily(plain, place_of(0, plain))  # without its bits
        if plain.dtype != place.dtype:
            plain = _retyped(plain, place.dtype)
        return lazily(plain.as_strided(place.size, place.stride, place.offset), place)

    return view if kind == "view" else lambda known: view(known).detach()


def _retyped(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """All memory of a tensor as another type."""
    if tensor.is_complex() and dtype == tensor.dtype.to_real():
        return torch.view_as_real(tensor)
    unit = max(tensor.itemsize, dtype.itemsize)
    length = tensor.untyped_storage().nbytes() // unit * unit // tensor.itemsize
    flat = tensor.as_strided((length,), (1,), 0)
    if dtype.is_complex and tensor.dtype == dtype.to_real():
        return torch.view_as_complex(flat.view(-1, 2))
    return flat.view(dtype)


def leaves(values: Any) -> list[Any]:
    """Leaves of nested containers, in their order."""
    return _pytree.tree_leaves(values)


def borrowed(tensors: list[torch.Tensor], keep: Any) -> list[torch.Tensor]:
    """The same memory in tensors that do not own it: the allocator may hand it out again.

    Tensors that share a storage go on sharing one. ``keep`` lives as long as the results and their views.
    """
    storages: dict[int, Any] = {}
    return [_borrowed(tensor, storages, keep) for tensor in tensors]


def _borrowed(tensor: torch.Tensor, storages: dict[int, Any], keep: Any) -> torch.Tensor:
    if tensor.device.type == "npu":
        # An NPU's storage has a format of its own, which only torch_npu can carry over.
        import torch_npu

        copy: torch.Tensor = torch_npu._C._weak_ref_tensor(tensor)
        _keep(copy.untyped_storage(), keep)
        return copy
    owned = tensor.untyped_storage()
    storage = storages.get(owned.data_ptr())
    if storage is None:
        storage = torch._C._construct_storage_from_data_pointer(
            owned.data_ptr(), tensor.device, owned.nbytes()
        )
        _keep(storage, keep)
        storages[owned.data_ptr()] = storage
    with torch.inference_mode(mode=False), torch.no_grad():
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        place = empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
    return lazily(place, place_of(0, tensor))


def _keep(storage: Any, keep: Any) -> None:
    storage.warmrank_keeps = keep


def drop_workspaces(kind: str) -> None:
    """Give back the workspaces of the matrix library.

    They belong to a stream: one taken while one pool was captured would be written to by the graphs of
    another pool, and be handed out again when its own pool frees it.
    """
    if kind == "cuda":
        torch._C._cuda_clearCublasWorkspaces()


def stop_allocating(kind: str, device_index: int, pool_id: tuple[int, int]) -> None:
    """After a capture that failed: torch ends it before it tells the allocator, and then never tells it."""
    if kind == "cuda":
        end = torch._C._cuda_endAllocateToPool
    elif kind == "npu":
        import torch_npu

        end = torch_npu._C._npu_endAllocateToPool
    else:
        return
    with contextlib.suppress(RuntimeError):  # it was told after all
        end(device_index, pool_id)
