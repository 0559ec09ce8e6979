"""What `worker.torch_private.tracing` relies on: one whole graph of a method, which is not run."""

from __future__ import annotations

import dataclasses
import dis
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from tests.support.devices import fake_world
from tests.support.small_models import Cached, Unfit
from tests.support.tracing import compiled, misfits, traced
from warmrank.worker.errors import GraphBreak, NotPortable
from warmrank.worker.torch_private.tracing import Trace, trace

ROWS = torch.ones(2, 4)


@pytest.fixture(scope="module")
def store() -> Trace:
    """A method with a parameter, a buffer that it writes to, and a dynamic input."""
    return traced(Cached().store, ROWS)


class Effects(nn.Module):
    """Records that its body really ran."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(4))
        self.cache: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache.add_(1.0)
        return x + self.cache


class Switches(nn.Module):
    """Turns gradients on while it is traced."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.set_grad_enabled(True)
        return x * 2


def unseen(x: torch.Tensor) -> torch.Tensor:
    return x + 1


torch._dynamo.allow_in_graph(unseen)


def test_capture_lifts_parameters_and_buffers_to_inputs(store: Trace) -> None:
    sources = [item.source for item in store.lowered.inputs if item.is_tensor]
    assert [source.replace('"', "'") for source in sources] == [
        "L['self']._buffers['cache']",
        "L['x']",
        "L['self']._modules['linear']._parameters['weight']",
        "L['self']._modules['linear']._parameters['bias']",
    ]


def test_capture_does_not_run_the_method() -> None:
    model = Effects()
    traced(model.forward, torch.ones(4))
    assert torch.equal(model.cache, torch.zeros(4))


def test_capture_gives_all_global_names_of_the_frame(store: Trace) -> None:
    loaded = {item.argval for item in dis.get_instructions(store.frame) if item.opname == "LOAD_GLOBAL"}
    assert store.graph_name in loaded
    assert loaded <= store.external_names


def test_capture_keeps_the_callers_grad_mode() -> None:
    with torch.no_grad():
        trace(Switches().forward, (ROWS,), {}, dynamic=True, decompositions={}, build=str)
        assert not torch.is_grad_enabled()


def test_capture_of_a_branch_on_data_gives_dynamos_reason_and_the_line() -> None:
    with pytest.raises(GraphBreak) as raised:
        traced(Unfit().breaks, ROWS)
    message = str(raised.value)
    assert "Unfit.breaks does not form one whole graph" in message
    assert "Data-dependent branching" in message
    assert "if x.sum() > 0:" in message
    assert 'small_models.py", line' in message
    assert raised.value.function == "Unfit.breaks"


def test_function_that_dynamo_does_not_look_into_is_refused_by_name() -> None:
    class Blind(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return unseen(x) * 2

    with pytest.raises(NotPortable, match=r"unseen is marked allow_in_graph"):
        traced(Blind().forward, ROWS)


def test_global_with_a_name_that_frames_keep_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("__builtins_dict__", "__compiled_fn", "__import_torch", "__object_1", "x_12_c34"):
        scope: dict[str, Any] = {"__name__": __name__, name: 3}
        exec(f"def reads(self, x): return x * {name}", scope)  # noqa: S102

        class Reads(nn.Module):
            forward = scope["reads"]

        with pytest.raises(NotPortable, match="rename it"):
            traced(Reads().forward, torch.ones(2))


def test_replaced_dataclass_has_the_names_of_its_class_as_condition():
    class Frozen:
        size: int
        name: str = "a"

    class Replaces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = Frozen(size=3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * dataclasses.replace(self.held, name="x").size

    module = Replaces()
    assert misfits(compiled(module.forward, torch.ones(2)), module.forward, torch.ones(2)) == ()


def test_part_of_a_mesh_that_the_function_asks_for_is_refused_by_name() -> None:
    class Asks(nn.Module):
        mesh: Any

        def forward(self, x: torch.Tensor) -> Any:
            return x + self.mesh["tp"].size()

    with fake_world(rank=1, world_size=4):
        module = Asks()
        module.mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        with pytest.raises(NotPortable, match="DeviceMesh"):
            compiled(module.forward, torch.ones(3))


def marked_nonstrict(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_function_that_is_not_traced_strictly_is_refused() -> None:
    marked = torch._dynamo.nonstrict_trace(marked_nonstrict)

    class Calls(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return marked(x)

    with pytest.raises(NotPortable, match="nonstrict_trace"):
        traced(Calls().forward, ROWS)
