"""Devices of every kind, one that is not there, and process groups without other ranks."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.npu_emulator.device import Device, PoolId
from warmrank.worker import groups
from warmrank.worker.devices import CpuBackend, backend_for, duplicate
from warmrank.worker.devices.accelerator import AcceleratorBackend
from warmrank.worker.devices.port import DeviceBackend
from warmrank.worker.runtime.artifact import GraphFacts
from warmrank.worker.runtime.runner import CaptureOptions, GraphRunner


class FakeStream:
    """A stream, by its number."""

    def __init__(self, number: int) -> None:
        self.number = number


class FakeDevice(Device):
    """What the backend needs of ``torch.cuda``."""

    def __init__(self, num_devices: int = 1) -> None:
        super().__init__(num_devices)
        self.CUDAGraph = self.NPUGraph = self.graph_type

    def Stream(self) -> FakeStream:  # noqa: N802 - torch.cuda's name
        return FakeStream(self.new_stream())

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before = self.current_stream(0)
        self.current_streams[0] = stream.number
        try:
            yield
        finally:
            self.current_streams[0] = before

    def device(self, index: int) -> contextlib.AbstractContextManager[None]:
        assert 0 <= index < self.num_devices
        return contextlib.nullcontext()

    def device_count(self) -> int:
        return self.num_devices

    def current_device(self) -> int:
        return 0

    def synchronize(self) -> None:
        self.wait()

    def memory_snapshot(self, pool_id: PoolId) -> list[dict[str, Any]]:
        return self.snapshot(pool_id)

    def memory_stats(self) -> dict[str, int]:
        return {"allocated_bytes.all.current": self.allocated, "allocated_bytes.all.peak": self.peak}

    def reset_peak_memory_stats(self) -> None:
        self.peak = self.allocated

    def get_rng_state(self, index: int) -> torch.Tensor:
        assert index == 0
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, index: int) -> None:
        assert index == 0
        torch.set_rng_state(state)


STAND_IN = "stand-in"


def is_here(kind: str) -> bool:
    """Whether torch finds a device of this kind."""
    if kind == "npu" and any(Path("/dev").glob("davinci[0-9]*")):
        with contextlib.suppress(ImportError):  # not installed here, or without set_env.sh of CANN
            importlib.import_module("torch_npu")
    module = torch.cuda if kind == "cuda" else getattr(torch, kind, None)
    return module is not None and module.is_available()


BACKENDS = [
    "cpu",
    STAND_IN,
    *(
        pytest.param(kind, marks=mark)
        for kind, mark in (("cuda", pytest.mark.gpu), ("npu", pytest.mark.npu))
        if is_here(kind)
    ),
]
"""All that this machine has; ``tests/device`` says of the others that they were skipped."""


def make_backend(name: str) -> DeviceBackend:
    """The backend of a device kind; the stand-in is the accelerators' on memory of the CPU."""
    if name == STAND_IN:
        return AcceleratorBackend("cuda", FakeDevice(), memory="cpu")
    return backend_for(name)


def make_device(name: str, backend: DeviceBackend) -> torch.device:
    """Where the tensors of its graphs lie."""
    return torch.device("cpu") if name == STAND_IN else backend.device(0)


SEED = 11


class Drawing(nn.Module):
    """Methods that draw."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.5)

    def dropout(self, x: torch.Tensor) -> Any:
        return self.drop(self.linear(x))

    def rand_like(self, x: torch.Tensor) -> Any:
        return torch.rand_like(x) + x

    def bernoulli(self, x: torch.Tensor) -> Any:
        return torch.bernoulli(x.sigmoid())

    def randint(self, x: torch.Tensor) -> Any:
        return torch.randint(0, 1 << 20, (4,), device=x.device) + x[0, :4]

    def multinomial(self, x: torch.Tensor) -> Any:
        return torch.multinomial(x.softmax(-1), 5)

    def in_place(self, x: torch.Tensor) -> Any:
        return x.clone().normal_()

    def attention(self, x: torch.Tensor) -> Any:
        return functional.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5)

    def several(self, x: torch.Tensor) -> Any:
        return torch.rand(3, device=x.device), self.drop(x), torch.randn_like(x)


NAMES = [name for name in vars(Drawing) if not name.startswith("_")]


def values(outputs: Any) -> list[torch.Tensor]:
    return [item.clone() for item in (outputs if isinstance(outputs, tuple) else (outputs,))]


def drawn(function: Callable[..., Any], x: torch.Tensor, times: int = 3) -> list[list[torch.Tensor]]:
    torch.manual_seed(SEED)
    with torch.no_grad():
        return [values(function(x)) for _ in range(times)]


def assert_equal(found: list[list[torch.Tensor]], expected: list[list[torch.Tensor]]) -> None:
    for some, others in zip(found, expected, strict=True):
        assert len(some) == len(others)
        assert all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


@contextlib.contextmanager
def fake_world(*, rank: int, world_size: int) -> Iterator[dist.ProcessGroup]:
    """This process as one rank of a world that is not there; yields the world's group."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    world = dist.group.WORLD
    assert world is not None
    try:
        yield world
    finally:
        groups.declare_groups({})
        dist.destroy_process_group()


def runner(
    graph: Callable[..., tuple[Any, ...]],
    *classes: str,
    facts: Mapping[str, Any] = MappingProxyType({}),
    backend: DeviceBackend | None = None,
    **options: Any,
) -> GraphRunner:
    """A runner of a graph with inputs of these classes on the CPU; ``options`` are of captures."""
    known = {"input_classes": classes, "num_outputs": 1, "aliased_outputs": (), **facts}
    return GraphRunner(graph, GraphFacts(**known), backend or CpuBackend(), CaptureOptions(**options))


def warm(run: GraphRunner, *inputs: Any) -> GraphRunner:
    """The runner, whose next call with inputs of these shapes captures; the inputs stay as they are."""
    before = run.statistics
    run(*(duplicate(value) if isinstance(value, torch.Tensor) else value for value in inputs))
    after = run.statistics
    assert (after.captures, after.warm_up_runs) == (before.captures, before.warm_up_runs + 1)
    return run
