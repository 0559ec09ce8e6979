"""A stand-in for ``torch_npu`` on a CPU: as much of it as ``npugraph_ex`` asks for.

Its graph keeps the operators that run while it is captured, and runs them again into the same outputs, so
results are right. A replay costs a little more than eager does, and says nothing of an NPU.
"""

# ruff: noqa: SLF001 - it stands in for private names, which is what npugraph_ex asks for
from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_NUMBERS = itertools.count(1)
_FORMAT_ND = 2


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps every operator that runs, with its arguments and results."""

    def __init__(self, steps: list[tuple[Any, ...]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._steps = steps

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self._steps.append((func, args, kwargs, result))
        return result


class NPUGraph:
    """Operators of one capture."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, ...]] = []

    def replay(self) -> None:
        """Run the operators again; what they made anew is copied to where it was captured."""
        for func, args, kwargs, before in self.steps:
            after = func(*args, **kwargs)
            if func.is_view or func._schema.is_mutable:
                continue  # these lie where they lay
            for old, new in zip(_tensors(before), _tensors(after), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)

    def reset(self) -> None:
        """Forget them."""
        self.steps.clear()


class Stream:
    """A stream that is only told apart from others."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.stream_id = next(_NUMBERS)

    def nothing(self, *_: Any) -> None:
        """There is one queue, and it has run."""

    wait_event = record_event = synchronize = nothing


class Event:
    """An event that has happened."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def nothing(self, *_: Any) -> None:
        """There is one queue, and it has run."""

    record = wait = nothing


def install() -> None:
    """Put the stand-in where ``import torch_npu`` and ``torch.npu`` find it."""
    npu = _npu()
    top: Any = ModuleType("torch_npu")
    top.__path__ = []
    top.npu = npu
    top.get_npu_format = lambda _: _FORMAT_ND
    top.distributed = SimpleNamespace()
    top._C = SimpleNamespace(
        _npu_getCheckpointState=lambda *_: None,
        _npu_setCheckpointPoolState=lambda *_: None,
        _construct_storage_from_data_pointer=torch._C._construct_storage_from_data_pointer,
        _construct_NPU_Tensor_From_Storage_And_Metadata=_tensor_over,
    )
    sys.modules.update({"torch_npu": top, "torch_npu.npu": npu, "torch_npu.npu.utils": npu.utils})
    torch.npu = npu  # type: ignore[attr-defined]
    torch.Tensor.is_npu = property(lambda _: False)  # type: ignore[attr-defined]


def _npu() -> Any:
    npu: Any = ModuleType("torch_npu.npu")
    stream = Stream()
    unknown: dict[str, object] = {}

    def other(name: str) -> object:
        """Functions that the compiler looks for in graphs, where they do not occur."""
        if name.startswith("__"):
            raise AttributeError(name)
        return unknown.setdefault(name, object())

    npu.__getattr__ = other
    npu.NPUGraph, npu.graph, npu.Stream, npu.Event = NPUGraph, _capturing, Stream, Event
    npu.current_device = npu._get_deterministic_level = lambda: 0
    npu.current_stream = lambda *_: stream
    npu.synchronize = npu.empty_cache = npu.set_stream_limit = lambda *_: None
    npu.graph_pool_handle = lambda: (0, next(_NUMBERS))
    npu.get_stream_limit = lambda _: {"cube_core_num": 1, "vector_core_num": 1}
    npu.get_device_name = lambda *_: "stand-in"
    npu.utils = ModuleType("torch_npu.npu.utils")
    npu.utils._is_gte_cann_version = lambda *_, **__: True
    npu.utils.get_cann_version = lambda *_, **__: "0"
    return npu


@contextlib.contextmanager
def _capturing(graph: NPUGraph, **_: Any) -> Iterator[None]:
    with _Recorder(graph.steps):
        yield


def _tensors(result: Any) -> list[torch.Tensor]:
    found = result if isinstance(result, list | tuple) else [result]
    return [value for value in found if isinstance(value, torch.Tensor)]


def _tensor_over(metadata: Any, storage: Any) -> torch.Tensor:
    tensor = torch.empty(0, dtype=metadata["dtype"])
    return tensor.set_(storage, metadata["storage_offset"], metadata["size"], metadata["stride"])
