"""Operators that are easy to replay wrongly: three calls each, the third a replay, compared with eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn

from tests.support.tracing import cached
from warmrank.worker.errors import NotPortable, StateChanged, WorkerError

pytestmark = pytest.mark.usefixtures("no_grad")


class Loss(nn.Module):
    """A loss, by name; their variants with ``out`` use it as scratch, or resize it."""

    def __init__(self, name: str, reduction: str) -> None:
        super().__init__()
        self.loss: Callable[..., torch.Tensor] = getattr(F, name)
        self.reduction = reduction

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.loss(x, y, reduction=self.reduction)


class Window(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((2, 2), (2, 1), 1) + 1


class Overlapping(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2


@pytest.mark.one_in(4)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    "name", ["binary_cross_entropy", "huber_loss", "mse_loss", "smooth_l1_loss", "l1_loss"]
)
def test_loss_is_eagers_on_every_replay(tmp_path: Path, name: str, reduction: str) -> None:
    model = Loss(name, reduction)
    function = cached(model.forward, tmp_path)
    for seed in range(4):
        torch.manual_seed(seed)
        x, y = torch.rand(5, 5), torch.rand(5, 5)
        assert torch.equal(function(x, y), model(x, y))
    assert function.statistics.replays >= 2


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(4), nn.InstanceNorm1d(4, track_running_stats=True)], ids=type
)
def test_running_statistics_are_updated_once_a_call(tmp_path: Path, norm: nn.Module) -> None:
    twin = copy.deepcopy(norm)
    function = cached(norm.forward, tmp_path)
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randn(3, 4, 6)
        assert torch.equal(function(x), twin(x))
        for (name, ours), theirs in zip(norm.named_buffers(), twin.buffers(), strict=True):
            assert torch.equal(ours, theirs), name


def test_inputs_over_one_block_of_memory_see_each_others_writes(tmp_path: Path) -> None:
    function = cached(Overlapping().forward, tmp_path)
    for _ in range(4):
        block = np.arange(8.0, dtype=np.float32)
        x, y = torch.from_numpy(block[:4]), torch.from_numpy(block[2:6])
        assert function(x, y).tolist() == [6.0, 8.0, 8.0, 10.0]


def test_view_by_place_in_the_storage_is_that_of_the_callers_storage(tmp_path: Path) -> None:
    model = Window()
    function = cached(model.forward, tmp_path)
    for start in (0, 0, 0, 4, 4, 8):
        x = torch.randn(32)[start : start + 16]
        assert torch.equal(function(x), model(x))


def test_view_by_place_in_the_storage_is_refused_in_max_autotune(tmp_path: Path) -> None:
    from warmrank import CompilerConfig

    config: Any = CompilerConfig()
    config.mode = "max-autotune"
    with pytest.raises(NotPortable, match=r"as_strided looks at the storage of x"):
        cached(Window().forward, tmp_path, config=config)(torch.randn(16))


def test_parameter_that_is_gone_is_looked_up_anew(tmp_path: Path) -> None:
    model = nn.LayerNorm(4)
    function = cached(model.forward, tmp_path)
    x = torch.randn(3, 4)
    for _ in range(3):
        function(x)
    model.register_parameter("weight", None)
    try:
        found = function(x)
    except WorkerError as error:
        assert isinstance(error, StateChanged)  # noqa: PT017 - one of two right ends
    else:
        assert torch.equal(found, model(x))
