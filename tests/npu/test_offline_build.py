"""An offline build with the vendor's compiler: the real TorchAir, on fake tensors of an emulated NPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests import npu_emulator
from tests.support.offline_ranks import rank_of, small
from warmrank.orchestrator.build.driver import BuildOptions, build
from warmrank.orchestrator.build.plan import BuildReport, target_here
from warmrank.orchestrator.config.reading import Config, parse
from warmrank.worker.keys import request as fingerprint

NUM_RANKS = 8


@pytest.fixture(scope="module", autouse=True)
def _machine_with_npus() -> Iterator[None]:
    """An offline build is for machines with an accelerator; the emulated one has none in its fingerprint."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warmrank.worker.ascend.soc_of", lambda _: "Ascend910B2")
        patch.setattr("warmrank.worker.settings.AscendPlaces.hold_nothing", lambda _: False)
        fingerprint._components.cache_clear()
        yield
    fingerprint._components.cache_clear()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    root = tmp_path_factory.mktemp("offline_npu")
    return parse(
        {
            "workload": {
                "entrypoint": "tests.support.offline_ranks:small",
                "arguments": {"method": "summed"},
            },
            "ranks": NUM_RANKS,
            "parallel": {"tp": 2, "dp": NUM_RANKS // 2},
            "device": "npu",
            "cache_dir": str(root / "cache"),
        }
    )


@pytest.fixture(scope="module")
def report(config: Config) -> BuildReport:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in npu_emulator.environ().items():
            patch.setenv(name, value)
        for place in npu_emulator.environ({})["PYTHONPATH"].split(":"):
            patch.syspath_prepend(place)
        patch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "1")  # as where CANN is
        return build(config, BuildOptions(target=target_here(), num_jobs=2))


def test_one_compile_makes_the_partitions_of_all_ranks(report, config):
    assert [(item.outcome, item.num_ranks) for item in report.classes] == [("compiled", NUM_RANKS)]
    assert len(list(config.cache_dir.rglob("compiled_module"))) == NUM_RANKS


@pytest.mark.parametrize("rank", [1, 6])
def test_rank_of_a_launch_loads_it_and_computes_what_eager_does(rank, report, config):
    with rank_of(rank, NUM_RANKS, config.cache_dir, device_kind="npu", no_compile=False) as context:
        (call,) = small(context, method="summed").calls
        assert call.function.engine().name == "torchair"
        expected = call.function.module.summed(*call.args)  # type: ignore[operator] # a method of `Small`
        assert torch.equal(call.function(*call.args), expected)
        found = call.function.last_result
        assert found is not None
        assert (found.outcome, found.digest) == ("loaded", report.classes[0].digest)


def test_artifact_has_the_bytes_that_a_rank_of_a_launch_compiles(report, tmp_path):
    with rank_of(3, NUM_RANKS, tmp_path, device_kind="npu", no_compile=False) as context:
        (call,) = small(context, method="summed").calls
        compiled = call.function.compile(call.args, call.kwargs, reason="")
        assert compiled.stored.sha256 == report.classes[0].digest
