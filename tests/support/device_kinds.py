"""Device backends as test parameters: those that this machine has, and a stand-in."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path

import pytest
import torch

from tests.support.fake_device import FakeDevice
from warmrank.worker.devices import DeviceBackend, backend_for
from warmrank.worker.devices.accelerator import AcceleratorBackend

STAND_IN = "stand-in"


def is_here(kind: str) -> bool:
    """Whether torch finds a device of this kind."""
    if kind == "npu" and any(Path("/dev").glob("davinci[0-9]*")):
        with contextlib.suppress(ImportError):  # not installed here, or without set_env.sh of CANN
            importlib.import_module("torch_npu")
    module = torch.cuda if kind == "cuda" else getattr(torch, kind, None)
    return module is not None and module.is_available()


BACKENDS = [
    "cpu",
    STAND_IN,
    *(
        pytest.param(kind, marks=mark)
        for kind, mark in (("cuda", pytest.mark.gpu), ("npu", pytest.mark.npu))
        if is_here(kind)
    ),
]
"""All that this machine has; ``tests/device`` says of the others that they were skipped."""


def make_backend(name: str) -> DeviceBackend:
    """The backend of a device kind; the stand-in is the accelerators' on memory of the CPU."""
    if name == STAND_IN:
        return AcceleratorBackend("cuda", FakeDevice(), memory="cpu")
    return backend_for(name)


def make_device(name: str, backend: DeviceBackend) -> torch.device:
    """Where the tensors of its graphs lie."""
    return torch.device("cpu") if name == STAND_IN else backend.device(0)
