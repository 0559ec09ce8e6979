"""The modes of torch that a graph runs in, whatever its caller has switched on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch


def autocast_kinds(device_kind: str) -> tuple[str, ...]:
    """The kinds of devices whose autocast may reach a graph's operators."""
    return tuple(dict.fromkeys(("cpu", device_kind)))


def is_plain(kinds: tuple[str, ...]) -> bool:
    """Whether neither autograd nor autocast is on: then `plain` changes nothing."""
    return not (torch.is_grad_enabled() or any(map(torch.is_autocast_enabled, kinds)))


@contextlib.contextmanager
def plain(kinds: Iterable[str]) -> Iterator[None]:
    """No autograd, and no autocast: the casts that autocast made are operators of the graph already."""
    with contextlib.ExitStack() as stack:
        if torch.is_grad_enabled():
            stack.enter_context(torch.no_grad())
        for kind in kinds:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextlib.contextmanager
def ordinary_tensors(mutated: Iterable[torch.Tensor]) -> Iterator[None]:
    """Out of inference mode, so that what is allocated here can be written to in and out of it.

    Unless a mutated input was made in that mode: then every call has to be in it.
    """
    if not torch.is_inference_mode_enabled() or any(tensor.is_inference() for tensor in mutated):
        yield
        return
    with torch.inference_mode(mode=False), torch.no_grad():
        yield
