"""Functions of torch that somebody replaced: what was compiled with others is not loaded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.tracing import compiled, misfits

X = torch.tensor([-1.0, 2.0, 3.0])
FACTOR = 7


def other(x: Any, *_: Any) -> Any:
    return x * FACTOR


class Uses(nn.Module):
    """Calls one function of torch."""

    def __init__(self, use: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.use = use

    def forward(self, x: torch.Tensor) -> Any:
        return self.use(x)


USES: dict[str, tuple[Callable[[torch.Tensor], Any], Any, str]] = {
    "method": (lambda x: x.abs(), torch.Tensor, "abs"),
    "operator": (lambda x: x + 1, torch.Tensor, "__add__"),
    "function": (lambda x: torch.abs(x), torch, "abs"),  # noqa: PLW0108 - traced
    "function that another one calls": (lambda x: nn.functional.relu(x), torch, "relu"),  # noqa: PLW0108
    "method that a function calls": (lambda x: nn.functional.softmax(x, 0), torch.Tensor, "softmax"),
}
PATCHES: dict[str, Any] = {
    "function": other,
    "another of torch's": torch.Tensor.neg,
    "partial": functools.partial(torch.mul, other=3),
}


@pytest.mark.parametrize("patch", PATCHES)
@pytest.mark.parametrize("use", USES)
def test_patch_is_noticed(use: str, patch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, owner, name = USES[use]
    module = Uses(call)
    artifact = compiled(module.forward, X)
    assert misfits(artifact, module.forward, X) == ()
    monkeypatch.setattr(owner, name, PATCHES[patch])
    assert any("was patched" in reason for reason in misfits(artifact, module.forward, X))


class Layered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> Any:
        return nn.functional.normalize(self.act(x), dim=0)


CHANGES: dict[str, tuple[Any, str, Any]] = {
    "method of another layer": (nn.ReLU, "forward", nn.Sigmoid.forward),
    "code of a method": (nn.ReLU.forward, "__code__", nn.Sigmoid.forward.__code__),
    "function in C": (nn.ReLU, "forward", torch.sigmoid),
    "code of a function": (nn.functional.normalize, "__code__", nn.functional.softmax.__code__),
}


@pytest.mark.parametrize("change", CHANGES)
def test_functions_of_torch_in_other_places_are_noticed(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Layered()
    artifact = compiled(module.forward, X)
    assert misfits(artifact, module.forward, X) == ()
    monkeypatch.setattr(*CHANGES[change])
    assert misfits(artifact, module.forward, X)


@pytest.mark.parametrize("change", CHANGES)
def test_artifact_of_functions_in_other_places_fits_no_process_without(change, monkeypatch):
    module = Layered()
    with monkeypatch.context() as patch:
        patch.setattr(*CHANGES[change])
        artifact = compiled(module.forward, X)
    assert misfits(artifact, module.forward, X)


class Measures(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * len([1, 2])


def test_global_that_hides_a_builtin_is_noticed_and_so_is_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = compiled(Measures().forward, X)
    assert misfits(artifact, Measures().forward, X) == ()
    monkeypatch.setitem(globals(), "len", lambda _: 9)
    assert misfits(artifact, Measures().forward, X) != ()
    hidden = compiled(Measures().forward, X)
    assert misfits(hidden, Measures().forward, X) == ()
    monkeypatch.undo()
    assert misfits(hidden, Measures().forward, X) != ()
