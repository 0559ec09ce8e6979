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


def test_what_a_patch_reads_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "abs", other)
    module = Uses(lambda x: x.abs())
    artifact = compiled(module.forward, X)
    assert misfits(artifact, module.forward, X) == ()
    monkeypatch.setattr(f"{__name__}.FACTOR", 8)
    assert misfits(artifact, module.forward, X)
