"""Metadata of tensors, compared in C++: what is seen, in which modes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from warmrank.worker.torch_private.unchanged import Metadata

MODES = (torch.enable_grad, torch.no_grad, torch.inference_mode)


def matrix() -> nn.Parameter:
    return nn.Parameter(torch.arange(12.0).reshape(3, 4))


CHANGES: dict[str, Callable[[nn.Parameter], Any]] = {
    "dtype": lambda p: setattr(p, "data", p.data.double()),
    "transposed data": lambda p: setattr(p, "data", p.data.reshape(4, 3).t()),
    "transposed in place": lambda p: p.t_(),
    "sizes": lambda p: setattr(p, "data", p.data[:2]),
    "resized": lambda p: p.requires_grad_(False).resize_(2, 2),
    "set": lambda p: p.set_(torch.ones(5).untyped_storage()),
    "requires_grad": lambda p: p.requires_grad_(False),
    "class": lambda p: setattr(p, "__class__", nn.Buffer),
}


def same(known: Metadata, tensors: Any) -> list[bool]:
    found = []
    for mode in (*MODES, *MODES):
        with mode():
            found.append(known.of(tensors))
    return found


@pytest.mark.parametrize("change", CHANGES)
def test_change_is_seen_in_every_mode(change: str) -> None:
    tensors = (matrix(), matrix())
    known = Metadata(tensors)
    assert same(known, tensors) == [True] * 6
    with torch.no_grad():
        CHANGES[change](tensors[1])
    assert same(known, tensors) == [False] * 6
    assert known.changed(tensors) == (1,)


@pytest.mark.parametrize("other", [None, torch.ones(3, 4), matrix().to_sparse(), matrix().to("meta")])
def test_other_value_in_its_place_is_seen(other: Any) -> None:
    tensors = (matrix(),)
    known = Metadata(tensors)
    assert same(known, tensors) == [True] * 6
    assert same(known, (other,)) == [False] * 6


def test_other_values_of_the_same_form_are_no_change() -> None:
    known = Metadata((matrix(), matrix()))
    assert same(known, (matrix(), matrix())) == [True] * 6


def test_tensors_without_strides_are_compared() -> None:
    known = Metadata((matrix().to_sparse(),))
    assert known.of((matrix().to_sparse(),))
    assert not known.of((matrix().to_sparse().double(),))


def test_gradients_are_recorded_or_not_as_before() -> None:
    known = Metadata(tensors := (matrix(),))
    for mode in MODES:
        with mode():
            before = torch.is_grad_enabled()
            known.of(tensors), known.of(tensors)
            assert torch.is_grad_enabled() == before


def test_nothing_of_dynamo_is_imported() -> None:
    script = (
        "import sys, torch; from warmrank.worker.torch_private.unchanged import Metadata\n"
        "t = (torch.ones(2),)\n"
        "known = Metadata(t); assert known.of(t) and known.of(t)\n"
        "assert not [name for name in sys.modules if name.startswith(('torch._dynamo.', 'sympy'))]"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
