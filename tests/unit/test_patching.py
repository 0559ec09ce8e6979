"""Stepping in between while torch works, and leaving it as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from warmrank.worker.torch_private.patching import Watch, wrapped


class Owner:
    def answer(self) -> int:
        return 41


class Names(Watch):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.seen.append(str(func))
        return func(*args, **kwargs)


def test_function_is_put_back_after_an_error() -> None:
    original = Owner.answer
    with pytest.raises(KeyError), wrapped(Owner, "answer", lambda _: lambda self: 0):
        raise KeyError
    assert Owner.answer is original


def test_every_operator_is_seen_within_the_context_only() -> None:
    with Names() as names:
        result = torch.ones(2).mul(2.0)
    torch.ones(2)
    assert names.seen == ["aten.ones.default", "aten.mul.Tensor"]
    assert result.tolist() == [2.0, 2.0]
