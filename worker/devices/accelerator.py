"""Device kinds ``cuda`` and ``npu``: captured graphs of ``torch.cuda`` and ``torch.npu``, which look alike.

One capture at a time in a process. A capture warms the graph up once on a side stream, which is the only
time that it runs, then records it; so mutated inputs change once, and outputs hold nothing before the first
replay. The default generator, which torch registers with every capture, gets its state back: the first
replay draws the numbers that a call without capture would have drawn, and each one goes on from there.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from warmrank.worker.ascend.chips import device_numbers, visible_devices
from warmrank.worker.ascend.places import here
from warmrank.worker.ascend.versions import cann_of, driver_of
from warmrank.worker.device_kinds import memory_of
from warmrank.worker.devices.accelerator_memory import AcceleratorPool, PrivatePool, Recorder
from warmrank.worker.devices.failures import not_capturable, refuse_foreign
from warmrank.worker.devices.port import CapturedGraph, Graph, Pool, PoolHandle, Positions
from warmrank.worker.errors import DeviceUnavailable
from warmrank.worker.settings import settings
from warmrank.worker.torch_private.places import borrowed, origins

_COLLECTIVES = {"cuda": "nccl", "npu": "hccl"}
_CAPTURING = threading.RLock()


class AcceleratorBackend:
    """An accelerator as a device kind."""

    def __init__(self, kind: str, module: Any, *, memory: str = "") -> None:
        """Makes a backend."""
        self.kind = kind
        self.collectives = _COLLECTIVES[kind]
        self._module = module
        self._memory = memory or kind
        self._recorder = Recorder(kind, module, memory=self._memory)
        self._pools: weakref.WeakValueDictionary[PoolHandle, AcceleratorPool] = weakref.WeakValueDictionary()

    def device(self, local_rank: int) -> torch.device:
        """See `DeviceBackend.device`; where Ray shows a rank one device only, it is that one."""
        if memory_of(self.kind) != self.kind:
            return torch.device(memory_of(self.kind))
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
        new = AcceleratorPool(self._module, self._recorder.private_pool)
        if handle is None:
            return new
        _check_handle(handle, self.kind)
        with _CAPTURING:
            return self._pools.setdefault(handle, new)

    def capture(
        self, graph: Graph, inputs: Sequence[Any], *, copied: Positions, aliased: Positions, pool: Pool
    ) -> CapturedGraph:
        """See `DeviceBackend.capture`."""
        if not isinstance(pool, AcceleratorPool):
            msg = f"a pool of another device kind ({type(pool).__name__}); take one from this backend"
            raise TypeError(msg)
        index = self._index_of(inputs)
        device = torch.device(self._memory, index)
        refuse_foreign(inputs, "input", device)
        fixed = _tensors(value for number, value in enumerate(inputs) if number not in copied)
        with _CAPTURING, self._module.device(index), self._recorder.generator_restored(index):
            static, buffer_bytes = _with_buffers(inputs, sorted(copied), fixed, pool)
            self._recorder.warm_up(graph, static, index)
            private = pool.private(index, fixed)
            try:
                recorded, outputs, work_bytes = self._recorder.measured(graph, static, private)
            except RuntimeError as error:
                pool.abandon(private)
                self._recorder.recover(index)
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

    def _index_of(self, inputs: Sequence[Any]) -> int:
        """Index of the first input's device; the current one if no input lies on such a device."""
        indices = (item.device.index for item in _tensors(inputs) if item.device.type == self._memory)
        index = next(indices, None)
        return int(self._module.current_device()) if index is None else index


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in values if isinstance(value, torch.Tensor)]


def _with_buffers(
    inputs: Sequence[Any], copied: Sequence[int], fixed: Sequence[torch.Tensor], pool: AcceleratorPool
) -> tuple[tuple[Any, ...], int]:
    """The inputs, the copied ones in buffers of the pool, and the bytes of these."""
    buffers, size_bytes = pool.buffers([inputs[number] for number in copied], fixed)
    found = list(inputs)
    for number, buffer in zip(copied, buffers, strict=True):
        found[number] = buffer
    return tuple(found), size_bytes


