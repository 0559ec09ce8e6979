"""Device kinds ``cuda`` and ``npu``: captured graphs of ``torch.cuda`` and ``torch.npu``, which look alike.

One capture at a time in a process. A capture warms the graph up on a side stream, where asked to, which is
the only time that it runs, then records it; so outputs hold nothing before the first replay. The default
generator, which torch registers with every capture, gets its state back: the first replay draws the numbers
that a call without capture would have drawn, and each one goes on from there.

Work memory and outputs come from a private pool of torch's caching allocator. Nothing owns an output once
it is captured, so the next capture in the private pool takes the same memory: the largest graph first, and
all others fit into what is there. An anchor, a graph that is never replayed, keeps the private pool from
being released. Input buffers lie in segments outside of it, so that filling them never overwrites an output.
A handle shares memory only among those who ask this package for a pool, not with graphs that others capture
under it, whose replays would overwrite ours unseen. Whatever fails in a recording, stream, allocator and
generator are usable afterwards.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from warmrank.worker.ascend import cann_of, device_numbers, driver_of, visible_devices
from warmrank.worker.devices import (
    CapturedGraph,
    Graph,
    PoolHandle,
    Positions,
    aligned,
    memory_of,
    span_bytes,
    tensor_in,
)
from warmrank.worker.devices.failures import not_capturable, refuse_foreign
from warmrank.worker.devices.port import Pool
from warmrank.worker.errors import DeviceUnavailable
from warmrank.worker.settings import ascend_places, memory_kind, settings
from warmrank.worker.torch_private.places import borrowed, drop_workspaces, origins, stop_allocating

_COLLECTIVES = {"cuda": "nccl", "npu": "hccl"}
_CAPTURING = threading.RLock()


_ALIGNMENT = 512  # bytes, as the allocators of torch and torch_npu align; kernels may rely on it


class PrivatePool(NamedTuple):
    """One private pool of the allocator."""

    pool_id: tuple[int, int]  # the allocator's name for it
    device_index: int
    anchor: Any  # the graph that keeps it


class AcceleratorPool:
    """Memory that graphs share: private pools for their work, and arenas for their inputs."""

    def __init__(self, module: Any, make: Callable[[int], PrivatePool]) -> None:
        """Takes the device's module (``torch.cuda``), and what makes a private pool on a device."""
        self._module = module
        self._make = make
        self._private: list[PrivatePool] = []
        self._segments: list[torch.Tensor] = []

    @property
    def size_bytes(self) -> int:
        """See `Pool.size_bytes`: what the allocator holds for it, and the input buffers."""
        held = sum(end - start for private in self._private for start, end in self._spans(private))
        return held + sum(segment.nbytes for segment in self._segments)

    def buffers(self, inputs: Sequence[Any], copied: Positions) -> tuple[tuple[Any, ...], int]:
        """The inputs, the ``copied`` ones in buffers with equal strides, which the graph may rely on.

        Also the bytes of the buffers. They overlap with those of other graphs of this pool, but neither with
        each other nor with any of the inputs.
        """
        sizes = {index: aligned(max(span_bytes(inputs[index]), 1), _ALIGNMENT) for index in sorted(copied)}
        if not sizes:
            return tuple(inputs), 0
        segment = self._segment(sum(sizes.values()), inputs[min(sizes)].device, _tensors(inputs))
        values, start = list(inputs), 0
        for index, size in sizes.items():
            value = inputs[index]
            offset = start // value.element_size()
            with torch.inference_mode(mode=False):
                values[index] = tensor_in(
                    segment.untyped_storage(), offset, value.shape, value.stride(), value.dtype
                )
            memory_of(values[index]).copy_(memory_of(value))
            start += size
        return tuple(values), start

    def _segment(
        self, size_bytes: int, device: torch.device, apart_from: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        for segment in self._segments:
            span = (segment.data_ptr(), segment.data_ptr() + segment.nbytes)
            fits = segment.device == device and segment.nbytes >= size_bytes
            if fits and not _any_inside(apart_from, [span]):
                return segment
        with torch.inference_mode(mode=False):  # graphs that are called in and out of it share the segment
            self._segments.append(torch.empty(size_bytes, dtype=torch.uint8, device=device))
        return self._segments[-1]

    def private(self, device_index: int, fixed: Sequence[torch.Tensor]) -> PrivatePool:
        """A private pool without any input that is used where it lies: replays would overwrite it."""
        for private in self._private:
            if private.device_index == device_index and not _any_inside(fixed, self._spans(private)):
                return private
        private = self._make(device_index)
        self._private.append(private)
        return private

    def abandon(self, private: PrivatePool) -> None:
        """Capture no more into it: a capture failed there, and the allocator may not have noticed its end."""
        self._private.remove(private)

    def _spans(self, private: PrivatePool) -> list[tuple[int, int]]:
        """Address ranges that the allocator holds for a private pool."""
        return [
            (segment["address"], segment["address"] + segment["total_size"])
            for segment in self._module.memory_snapshot(private.pool_id)
        ]


def _any_inside(tensors: Iterable[torch.Tensor], spans: Sequence[tuple[int, int]]) -> bool:
    addresses = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return any(start <= address < end for address in addresses for start, end in spans)


_GRAPHS = {"cuda": "CUDAGraph", "npu": "NPUGraph"}
# What another thread does meanwhile (a free, an event query) must not make this capture fail.
_ERROR_MODE = "thread_local"


class AcceleratorBackend:
    """An accelerator as a device kind; one capture at a time in a process."""

    runs_captures = False

    def __init__(self, kind: str, module: Any, *, memory: str = "") -> None:
        """Takes the device's module (``torch.cuda``), and the type of its tensors' device."""
        self.kind = kind
        self.collectives = _COLLECTIVES[kind]
        self._module = module
        self._memory = memory or kind
        self._graph_type = getattr(module, _GRAPHS[kind])
        self._streams: dict[int, Any] = {}
        self._pools: weakref.WeakValueDictionary[PoolHandle, AcceleratorPool] = weakref.WeakValueDictionary()

    def device(self, local_rank: int) -> torch.device:
        """See `DeviceBackend.device`; where Ray shows a rank one device only, it is that one."""
        if memory_kind(self.kind) != self.kind:
            return torch.device(memory_kind(self.kind))
        num_devices = self._module.device_count()
        if num_devices == 1:
            return torch.device(self.kind, 0)
        if local_rank >= num_devices:
            msg = (
                f"local rank {local_rank} has no device of its own: {num_devices} devices of kind "
                f"{self.kind} are visible. Start fewer ranks on this node, or make more devices visible."
            )
            raise DeviceUnavailable(msg, kind=self.kind, local_rank=local_rank, num_devices=num_devices)
        return torch.device(self.kind, local_rank)

    def new_handle(self) -> PoolHandle:
        """See `DeviceBackend.new_handle`, as torch numbers them."""
        return tuple(self._module.graph_pool_handle())

    def pool(self, handle: PoolHandle | None = None) -> AcceleratorPool:
        """See `DeviceBackend.pool`."""
        new = AcceleratorPool(self._module, self._private_pool)
        if handle is None:
            return new
        if len(handle) != 2 or not all(type(part) is int for part in handle):
            msg = (
                f"{handle!r} is no pool handle of device kind {self.kind}: expected two numbers, as "
                f"torch.{self.kind}.graph_pool_handle() gives"
            )
            raise ValueError(msg)
        with _CAPTURING:
            return self._pools.setdefault(handle, new)

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
        """See `DeviceBackend.capture`."""
        if not isinstance(pool, AcceleratorPool):
            msg = f"a pool of another device kind ({type(pool).__name__}); take one from this backend"
            raise TypeError(msg)
        # The first input's device; the current one if no input lies on such a device.
        indices = (item.device.index for item in _tensors(inputs) if item.device.type == self._memory)
        found = next(indices, None)
        index = int(self._module.current_device()) if found is None else found
        device = torch.device(self._memory, index)
        refuse_foreign(inputs, "input", device)
        fixed = _tensors(value for number, value in enumerate(inputs) if number not in copied)
        with _CAPTURING, self._module.device(index), self._generator_restored(index):
            static, buffer_bytes = pool.buffers(inputs, copied)
            # Once without a recording, so that libraries, kernels and communicators are there before it; of a
            # graph that ran in another thread only cuBLAS's handle is not.
            self._module.synchronize()
            if warm_up:
                with self._module.stream(self._stream(index)):
                    graph(*static)
                self._module.synchronize()
            elif make_handle := getattr(self._module, "current_blas_handle", None):
                make_handle()
            private = pool.private(index, fixed)
            try:
                recorded, outputs, work_bytes = self._measured(graph, static, private)
            except RuntimeError as error:
                pool.abandon(private)
                # A capture that failed leaves the generator in the belief that it goes on: eager calls that
                # draw numbers would fail until the next one ends.
                with contextlib.suppress(RuntimeError):  # the error that counts is already on its way
                    self._private_pool(index)
                raise not_capturable(error, self.kind) from error
            refuse_foreign(outputs, "output", device)
            return CapturedGraph(
                inputs=static,
                outputs=_unowned(outputs, aliased, private),
                origins=origins(static, outputs, copied),
                size_bytes=work_bytes + buffer_bytes,
                replay=recorded.replay,
                held=(pool,),  # its private pool and its segments
            )

    def _measured(
        self, graph: Graph, inputs: tuple[Any, ...], private: PrivatePool
    ) -> tuple[Any, tuple[Any, ...], int]:
        """Record into a private pool; also says how many bytes were in use there at once.

        That is a difference of the device's statistics, whose peak is reset for it: nothing tells the peak of
        one private pool. What other threads allocate in the meantime is counted as well.
        """
        drop_workspaces(self._memory)
        before = self._allocated_bytes("current")
        self._module.reset_peak_memory_stats()
        try:
            recorded, outputs = self._recorded(lambda: graph(*inputs), private.device_index, private.pool_id)
        finally:
            drop_workspaces(self._memory)
        return recorded, outputs, max(0, self._allocated_bytes("peak") - before)

    def _private_pool(self, index: int) -> PrivatePool:
        """A new private pool; its anchor records one small kernel, because torch warns of empty graphs."""
        pool_id = tuple(self._module.graph_pool_handle())
        device = torch.device(self._memory, index)
        anchor, _ = self._recorded(lambda: (torch.zeros(1, device=device),), index, pool_id)
        return PrivatePool(pool_id, index, anchor)

    @contextlib.contextmanager
    def _generator_restored(self, index: int) -> Iterator[None]:
        """Gives the default generator its state back: a warm-up draws numbers that nobody gets to see."""
        state = self._module.get_rng_state(index)
        try:
            yield
        finally:
            self._module.set_rng_state(state, index)

    def _recorded(
        self, work: Callable[[], tuple[Any, ...]], index: int, pool_id: tuple[int, int]
    ) -> tuple[Any, tuple[Any, ...]]:
        """Record as ``torch.cuda.graph`` does, but put stream and allocator back also if it fails."""
        recorded = self._graph_type()
        self._module.synchronize()
        self._module.empty_cache()
        with self._module.stream(self._stream(index)):
            recorded.capture_begin(pool=pool_id, capture_error_mode=_ERROR_MODE)
            try:
                outputs = tuple(work())
            except BaseException:
                with contextlib.suppress(RuntimeError):  # a consequence, which would hide the cause
                    recorded.capture_end()
                stop_allocating(self._memory, index, pool_id)
                raise
            try:
                recorded.capture_end()
            except RuntimeError:
                stop_allocating(self._memory, index, pool_id)
                raise
        return recorded, outputs

    def _stream(self, index: int) -> Any:
        """The stream of all captures on a device: memory of a private pool is only reused on one stream."""
        if index not in self._streams:
            self._streams[index] = self._module.Stream()
        return self._streams[index]

    def _allocated_bytes(self, which: str) -> int:
        return int(self._module.memory_stats().get(f"allocated_bytes.all.{which}", 0))


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in values if isinstance(value, torch.Tensor)]


