"""What TorchAir's documents describe, through engine torchair: each case cold, then warm in a new process."""

from pathlib import Path

import pytest

from tests.support.npu_cases import CASES
from tests.support.npu_runs import CAPTURES, MODES, Seen, cold_and_warm, run


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return cold_and_warm("emulated", tmp_path_factory.mktemp("caches"))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("temperature", ["cold", "warm"])
@pytest.mark.parametrize("mode", MODES)
def test_case_equals_eager(seen: Seen, mode: str, temperature: str, case: str) -> None:
    found = seen[mode, temperature][case]
    assert not found["wrong"], "\n".join(found["wrong"])
    assert found["captures"] == CAPTURES.get(case, [1])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mode", MODES)
def test_warm_process_compiles_nothing(seen: Seen, mode: str, case: str) -> None:
    cold, warm = (seen[mode, temperature][case]["outcomes"] for temperature in ("cold", "warm"))
    assert cold
    assert "compiled" in cold
    assert warm == ["loaded"] * len(cold)


def test_function_over_the_limit_of_captures_runs_eagerly(seen: Seen) -> None:
    for found in seen.values():
        assert found["capture_limit"]["notes"] == {"eager": 3}


def test_equal_compiles_write_equal_bytes(tmp_path: Path) -> None:
    """However many graphs each process compiled before."""
    cases = ("parameters", "mutated_inputs", "two_models", "constants", "returned_types")
    run("emulated", "npugraph_ex", tmp_path / "one", *cases)
    run("emulated", "npugraph_ex", tmp_path / "two", "dynamic_shapes", *reversed(cases))
    for case in cases:
        one, two = (
            [path.read_bytes() for path in sorted((tmp_path / name / case).rglob("compiled_module"))]
            for name in ("one", "two")
        )
        assert one
        assert one == two
