"""Device kinds behind one port, `worker.devices.port.DeviceBackend`; the CPU's; the memory of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, get_args

import torch

from warmrank.worker.settings import DeviceKind, target
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.worker.devices.port import DeviceBackend, Pool
    from warmrank.worker.torch_private.places import Origin

KINDS: tuple[DeviceKind, ...] = get_args(DeviceKind)
PoolHandle = tuple[Any, ...]
Graph = Callable[..., tuple[Any, ...]]
Positions = frozenset[int]


def backend_for(kind: str) -> DeviceBackend:
    """The backend of a device kind.

    Raises `DeviceUnavailable`: torch does not know the device kind here, or finds no such device; or nothing
    can be run on such devices.
    """
    if target() is not None:
        from warmrank.worker.devices.port import AbsentBackend

        return AbsentBackend(kind)
    if kind == "cpu":
        return CpuBackend()
    if kind in KINDS:
        from warmrank.worker.devices.accelerator import accelerator

        return accelerator(kind)
    from warmrank.worker.errors import DeviceUnavailable

    msg = (
        f"there is no device kind {kind!r}; known kinds: {', '.join(KINDS)}. Move the model and its inputs "
        f"there before the first call (model.{'to_empty' if kind == 'meta' else 'to'}(device=...))."
    )
    raise DeviceUnavailable(msg, kind=kind)


class CapturedGraph(Value):
    """One recorded graph with fixed addresses for its inputs and outputs."""

    # what every replay reads: for the copied inputs buffers in the pool, else the given ones
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]  # the next replay of any graph of the same pool overwrites their memory
    # of each output, the input or earlier output whose memory it lies in; None for its own
    origins: tuple[Origin | None, ...]
    size_bytes: int  # bytes of the pool that this graph uses, buffers included: what it would need alone
    # runs the graph on what its inputs' memory now holds; no frame of ours around it
    replay: Callable[[], None]
    held: tuple[object, ...]  # keeps the memory


class CpuBackend:
    """The CPU, whose graphs keep the contract of the accelerators: see `worker.devices.cpu_graph`."""

    kind = "cpu"
    collectives = "gloo"
    runs_captures = True

    def device(self, local_rank: int) -> torch.device:
        """See `DeviceBackend.device`; all ranks of a node share the CPU."""
        del local_rank
        return torch.device("cpu")

    def new_handle(self) -> PoolHandle:
        """See `DeviceBackend.new_handle`."""
        from warmrank.worker.devices.cpu_graph import new_handle

        return new_handle()

    def pool(self, handle: PoolHandle | None = None) -> Pool:
        """See `DeviceBackend.pool`."""
        from warmrank.worker.devices.cpu_graph import pool_of

        return pool_of(handle)

    def capture(
        self,
        graph: Graph,
        inputs: Sequence[Any],
        *,
        copied: Positions,
        aliased: Positions,
        pool: Pool,
        warm_up: bool = True,
    ) -> CapturedGraph:
        """See `DeviceBackend.capture`; which outputs share memory is seen in the recording."""
        del aliased, warm_up
        from warmrank.worker.devices.cpu_graph import ArenaPool, captured

        if not isinstance(pool, ArenaPool):
            msg = f"a CPU graph needs a pool of the CPU backend; got a {type(pool).__qualname__}"
            raise TypeError(msg)
        return captured(graph, inputs, copied=copied, pool=pool)


def span(tensor: torch.Tensor) -> int:
    """Elements from the first to the last, both included, where there are any."""
    found = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        found += (size - 1) * stride
    return found


def span_bytes(tensor: torch.Tensor) -> int:
    """Bytes from the first element to behind the last."""
    return span(tensor) * tensor.element_size() if tensor.numel() else 0


def aligned(size_bytes: int, alignment: int) -> int:
    """The size, rounded up so that what follows is aligned."""
    return -(-size_bytes // alignment) * alignment


def tensor_in(
    storage: torch.UntypedStorage, offset: int, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """A tensor in a storage; ``offset`` counts elements.

    Made outside of inference mode, it can be written in and out of that mode.
    """
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, size, stride)


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or, where elements overlap (``expand``), all the memory that it spans, each cell once."""
    num_cells = span(tensor)
    return tensor if tensor.numel() <= max(num_cells, 0) else tensor.as_strided((num_cells,), (1,))


def duplicate(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, gaps and overlaps, in memory of its own."""
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    memory_of(copy).copy_(memory_of(tensor))
    return copy


def lies_in_storage(tensor: torch.Tensor) -> bool:
    """True if all elements of a tensor are within its storage, which somebody may have made smaller."""
    if tensor.layout is not torch.strided or not tensor.numel() or tensor.is_meta:
        return True
    end = (tensor.storage_offset() + span(tensor)) * tensor.itemsize
    return end <= tensor.untyped_storage().nbytes()


def forbid_writes(tensors: Iterable[torch.Tensor]) -> bool:
    """True if one of these was made in inference mode, outside of which nothing may write to it."""
    return not torch.is_inference_mode_enabled() and any(map(torch.Tensor.is_inference, tensors))


def picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Function that picks elements out of a sequence, always as a tuple."""
    if len(positions) > 1:
        return itemgetter(*positions)
    return lambda inputs: tuple(inputs[index] for index in positions)
