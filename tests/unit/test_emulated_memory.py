"""The emulated NPU's memory and graphs, which stand in for other devices too; needs no torch_npu."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.npu_emulator.device import Device
from tests.npu_emulator.graph import Graph

ANY = (0, 7)


@pytest.fixture
def device() -> Device:
    found = Device()
    found.current_streams[0] = found.new_stream()
    return found


def captured(device: Device, work: Any, pool: tuple[int, int] = ANY) -> tuple[Graph, Any]:
    graph: Graph = device.graph_type()
    with torch.no_grad():
        graph.capture_begin(pool=pool)
        outputs = work()
        graph.capture_end()
    return graph, outputs


def test_capture_leaves_what_it_wrote_to_as_it_was(device: Device) -> None:
    cache, other = torch.zeros(3), torch.ones(2, 3)
    graph, _ = captured(device, lambda: (cache.add_(1), other[1].mul_(5)))
    assert cache.tolist() == [0.0] * 3
    assert other.tolist() == [[1.0] * 3] * 2
    graph.replay()
    assert cache.tolist() == [1.0] * 3
    assert other.tolist() == [[1.0] * 3, [5.0] * 3]


def test_outputs_hold_nothing_before_the_first_replay(device: Device) -> None:
    x = torch.ones(4)
    graph, output = captured(device, lambda: x + 1)
    assert output.tolist() != [2.0] * 4
    graph.replay()
    assert output.tolist() == [2.0] * 4


def test_empty_tensor_is_a_place_that_replays_leave_alone(device: Device) -> None:
    x = torch.ones(4)

    def work() -> tuple[torch.Tensor, torch.Tensor]:
        place = torch.empty_like(x)
        return place, place * 2

    graph, (place, output) = captured(device, work)
    place.fill_(3.0)
    graph.replay()
    assert output.tolist() == [6.0] * 4


@pytest.mark.parametrize(
    "work",
    [lambda x: x.item(), lambda x: x.nonzero(), lambda x: x.equal(x)],
    ids=["item", "nonzero", "equal"],
)
def test_operator_that_waits_breaks_the_capture(device: Device, work: Any) -> None:
    x = torch.ones(1)
    graph: Graph = device.graph_type()
    graph.capture_begin(pool=ANY)
    with pytest.raises(RuntimeError, match="not permitted"):
        work(x)
    with pytest.raises(RuntimeError, match="previous error"):
        graph.capture_end()
    assert not device.is_capturing


def test_streams_for_graphs_are_used_up() -> None:
    device = Device(num_streams=1)
    device.current_streams[0] = device.new_stream()
    first, _ = captured(device, lambda: torch.ones(1))
    with pytest.raises(RuntimeError, match="207008"):
        captured(device, lambda: torch.ones(1))
    first.reset()
    captured(device, lambda: torch.ones(1))
