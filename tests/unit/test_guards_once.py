"""What a cached function notices between calls, what it says of itself, odd inputs and constants."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.tracing import compiles_ahead
from warmrank.inference import cache_compile
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.errors import NotPortable

FACTOR = 3
OFFSET = torch.ones(3)
ROWS = torch.arange(6.0).reshape(2, 3)


class Inner(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x * 3 if self.training else x


class Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.act = torch.nn.ReLU()

    def flagged(self, x: torch.Tensor) -> Any:
        return self.inner(x) + 1

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * FACTOR + OFFSET

    def acted(self, x: torch.Tensor) -> Any:
        return self.act(x) * 2


def cached(method: Any, root: Path, **options: Any) -> Any:
    return cache_compile(method, cache_dir=root, **options)


@torch.no_grad()
def test_train_and_eval_are_noticed_and_each_has_its_variant(tmp_path: Path) -> None:
    model = Outer()
    function = cached(model.flagged, tmp_path)
    for training in (True, False, True, False):
        model.train(training)
        assert torch.equal(function(ROWS), model.flagged(ROWS))
    assert len(function.variants) == 2


@pytest.mark.parametrize(("name", "value"), [("FACTOR", 4), ("FACTOR", 2.5), ("OFFSET", torch.ones(2, 3))])
@torch.no_grad()
def test_a_rebound_global_is_noticed(tmp_path, monkeypatch, name, value):
    model = Outer()
    function = cached(model.scaled, tmp_path)
    function(ROWS)
    monkeypatch.setitem(globals(), name, value)
    assert torch.equal(function(ROWS), model.scaled(ROWS))


@pytest.mark.parametrize("guards", ["once", "always"])
@torch.no_grad()
def test_a_class_that_was_patched_and_put_back_is_itself_again(tmp_path: Path, guards: str) -> None:
    model = Outer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.ReLU, "forward", lambda self, x: x * 3)
        cached(model.acted, tmp_path / "patched", guards=guards)(ROWS)
    function = cached(model.acted, tmp_path / "plain", guards=guards)
    assert torch.equal(function(ROWS - 3), model.acted(ROWS - 3))
    again = cached(model.acted, tmp_path / "plain", guards="always")
    again(ROWS)
    assert again.last_result.outcome == "loaded"


class Lazy(torch.nn.Module):
    def shifted(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    def complex_constants(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x * 2 + 1j, x + complex(float("nan"), -0.0), x - complex(float("inf"), 2)])


@torch.no_grad()
def test_complex_constants_are_kept(tmp_path: Path) -> None:
    model = Lazy()
    function = cached(model.complex_constants, tmp_path)
    x = torch.tensor([1 + 2j, -3.5 + 0j])
    wanted, found = model.complex_constants(x), function(x)
    assert torch.equal(torch.view_as_real(found).isnan(), torch.view_as_real(wanted).isnan())
    torch.testing.assert_close(found, wanted, equal_nan=True)


@pytest.mark.slow
@compiles_ahead
@torch.no_grad()
def test_complex_constants_are_compiled_right_or_refused_by_name(tmp_path: Path) -> None:
    model, x = Lazy(), torch.tensor([1 + 2j])
    function = cached(model.complex_constants, tmp_path, config=_config("max-autotune"))
    with contextlib.suppress(NotPortable):  # Inductor takes them from torch 2.15 on
        torch.testing.assert_close(function(x), model.complex_constants(x), equal_nan=True)
        return
    with pytest.raises(NotPortable, match=r"complex.*\n.*reduce-overhead"):
        function(x)


LAZY = {
    "negative": torch.tensor([1 + 2j, -3.5 + 1j]).conj().imag,
    "conjugate": torch.tensor([1 + 2j, -3.5 + 1j]).conj(),
}


@pytest.mark.parametrize("bit", LAZY)
@torch.no_grad()
def test_inputs_with_lazy_bits_are_right_in_captured_graphs(tmp_path: Path, bit: str) -> None:
    model = Lazy()
    function = cached(model.shifted, tmp_path)
    assert torch.equal(function(LAZY[bit]), model.shifted(LAZY[bit]))


@pytest.mark.parametrize("bit", LAZY)
@torch.no_grad()
def test_inputs_with_lazy_bits_are_refused_by_compiled_kernels(tmp_path: Path, bit: str) -> None:
    function = cached(Lazy().shifted, tmp_path, config=_config("max-autotune"))
    with pytest.raises(NotPortable, match=rf"^x has its {bit} bit set.*x\.resolve_"):
        function(LAZY[bit])


def _config(mode: str) -> CompilerConfig:
    config = CompilerConfig()
    config.mode = mode
    return config
