"""Copies of a module with a cached function: bound to the copy, with its options, and nothing loaded."""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from tests.support.tracing import ROWS, outcome, reason
from warmrank import CompilerConfig
from warmrank.inference import cache_compile

pytestmark = pytest.mark.usefixtures("no_grad")


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


CUBE = ROWS.expand(3, 2, 4).clone()


class Nested(nn.Module):
    def __init__(self, cache: Path, scale: float = 2.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        self.scale = scale
        config = CompilerConfig()
        config.debug.aclgraph.enable_output_clone = True  # for calls in threads
        self.cached_outer = cache_compile(self.outer, cache_dir=cache, config=config)
        self.cached_inner = cache_compile(self.inner, cache_dir=cache, config=config)
        self.cached_often = cache_compile(self.often, cache_dir=cache)

    def inner(self, x: torch.Tensor) -> Any:
        return self.layer(x) * self.scale

    def outer(self, x: torch.Tensor) -> Any:
        return self.cached_inner(x) + self.cached_inner(x * 2)

    def often(self, x: torch.Tensor, times: int) -> Any:
        return self.cached_often(torch.relu(x), times - 1) if times else self.inner(x)


def eagerly(model: Nested, x: torch.Tensor) -> Any:
    return model.inner(x) + model.inner(x * 2)


def test_function_called_by_another_is_part_of_it(tmp_path: Path) -> None:
    for expected in ("compiled", "loaded"):
        model = Nested(tmp_path)
        torch.testing.assert_close(model.cached_outer(ROWS), eagerly(model, ROWS), rtol=0, atol=0)
        assert outcome(model.cached_outer) == expected
        assert model.cached_inner.variants == ()


def test_change_of_what_the_called_function_reads_is_a_miss(tmp_path: Path) -> None:
    Nested(tmp_path).cached_outer(ROWS)
    model = Nested(tmp_path, scale=3.0)
    torch.testing.assert_close(model.cached_outer(ROWS), eagerly(model, ROWS), rtol=0, atol=0)
    assert "scale" in reason(model.cached_outer)


def test_function_inside_torch_compile(tmp_path: Path) -> None:
    model = Nested(tmp_path)
    compiled = torch.compile(model.outer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(ROWS), eagerly(model, ROWS), rtol=0, atol=0)


def test_function_inside_vmap_and_grad(tmp_path: Path) -> None:
    model = Nested(tmp_path)
    model.cached_inner(CUBE[0])
    torch.testing.assert_close(torch.vmap(model.cached_inner)(CUBE), torch.vmap(model.inner)(CUBE))
    for function in (model.cached_inner, model.inner):
        torch.testing.assert_close(
            torch.func.grad(lambda x, f=function: f(x).sum())(ROWS),
            torch.func.grad(lambda x: model.inner(x).sum())(ROWS),
        )


def test_function_inside_other_traces_is_traced_through(tmp_path: Path) -> None:
    model = Nested(tmp_path)
    model.cached_inner(ROWS)
    graph = make_fx(model.cached_inner)(ROWS)
    torch.testing.assert_close(graph(-ROWS), model.inner(-ROWS))
    exported = torch.export.export(_Calling(model), (ROWS,)).module()
    torch.testing.assert_close(exported(-ROWS), model.inner(-ROWS))


class _Calling(nn.Module):
    def __init__(self, model: Nested) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> Any:
        return self.model.cached_inner(x)


def test_threads_and_hooks_call_one_function(tmp_path: Path) -> None:
    model = Nested(tmp_path)
    calling = _Calling(model)
    seen = []
    calling.register_forward_hook(lambda _module, args, _result: seen.append(model.cached_outer(*args)))
    with ThreadPoolExecutor(4) as pool:

        def call(scale: float) -> Any:
            with torch.no_grad():
                return calling(ROWS * scale).clone()

        results = list(pool.map(call, (1.0, 2.0, 3.0, 4.0)))
    for scale, result in zip((1.0, 2.0, 3.0, 4.0), results, strict=True):
        torch.testing.assert_close(result, model.inner(ROWS * scale))
    assert len(seen) == 4
