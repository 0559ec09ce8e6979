"""`warmrank doctor` where the real torch_npu is and CANN is not: the autoload trap."""

import json
import os
from typing import Any

import pytest

from tests.support.checkout import ended
from warmrank.worker.ascend import installation

pytestmark = pytest.mark.torchair

VARIABLES = ("TORCH_DEVICE_BACKEND_AUTOLOAD", "RAY_ADDRESS")


def findings(**variables: str) -> dict[str, dict[str, Any]]:
    environ = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    command = ("-m", "warmrank", "doctor", "--device", "npu", "--json")
    done = ended(*command, environ=environ, more=variables)
    assert done.returncode in {0, 1}, done.stderr[-4000:]
    (node,) = json.loads(done.stdout)["nodes"]
    return {finding["check"]: finding for finding in node["findings"]}


@pytest.mark.skipif(bool(installation().cann), reason="CANN is installed here, so there is no trap")
def test_plain_import_of_torch_fails_and_the_doctor_says_why() -> None:
    found = findings(TORCH_DEVICE_BACKEND_AUTOLOAD="1")  # which `make` switches off for this environment
    assert found["versions.torch_npu"]["level"] == "ok"
    assert found["ascend.cann"]["level"] == "error"
    assert found["versions.import"]["level"] == "error"
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in found["versions.import"]["remedy"]
