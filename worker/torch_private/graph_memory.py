"""Memory of captured graphs on accelerators: tensors that do not own it, and what a capture leaves behind.

Relies on ``torch._C._construct_storage_from_data_pointer`` (a storage without deleter), on the Python object
of a storage living as long as the storage itself, and on CUDA on ``torch._C._cuda_clearCublasWorkspaces`` and
``torch._C._cuda_endAllocateToPool``, as ``torch/_inductor/cudagraph_trees.py`` does. On NPU on
``torch_npu._C._weak_ref_tensor`` and ``_npu_endAllocateToPool``, as ``torch_npu/npu/graphs.py`` and
``torch_npu/npu/memory.py`` do.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

FACTS = {"torch._C": "_construct_storage_from_data_pointer"}


def borrowed(tensors: list[torch.Tensor], keep: Any) -> list[torch.Tensor]:
    """The same memory in tensors that do not own it: the allocator may hand it out again.

    Tensors that share a storage go on sharing one. ``keep`` lives as long as the results and their views.
    """
    storages: dict[int, Any] = {}
    return [_borrowed(tensor, storages, keep) for tensor in tensors]


def _borrowed(tensor: torch.Tensor, storages: dict[int, Any], keep: Any) -> torch.Tensor:
    if tensor.device.type == "npu":
        # An NPU's storage has a format of its own, which only torch_npu can carry over.
        import torch_npu  # type: ignore[import-not-found]

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
    # Kernels conjugate or negate what they read by these bits.
    place = place.conj() if tensor.is_conj() else place
    return torch._neg_view(place) if tensor.is_neg() else place


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
