"""What only an accelerator can show; the contract suite runs on it too, where there is one."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.devices import NAMES, Drawing, assert_equal, drawn, is_here
from warmrank.inference import cache_compile
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.devices import backend_for
from warmrank.worker.errors import NotCapturable

KINDS = [
    pytest.param(
        kind,
        marks=[
            mark,
            pytest.mark.skipif(not is_here(kind), reason=f"torch finds no {kind} device on this machine"),
        ],
    )
    for kind, mark in (("cuda", pytest.mark.gpu), ("npu", pytest.mark.npu))
]
NONE: frozenset[int] = frozenset()
WIDTH = 64


class Decoder(nn.Module):
    """Writes to a cache, and attends to all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def decode(self, x: torch.Tensor, cache: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(1, position, self.project(x))
        weights = (x @ cache.transpose(1, 2)).softmax(-1)
        found: torch.Tensor = self.out(weights @ cache)
        return found

    def waiting(self, x: torch.Tensor) -> torch.Tensor:
        return x[x > 0].sum()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def model(kind: str) -> Decoder:
    torch.manual_seed(0)
    return Decoder().to(kind).eval()


def step(batch: int, position: int, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, 1, WIDTH, device=kind), torch.tensor([position], device=kind)


@torch.no_grad()
def assert_decodes_like_eager(function: Any, model: Decoder, batch: int, cache: torch.Tensor) -> None:
    expected_cache = cache.clone()
    for position in range(4):
        x, where = step(batch, position, cache.device.type)
        expected = model.decode(x, expected_cache, where)
        torch.testing.assert_close(function(x, cache, where), expected)
        torch.testing.assert_close(cache, expected_cache)


def cache_of(batch: int, kind: str) -> torch.Tensor:
    return torch.zeros(batch, 16, WIDTH, device=kind)


def test_decode_is_right_cold_and_warm(kind: str, model: Decoder, tmp_path: Path) -> None:
    for outcome in ("compiled", "loaded"):
        function = cache_compile(model.decode, cache_dir=tmp_path)
        assert_decodes_like_eager(function, model, 2, cache_of(2, kind))
        assert function.last_result is not None
        assert function.last_result.outcome == outcome


def test_cache_at_another_address_is_captured_again(kind: str, model: Decoder, tmp_path: Path) -> None:
    function = cache_compile(model.decode, cache_dir=tmp_path)
    caches = [cache_of(2, kind), cache_of(2, kind)]
    for cache in caches:
        assert_decodes_like_eager(function, model, 2, cache)
    (variant,) = function.variants
    assert variant.runner.statistics.captures == 2


def test_graph_that_waits_for_the_device_is_refused_and_the_device_stays_usable(kind: str) -> None:
    backend = backend_for(kind)
    x = torch.randn(8, device=kind)
    with pytest.raises(NotCapturable, match=f"cannot be captured on {kind}"):
        backend.capture(
            lambda x: (x.nonzero(),), [x], copied=frozenset((0,)), aliased=NONE, pool=backend.pool()
        )
    assert torch.rand(3, device=kind).shape == (3,)  # the generator is not stuck in the capture
    graph = backend.capture(
        lambda x: (x + 1,), [x], copied=frozenset((0,)), aliased=NONE, pool=backend.pool()
    )
    graph.replay()
    assert torch.equal(graph.outputs[0], x + 1)


def test_function_that_cannot_be_captured_runs_without(kind, model, tmp_path, caplog):
    function = cache_compile(model.waiting, cache_dir=tmp_path)
    with torch.no_grad(), caplog.at_level(logging.INFO, "torchair"):
        for _ in range(2):
            x = torch.randn(8, device=kind)
            torch.testing.assert_close(function(x), model.waiting(x))
    assert "not captured" in caplog.text


@pytest.mark.parametrize("name", NAMES)
def test_replays_draw_fresh_numbers_the_same_as_eager(kind: str, name: str, tmp_path: Path) -> None:
    method, x = getattr(Drawing().to(kind), name), torch.randn(4, 8, device=kind)
    expected = drawn(method, x)
    assert not torch.equal(expected[0][0], expected[1][0])
    function = cache_compile(method, cache_dir=tmp_path, rng="allow")
    assert_equal(drawn(function, x), expected)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # Inductor calls functions that torch has deprecated
@pytest.mark.parametrize("kind", KINDS[:1], indirect=True)  # Inductor has kernels for CUDA only
def test_compiled_kernels_are_right(kind: str, model: Decoder, tmp_path: Path) -> None:
    config = CompilerConfig()
    config.mode = "max-autotune"
    function = cache_compile(model.decode, config=config, cache_dir=tmp_path, ge_cache=True)
    assert_decodes_like_eager(function, model, 2, cache_of(2, kind))
