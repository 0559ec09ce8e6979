"""What TorchAir's documents describe, on a real NPU: each case cold, then warm in a new process."""

import pytest

from tests.support.devices import is_here
from tests.support.npu_cases import CASES
from tests.support.npu_runs import CAPTURES, MODES, Seen, cold_and_warm

pytestmark = [
    pytest.mark.npu,
    pytest.mark.skipif(not is_here("npu"), reason="torch finds no npu device on this machine"),
]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return cold_and_warm("npu", tmp_path_factory.mktemp("caches"))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("temperature", ["cold", "warm"])
@pytest.mark.parametrize("mode", MODES)
def test_case_equals_eager_on_the_device(seen: Seen, mode: str, temperature: str, case: str) -> None:
    found = seen[mode, temperature][case]
    assert not found["wrong"], "\n".join(found["wrong"])
    assert found["captures"] == CAPTURES.get(case, [1])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mode", MODES)
def test_warm_process_compiles_nothing_on_the_device(seen: Seen, mode: str, case: str) -> None:
    cold, warm = (seen[mode, temperature][case]["outcomes"] for temperature in ("cold", "warm"))
    assert "compiled" in cold
    assert warm == ["loaded"] * len(cold)
