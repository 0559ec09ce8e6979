"""Random graphs of some twenty operators: views, in-place writes, reductions, products, indices, copies.

A graph takes a user input ``x``, a weight that nobody writes to, and a cache that it may write to. It is
made by running it, so that each step fits the tensors that are there; the same seed gives the same graph.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

Step = tuple[Callable[..., Any], tuple[int, ...]]

SHAPES = ((4, 6), (6, 4), (3, 4, 2), (5,), ())
_STEPS = 20


class RandomGraph:
    """One graph; `inputs` gives fitting arguments."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._shape = self._random.choice(SHAPES[:3])
        self._steps: list[Step] = []
        self._outputs: tuple[int, ...] = ()
        self._make()

    def inputs(self, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """``x``, the weight and the cache."""
        generator = torch.Generator().manual_seed(seed)
        x, weight, cache = (torch.randn(self._shape, generator=generator) for _ in range(3))
        return x, weight, cache

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the graph."""
        values = list(inputs)
        for function, operands in self._steps:
            values.append(function(*(values[index] for index in operands)))
        return tuple(values[index] for index in self._outputs)

    def _make(self) -> None:
        values = list(self.inputs(0))
        constants = {value.untyped_storage().data_ptr() for value in values[:2]}
        while len(self._steps) < _STEPS:
            index, other = self._random.randrange(len(values)), self._random.randrange(len(values))
            a, b = values[index], values[other]
            writable = a.untyped_storage().data_ptr() not in constants and not _overlaps(a)
            choices = _of_one(a, writable=writable)
            choices += [(function, 2) for function in _of_two(a, b, writable=writable)]
            function, operands = self._random.choice(choices)
            step = (function, (index, other)[:operands])
            self._steps.append(step)
            values.append(function(*(values[position] for position in step[1])))
        count = self._random.randint(1, 4)
        self._outputs = tuple(self._random.randrange(len(values)) for _ in range(count))


def _of_one(a: torch.Tensor, *, writable: bool) -> list[tuple[Callable[..., Any], int]]:
    functions: list[Callable[..., Any]] = [
        torch.tanh,
        torch.relu,
        lambda a: a.mul(0.5).sub(1),
        lambda a: a.to(torch.float64).to(torch.float32),
        lambda a: a.unsqueeze(0),
        lambda a: a.clone(),
        lambda a: a.sum(),
        lambda a: torch.where(a > 0, a, a * 0.1),
        lambda a: torch.zeros_like(a) + 0.25,
        lambda a: a.reshape(-1),
    ]
    if a.dim():
        functions += [
            lambda a: a[..., 1:] if a.shape[-1] > 1 else a,
            lambda a: a.select(0, a.shape[0] - 1),
            lambda a: a.transpose(0, -1),
            lambda a: a.transpose(0, -1).contiguous(),
            lambda a: a.mean(dim=-1, keepdim=True).expand_as(a),
            lambda a: a.max(dim=0).values,
            lambda a: a.sort(dim=-1, stable=True)[0],
            lambda a: torch.cumsum(a, dim=0),
            lambda a: torch.softmax(a, dim=-1),
            lambda a: a.index_select(0, torch.arange(a.shape[0] - 1, -1, -1)),
            lambda a: a[torch.arange(a.shape[0]) // 2],
            lambda a: torch.cat([a, a * 2]),
            lambda a: a.split(1)[0],
            lambda a: torch.nn.functional.layer_norm(a, a.shape[-1:]),
        ]
    if a.dim() == 2:
        functions += [lambda a: a @ a.t(), lambda a: torch.einsum("ij,kj->ik", a, a).tanh()]
    if writable:
        functions += [lambda a: a.mul_(0.5), lambda a: a.add_(1.0), lambda a: a.clamp_(-2, 2)]
        if a.dim():
            functions += [_write_first_row, _fill_last]
    return [(function, 1) for function in functions]


def _of_two(a: torch.Tensor, b: torch.Tensor, *, writable: bool) -> list[Callable[..., Any]]:
    functions: list[Callable[..., Any]] = []
    if a.shape == b.shape:
        functions += [torch.add, torch.maximum, lambda a, b: torch.stack([a, b])] * 2
        if writable and not _share(a, b):
            functions += [lambda a, b: a.copy_(b), lambda a, b: a.add_(b, alpha=0.5)] * 3
    elif b.dim() == 0:
        functions += [torch.mul]
    if a.dim() == 2 and b.dim() == 2 and a.shape[1] == b.shape[0]:
        functions += [lambda a, b: torch.tanh(a @ b)] * 3
    return functions


def _write_first_row(a: torch.Tensor) -> torch.Tensor:
    a[0] = 0.125
    return a


def _fill_last(a: torch.Tensor) -> torch.Tensor:
    return a.index_fill_(0, torch.tensor([a.shape[0] - 1]), -0.5)


def _share(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _overlaps(a: torch.Tensor) -> bool:
    return any(stride == 0 and size > 1 for size, stride in zip(a.shape, a.stride(), strict=True))
