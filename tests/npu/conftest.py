"""The suite of the real torch_npu package on an emulated NPU: ``make test-npu`` has an environment for it.

Every test here has the marker ``torchair``; where the package is not, each is skipped with that reason.
"""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# What torchair and npugraph_ex say of themselves, and of graphs that do what graphs do.
_SAYINGS = (
    "ignore:The following torchair config or properties may not take effect:UserWarning",
    "ignore:The .reduce-overhead. mode configuration will be deprecated:DeprecationWarning",
    "ignore:Because acl graph fixes memory addresses:UserWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks this folder's tests, and skips them where the package is not."""
    missing = importlib.util.find_spec("torch_npu") is None
    for item in items:
        if not item.path.is_relative_to(HERE):
            continue
        item.add_marker(pytest.mark.torchair)
        for saying in _SAYINGS:
            item.add_marker(pytest.mark.filterwarnings(saying))
        if missing:
            item.add_marker(pytest.mark.skip("the real torch_npu package is not installed: make test-npu"))


@pytest.fixture(scope="session", autouse=True)
def emulated_npu() -> None:
    """An emulated NPU in this process."""
    if importlib.util.find_spec("torch_npu") is None:
        return
    from tests import npu_emulator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        npu_emulator.install()
        _compile_with_torchair_first()


def _compile_with_torchair_first() -> None:
    """Tests of both packages may share a process, which works in this order only: their operators clash."""
    import torch

    torchair = importlib.import_module("torchair")
    config = torchair.CompilerConfig()
    config.mode = "reduce-overhead"
    torch.compile(torch.neg, backend=torchair.get_npu_backend(compiler_config=config))(torch.ones(2))
