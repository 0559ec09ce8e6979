"""Copies of a module with a cached function: bound to the copy, with its options, and nothing loaded."""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.tracing import ROWS, outcome
from warmrank.inference import cache_compile


class Decoder(nn.Module):
    def __init__(self, cache: Path) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.scale = 2.0
        self.cached_decode = cache_compile(self.decode, cache_dir=cache, guards="always", rng="allow")

    def decode(self, x: torch.Tensor) -> Any:
        return self.layer(x) * self.scale

    def forward(self, x: torch.Tensor) -> Any:
        return self.cached_decode(x)


def deeply(module: nn.Module) -> Any:
    return copy.deepcopy(module)


def pickled(module: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(module))  # noqa: S301 - made here


def saved(module: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS = {"deepcopy": deeply, "pickle": pickled, "torch.save": saved}


@pytest.fixture(autouse=True)
def _no_gradients() -> Any:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("called", [False, True], ids=["before the first call", "after it"])
@pytest.mark.parametrize("way", WAYS)
def test_copys_function_is_bound_to_the_copy(way: str, called: bool, tmp_path: Path) -> None:
    model = Decoder(tmp_path)
    if called:
        model(ROWS)
    other = WAYS[way](model)
    assert other.cached_decode.module is other
    assert other.cached_decode.variants == ()
    other.layer.weight.mul_(3)
    torch.testing.assert_close(other(ROWS), other.decode(ROWS), rtol=0, atol=0)
    torch.testing.assert_close(model(ROWS), model.decode(ROWS), rtol=0, atol=0)
    assert outcome(other.cached_decode) == ("loaded" if called else "compiled")


def test_copied_list_of_layers_has_a_function_each(tmp_path: Path) -> None:
    layers = nn.Sequential(Decoder(tmp_path), Decoder(tmp_path))
    other: Any = copy.deepcopy(layers)
    assert [layer.cached_decode.module for layer in other] == list(other)
    torch.testing.assert_close(other(ROWS), layers(ROWS), rtol=0, atol=0)


def _serve(model: Decoder, results: Any) -> None:
    with torch.no_grad():
        same = torch.equal(model(ROWS), model.decode(ROWS))
    results.put((same, outcome(model.cached_decode)))


@pytest.mark.slow
def test_spawned_process_serves_a_shared_module(tmp_path: Path) -> None:
    model = Decoder(tmp_path)
    model(ROWS)
    model.share_memory()
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_serve, args=(model, results))
    process.start()
    assert results.get(timeout=120) == (True, "loaded")
    process.join(60)
    torch.testing.assert_close(model(ROWS), model.decode(ROWS), rtol=0, atol=0)


def test_relative_directory_is_that_of_the_first_call(tmp_path, monkeypatch):
    first, later = tmp_path / "first", tmp_path / "later"
    first.mkdir()
    later.mkdir()
    model = Decoder(Path("cache"))
    monkeypatch.chdir(first)
    model(ROWS)
    monkeypatch.chdir(later)
    model(torch.ones(1, 4))
    assert list(later.iterdir()) == []
    assert len(list(first.rglob("compiled_module*"))) > 0