def _unowned(outputs: tuple[Any, ...], aliased: frozenset[int], keep: PrivatePool) -> tuple[Any, ...]:
    """Outputs whose memory the next capture may take; those that alias an input stay as they are."""
    ours = {
        number: value
        for number, value in enumerate(outputs)
        if isinstance(value, torch.Tensor) and number not in aliased
    }
    given = dict(zip(ours, borrowed(list(ours.values()), keep), strict=True))
    return tuple(given.get(number, value) for number, value in enumerate(outputs))


@functools.cache
def accelerator(kind: str) -> AcceleratorBackend:
    """The backend of ``cuda`` or ``npu`` in this process."""
    return AcceleratorBackend(kind, device_module(kind), memory=memory_kind(kind))


def device_module(kind: str) -> Any:
    """``torch.cuda`` or ``torch.npu``, with at least one device."""
    if kind == "npu":
        try:  # it makes itself ``torch.npu``; where its autoload is switched off, nobody has done that before
            import torch_npu  # noqa: F401
        except ImportError as error:
            msg = (
                f"device kind npu needs torch_npu on top of CANN, and it does not import: {error}. Install "
                f"warmrank[npu] where CANN is, and source CANN's set_env.sh. Seen here: {_seen()}."
            )
            raise DeviceUnavailable(msg, kind="npu", missing="torch_npu") from error
        # CANN would cut the variable short in silence. Without device files the check is left out: NPUs may
        # be reached in ways that are not known here.
        num_devices = len(device_numbers(ascend_places()))
        if num_devices and not visible_devices(settings().ascend, num_devices):
            msg = (
                f"ASCEND_RT_VISIBLE_DEVICES hides all {num_devices} NPUs of this machine from this process. "
                "In a launch Ray sets it for each rank: ask for a NPU each (device: npu); elsewhere unset it."
            )
            raise DeviceUnavailable(msg, kind="npu", num_devices=num_devices)
    elif torch.version.cuda is None:
        msg = (
            f"device kind cuda needs a torch with CUDA; torch {torch.__version__} is built without. "
            "Install a CUDA build of the same version."
        )
        raise DeviceUnavailable(msg, kind=kind, missing="torch with CUDA")
    module = torch.get_device_module(kind)
    if module.is_available():
        return module
    driver, tool, variable, seen = {
        "cuda": ("NVIDIA driver", "nvidia-smi", "CUDA_VISIBLE_DEVICES", ""),
        "npu": ("Ascend driver", "npu-smi info", "ASCEND_RT_VISIBLE_DEVICES", f" ({_seen()})"),
    }[kind]
    msg = (
        f"device kind {kind}: torch finds no device{seen}; either the {driver} is missing (see {tool}), or "
        f"{variable} hides all devices from this process"
    )
    raise DeviceUnavailable(msg, kind=kind, missing=driver)


def _seen() -> str:
    """One line about Ascend's software and devices on this machine."""
    places = ascend_places()
    cann = cann_of(places)
    return ", ".join(
        (
            f"CANN {cann.release} in {cann.home}" if cann.release else "no CANN",
            f"driver {driver_of(places)}" if driver_of(places) else "no driver",
            f"{len(device_numbers(places))} files /dev/davinci<N>",
        )
    )
