"""The emulated NPU keeps the contract of device backends: its suite, on the real ``torch_npu.npu``."""

from __future__ import annotations

import pytest

from tests.contract import test_device_backend as contract
from tests.contract.test_device_backend import backend, device, no_grad  # noqa: F401 - the suite's fixtures

# The suite's tests; its parameters are replaced below.
globals().update({name: test for name, test in vars(contract).items() if name.startswith("test_")})


@pytest.fixture
def kind() -> str:
    """Instead of the suite's parameters."""
    return "npu"
