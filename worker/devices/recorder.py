"""Recording a graph on an accelerator: the calls of ``torch.cuda`` and ``torch.npu`` that make a capture.

Whatever fails, stream, allocator and generator are usable afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from warmrank.worker.devices.accelerator_pool import PrivatePool, PrivatePoolId
from warmrank.worker.torch_private.graph_memory import drop_workspaces, stop_allocating

_GRAPHS = {"cuda": "CUDAGraph", "npu": "NPUGraph"}
# What another thread does meanwhile (a free, an event query) must not make this capture fail.
_ERROR_MODE = "thread_local"


class Recorder:
    """Records on the devices of one kind; one capture at a time in a process, which is the caller's duty."""

    def __init__(self, kind: str, module: Any, *, memory: str) -> None:
        """Takes the device's module, and the type of its tensors' device."""
        self._graph_type = getattr(module, _GRAPHS[kind])
        self._module = module
        self._memory = memory
        self._streams: dict[int, Any] = {}

    def warm_up(self, graph: Callable[..., Any], inputs: tuple[Any, ...], index: int) -> None:
        """Run once, so that libraries, kernels and communicators are there before the capture."""
        self._module.synchronize()
        with self._module.stream(self._stream(index)):
            graph(*inputs)
        self._module.synchronize()

    def measured(
        self, graph: Callable[..., tuple[Any, ...]], inputs: tuple[Any, ...], private: PrivatePool
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

    def recover(self, index: int) -> None:
        """Record what works: a capture that failed leaves the generator in the belief that it goes on.

        Eager calls that draw numbers would fail until the next one ends.
        """
        with contextlib.suppress(RuntimeError):  # the error that counts is already on its way
            self.private_pool(index)

    def private_pool(self, index: int) -> PrivatePool:
        """A new private pool; its anchor records one small kernel, because torch warns of empty graphs."""
        pool_id = tuple(self._module.graph_pool_handle())
        device = torch.device(self._memory, index)
        anchor, _ = self._recorded(lambda: (torch.zeros(1, device=device),), index, pool_id)
        return PrivatePool(pool_id=pool_id, device_index=index, anchor=anchor)

    @contextlib.contextmanager
    def generator_restored(self, index: int) -> Iterator[None]:
        """Gives the default generator its state back: a warm-up draws numbers that nobody gets to see."""
        state = self._module.get_rng_state(index)
        try:
            yield
        finally:
            self._module.set_rng_state(state, index)

    def _recorded(
        self, work: Callable[[], tuple[Any, ...]], index: int, pool_id: PrivatePoolId
    ) -> tuple[Any, tuple[Any, ...]]:
        """What ``torch.cuda.graph`` does; but stream and allocator are put back also where it fails."""
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
