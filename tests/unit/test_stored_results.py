"""Results that a function keeps in objects: later replays leave them, and no state is captured again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.tracing import cached
from warmrank import CompilerConfig

pytestmark = pytest.mark.usefixtures("no_grad")


class Keeping(nn.Module):
    """Keeps what it computes as its ``keep`` says, which takes the module, the result and a state."""

    def __init__(self, keep: Callable[[Any, torch.Tensor, Any], Any]) -> None:
        super().__init__()
        self.keep = keep
        self.linear = nn.Linear(4, 4)
        self.last, self.before = torch.zeros(2, 4), torch.zeros(2, 4)
        self.recent = [torch.zeros(2, 4), torch.zeros(2, 4)]

    def forward(self, x: torch.Tensor, state: Any) -> Any:
        return self.keep(self, self.linear(x), state)


def grown(_: Any, h: torch.Tensor, state: Any) -> Any:
    state["k"] = torch.cat([state["k"][:, 1:], h[:, :1]], 1)
    return h @ state["k"].T


def pushed(_: Any, h: torch.Tensor, state: Any) -> None:
    state["all"].pop(0)
    state["all"].append({"h": [h, h[:, 1:]]})


def handed_on(module: Any, h: torch.Tensor, _: Any) -> Any:
    module.before = module.last
    module.last = h
    return h.relu()


def read_again(module: Any, h: torch.Tensor, state: Any) -> Any:
    made = h - module.before + module.recent[0]
    module.before, module.last = module.last, h
    module.recent = [*module.recent[1:], h * 2]
    state["sum"] = state["sum"] + made
    return made


def contents(value: Any) -> Any:
    """Tensors as values and strides."""
    if isinstance(value, torch.Tensor):
        return value.tolist(), value.stride()
    if isinstance(value, dict):
        return {name: contents(item) for name, item in value.items()}
    return [contents(item) for item in value] if isinstance(value, list | tuple) else value


def new_state() -> dict[str, Any]:
    held = torch.zeros(2, 4)
    return {"k": torch.zeros(2, 4), "sum": torch.zeros(2, 4), "all": [{"h": [held, held[:, 1:]]}]}


@pytest.mark.parametrize("keep", [grown, pushed, handed_on, read_again])
def test_requests_in_turns_keep_their_states(keep: Any, cache: Path) -> None:
    model = Keeping(keep)
    eager = copy.deepcopy(model)
    function = cached(model.forward, cache)
    ours, eagers = ([new_state() for _ in range(2)] for _ in range(2))
    for call in range(10):
        x = torch.randn(2, 4)
        found = contents(function(x, ours[call % 2]))
        assert found == contents(eager(x, eagers[call % 2]))
        assert contents(ours) == contents(eagers)
        for name in ("last", "before", "recent"):
            assert contents(vars(model)[name]) == contents(vars(eager)[name])
    assert function.statistics.captures == 1


@pytest.mark.parametrize("clone", [False, True])
def test_what_shares_memory_in_eager_shares_it(cache: Path, clone: bool) -> None:
    state = new_state()
    config = CompilerConfig()
    config.debug.aclgraph.enable_output_clone = clone
    function = cached(Keeping(pushed).forward, cache, config=config)
    for _ in range(4):
        function(torch.randn(2, 4), state)
        whole, part = state["all"][-1]["h"]
        whole.fill_(7)
        assert (part == 7).all()


def test_what_is_only_returned_lies_in_the_pool(cache: Path) -> None:
    function = cached(Keeping(lambda _module, h, _state: h.relu()).forward, cache)
    second, third = [function(torch.randn(2, 4), None) for _ in range(3)][1:]
    assert second.data_ptr() == third.data_ptr()
