"""torch_npu's own switches, set by its public names, as conditions of an artifact."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from warmrank.worker.runtime.ambient import differences, encode, snapshot


@pytest.fixture
def npu() -> Any:
    return torch.npu  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def options_as_before(npu: Any) -> Iterator[None]:
    """An option that nobody set cannot be unset by torch_npu's public names."""
    options = importlib.import_module("torch_npu")._C._npu_setOption.__self__
    before = dict(options)
    yield
    options.clear()
    options.update(before)


CHANGES: list[tuple[str, Callable[[Any], None], Callable[[Any], None]]] = [
    (
        "npu hf32 matmul: False -> True",
        lambda npu: setattr(npu.matmul, "allow_hf32", True),
        lambda npu: setattr(npu.matmul, "allow_hf32", False),
    ),
    (
        "npu hf32 convolution: True -> False",
        lambda npu: setattr(npu.conv, "allow_hf32", False),
        lambda npu: setattr(npu.conv, "allow_hf32", True),
    ),
    (
        "npu internal format: False -> True",
        lambda npu: setattr(npu.config, "allow_internal_format", True),
        lambda npu: setattr(npu.config, "allow_internal_format", False),
    ),
    (
        "npu jit compile: disable -> enable",
        lambda npu: npu.set_compile_mode(jit_compile=True),
        lambda npu: npu.set_compile_mode(jit_compile=False),
    ),
    (
        "npu compatible implementation: False -> True",
        lambda npu: npu.use_compatible_impl(True),
        lambda npu: npu.use_compatible_impl(False),
    ),
]


@pytest.mark.parametrize(("expected", "change", "back"), CHANGES, ids=[name for name, *_ in CHANGES])
def test_public_switch_of_torch_npu_is_a_condition(npu, expected, change, back):
    back(npu)
    traced = encode(snapshot("npu"))
    change(npu)
    try:
        assert differences(traced, snapshot("npu")) == (expected,)
    finally:
        back(npu)


def test_deterministic_level_of_torch_npu_is_a_condition(npu: Any) -> None:
    traced = encode(snapshot("npu"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch_npu's advice on using one of the two switches
        npu.set_deterministic_level(2)
        try:
            found = differences(traced, snapshot("npu"))
            assert int(encode(snapshot("npu"))["npu deterministic level"]) == npu._get_deterministic_level()
        finally:
            npu.set_deterministic_level(0)
    assert "npu deterministic level: 0 -> 2" in found
    assert differences(traced, snapshot("npu")) == ()


def test_defaults_of_torch_npu_are_read_as_it_reads_them(npu: Any) -> None:
    state = encode(snapshot("npu"))
    assert state["npu hf32 matmul"] == str(npu.matmul.allow_hf32)
    assert state["npu hf32 convolution"] == str(npu.conv.allow_hf32)
