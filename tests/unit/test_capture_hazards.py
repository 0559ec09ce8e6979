"""Hazards of captured graphs: sizes that depend on data, views at one address, several threads."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from warmrank.inference import cache_compile
from warmrank.worker.configs.compiler_config import CompilerConfig


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(4))
        self.kept = torch.ones(4)

    def positive(self, x: torch.Tensor) -> torch.Tensor:
        return x[x > 0] * 2

    def with_kept(self, x: torch.Tensor) -> torch.Tensor:
        return self.kept.sum() + x

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + x.sum()


@pytest.mark.usefixtures("no_grad")
def test_size_that_depends_on_data_is_never_captured(tmp_path: Path) -> None:
    model = Model()
    cached = cache_compile(model.positive, cache_dir=tmp_path)
    for x in (
        torch.tensor([1.0, 2.0, -1.0]),
        torch.tensor([1.0, -2.0, -1.0]),
        torch.tensor([-1.0, -2.0, -1.0]),
    ):
        assert torch.equal(cached(x), model.positive(x))
    assert cached.variants[0].runner.statistics.captures == 0


@pytest.mark.usefixtures("no_grad")
def test_state_that_became_a_view_at_the_same_address_is_seen(tmp_path: Path) -> None:
    model = Model()
    cached = cache_compile(model.with_kept, cache_dir=tmp_path)
    for _ in range(2):  # runs, captures
        assert torch.equal(cached(torch.ones(2)), torch.full((2,), 5.0))
    model.kept = model.kept[:2]
    assert torch.equal(cached(torch.ones(2)), torch.full((2,), 3.0))


def test_calls_of_several_threads_do_not_mix(tmp_path: Path) -> None:
    model = Model()
    config = CompilerConfig()
    config.debug.aclgraph.enable_output_clone = True
    cached = cache_compile(model.scaled, config=config, cache_dir=tmp_path)

    def call(value: int) -> bool:
        with torch.no_grad():
            x = torch.full((4,), float(value))
            return torch.equal(cached(x), model.scaled(x))

    assert call(0)
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, range(400)))


@pytest.mark.parametrize("clone", [False, True])
def test_threads_that_call_in_turns_are_warned_unless_outputs_are_copied(tmp_path, caplog, clone):
    config = CompilerConfig()
    config.debug.aclgraph.enable_output_clone = clone
    cached = cache_compile(Model().scaled, config=config, cache_dir=tmp_path)

    @torch.no_grad()
    def call() -> None:
        cached(torch.ones(4))

    logger = logging.getLogger("torchair")
    logger.addHandler(caplog.handler)
    try:
        call(), call()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(call).result()
            assert "several threads" not in caplog.text  # the other one took over
            call()
    finally:
        logger.removeHandler(caplog.handler)
    assert ("several threads call a captured function" in caplog.text) == (not clone)


class Noting(torch.nn.Module):
    """Notes on itself how often it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(4), requires_grad=False)
        self.notes: list[int] = []

    def noted(self, x: torch.Tensor) -> torch.Tensor:
        self.notes.append(1)
        return x * self.scale


@pytest.mark.usefixtures("no_grad")
def test_capture_in_advance_leaves_the_modules_python_objects_as_they_were(tmp_path: Path) -> None:
    model = Noting()
    cached = cache_compile(model.noted, cache_dir=tmp_path)
    cached.warm_up(torch.ones(4))
    assert (model.notes, cached.statistics.captures) == ([], 1)
    cached(torch.ones(4))
    assert (model.notes, cached.statistics.captures) == ([1], 1)
