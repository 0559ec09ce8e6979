"""What engine torchair does with calls, on a real NPU: each program cold, then warm in a new process."""

from collections.abc import Iterator

import pytest

from tests.fuzz.run import Servers
from tests.npu.test_torchair_engine import (  # noqa: F401 - the same, on the device
    test_calls_compile_or_run_what_fits_and_a_later_process_loads,
)
from tests.support.devices import is_here

pytestmark = [
    pytest.mark.npu,
    pytest.mark.skipif(not is_here("npu"), reason="torch finds no npu device on this machine"),
]


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with Servers("device") as made:
        yield made
