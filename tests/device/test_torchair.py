"""What TorchAir's documents describe, on a real NPU: each case cold, then warm in a new process."""

import pytest

from tests.npu.test_torchair_engine import (  # noqa: F401 - the same, on the device
    test_case_equals_eager,
    test_warm_process_compiles_nothing,
)
from tests.support.devices import is_here
from tests.support.npu_cases import AllSeen, cold_and_warm

pytestmark = [
    pytest.mark.npu,
    pytest.mark.skipif(not is_here("npu"), reason="torch finds no npu device on this machine"),
]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> AllSeen:
    return cold_and_warm("npu", tmp_path_factory.mktemp("caches"))