def _unowned(outputs: tuple[Any, ...], aliased: frozenset[int], keep: PrivatePool) -> tuple[Any, ...]:
    """Outputs whose memory the next capture may take; those that alias an input stay as they are."""
    ours = [
        number
        for number, value in enumerate(outputs)
        if isinstance(value, torch.Tensor) and number not in aliased
    ]
    found = list(outputs)
    for number, tensor in zip(ours, borrowed([outputs[number] for number in ours], keep), strict=True):
        found[number] = tensor
    return tuple(found)


def _check_handle(handle: PoolHandle, kind: str) -> None:
    pair = 2
    if len(handle) != pair or not all(type(part) is int for part in handle):
        msg = (
            f"{handle!r} is no pool handle of device kind {kind}: expected two numbers, as "
            f"torch.{kind}.graph_pool_handle() gives"
        )
        raise ValueError(msg)


@functools.cache
def accelerator(kind: str) -> AcceleratorBackend:
    """The backend of ``cuda`` or ``npu`` in this process."""
    return AcceleratorBackend(kind, device_module(kind), memory=memory_of(kind))


def device_module(kind: str) -> Any:
    """``torch.cuda`` or ``torch.npu``, with at least one device."""
    if kind == "npu":
        _import_torch_npu()
    elif torch.version.cuda is None:
        msg = (
            f"device kind cuda needs a torch with CUDA; torch {torch.__version__} is built without. "
            "Install a CUDA build of the same version."
        )
        raise DeviceUnavailable(msg, kind=kind, missing="torch with CUDA")
    module = torch.get_device_module(kind)
    if kind == "npu":
        check_visible()
    if not module.is_available():
        raise _no_device(kind)
    return module


def check_visible() -> None:
    """Refuse an ``ASCEND_RT_VISIBLE_DEVICES`` that CANN would cut short in silence.

    Without device files the check is left out: NPUs may be reached in ways that are not known here.
    """
    num_devices = len(device_numbers(here()))
    if num_devices and not visible_devices(settings().ascend, num_devices):
        msg = (
            f"ASCEND_RT_VISIBLE_DEVICES hides all {num_devices} NPUs of this machine from this process. In a "
            "launch Ray sets it for each rank: ask for a NPU each (device: npu); elsewhere unset it."
        )
        raise DeviceUnavailable(msg, kind="npu", num_devices=num_devices)


def _no_device(kind: str) -> DeviceUnavailable:
    driver, tool, variable = {
        "cuda": ("NVIDIA driver", "nvidia-smi", "CUDA_VISIBLE_DEVICES"),
        "npu": ("Ascend driver", "npu-smi info", "ASCEND_RT_VISIBLE_DEVICES"),
    }[kind]
    seen = f" ({_seen()})" if kind == "npu" else ""
    msg = (
        f"device kind {kind}: torch finds no device{seen}; either the {driver} is missing (see {tool}), or "
        f"{variable} hides all devices from this process"
    )
    return DeviceUnavailable(msg, kind=kind, missing=driver)


def _import_torch_npu() -> None:
    """It makes itself ``torch.npu``; where its autoload is switched off, nobody has done that before."""
    try:
        import torch_npu  # noqa: F401
    except ImportError as error:
        msg = (
            f"device kind npu needs torch_npu on top of CANN, and it does not import: {error}. Install "
            f"warmrank[npu] where CANN is, and source CANN's set_env.sh. Seen here: {_seen()}."
        )
        raise DeviceUnavailable(msg, kind="npu", missing="torch_npu") from error


def _seen() -> str:
    """What of Ascend is on this machine, in a line."""
    places = here()
    cann = cann_of(places)
    return ", ".join(
        (
            f"CANN {cann.release} in {cann.home}" if cann.release else "no CANN",
            f"driver {driver_of(places)}" if driver_of(places) else "no driver",
            f"{len(device_numbers(places))} files /dev/davinci<N>",
        )
    )
