"""Getters of torch's switches read what the public properties say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from warmrank.worker.torch_private import switches

PROPERTIES: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "mkldnn_enabled": (switches.mkldnn_enabled, torch.backends.mkldnn, "enabled"),
    "mkldnn_deterministic": (switches.mkldnn_deterministic, torch.backends.mkldnn, "deterministic"),
}
CALLS: dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[bool], Any]]] = {
    "flash_attention": (
        switches.flash_attention, torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp,
    ),
    "memory_efficient_attention": (
        switches.memory_efficient_attention,
        torch.backends.cuda.mem_efficient_sdp_enabled,
        torch.backends.cuda.enable_mem_efficient_sdp,
    ),
    "math_attention": (
        switches.math_attention, torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp,
    ),
}  # fmt: skip


@pytest.fixture(params=PROPERTIES)
def switched(request: pytest.FixtureRequest) -> Iterator[tuple[Callable[[], Any], Any, str]]:
    getter, section, name = PROPERTIES[request.param]
    before = getattr(section, name)
    setattr(section, name, not before)
    yield getter, section, name
    setattr(section, name, before)


def test_getter_reads_what_the_property_says(switched: tuple[Callable[[], Any], Any, str]) -> None:
    getter, section, name = switched
    for value in (True, False):
        setattr(section, name, value)
        assert getter() is getattr(section, name) is value


@pytest.mark.parametrize("name", CALLS)
def test_getter_reads_what_the_function_says(name: str) -> None:
    getter, public, enable = CALLS[name]
    before = public()
    try:
        for value in (True, False):
            enable(value)
            assert getter() is public() is value
    finally:
        enable(before)


def test_default_device_that_was_set_is_seen() -> None:
    torch.set_default_device("meta")
    try:
        assert switches.default_device_type() == "meta"
    finally:
        torch.set_default_device(None)
    assert switches.default_device_type() == "cpu"
