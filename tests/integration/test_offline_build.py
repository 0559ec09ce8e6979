"""An offline build in its own processes, and ranks that load what it made."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

from tests.support import launching
from tests.support.checkout import ROOT, python
from tests.support.launching import loaded_config
from tests.support.offline_ranks import rank_of, small
from tests.support.processes import marked, still_there
from tests.support.stored import open_store
from warmrank.cache_store.seed import Wanted, seed
from warmrank.orchestrator.build.driver import BuildOptions, build
from warmrank.orchestrator.build.plan import BuildReport, target_here
from warmrank.orchestrator.build.ranks import OfflineLauncher
from warmrank.orchestrator.config.models import launch_key
from warmrank.orchestrator.config.reading import Config, load
from warmrank.orchestrator.errors import CannotStart
from warmrank.orchestrator.launch.driver import launch
from warmrank.worker.keys.request import environment

NUM_RANKS = 1024
MAIN = "from warmrank.orchestrator.cli.main import main; main()"


SMALL = {
    "workload": {"entrypoint": "tests.support.offline_ranks:small"},
    "ranks": 4,
    "parallel": {"tp": 2, "pp": 2},
}


def write_config(root: Path, **changes: Any) -> Path:
    return launching.write_config(root, **{**SMALL, **changes})


def built(config: Config) -> BuildReport:
    return build(config, BuildOptions(target=target_here(), num_jobs=2))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("offline_build")


@pytest.fixture(scope="module")
def config(root: Path) -> Config:
    return load(write_config(root), world_size=NUM_RANKS)


@pytest.fixture(scope="module")
def report(config: Config) -> BuildReport:
    return built(config)


def test_all_ranks_are_built_with_one_compile_for_each_class(report):
    (only,) = report.classes
    assert (only.outcome, only.num_ranks) == ("compiled", NUM_RANKS)
    assert (report.totals.num_built_ranks, report.totals.num_partitions_new) == (5, NUM_RANKS)
    assert report.problems == ()


@pytest.mark.parametrize(("world_size", "ranks"), [(NUM_RANKS, (0, 3, 510, 1023)), (8, (0, 7))])
def test_eight_ranks_load_all_of_it_from_the_store(world_size, ranks, report, config, tmp_path):
    assert config.store is not None
    store = open_store(Path(config.store.tiers[0].path))
    wanted = Wanted(
        launch_key=launch_key(config), environment=environment(), world_size=world_size, ranks=ranks
    )
    assert seed(store, wanted, tmp_path).found
    for rank in ranks:
        with rank_of(rank, world_size, tmp_path) as context:
            workload = small(context)
            (call,) = workload.calls
            assert torch.equal(call.function(*call.args), workload.model(*call.args))
            found = call.function.last_result
            assert found is not None
            assert (found.outcome, found.digest) == (
                "loaded" if world_size == NUM_RANKS else "adopted",
                report.classes[0].digest,
            )


def test_process_that_does_not_come_up_is_an_error(tmp_path, monkeypatch, capfd):
    (tmp_path / "luckless.py").write_text("import sys\nsys.exit('no luck here')\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = loaded_config(tmp_path, workload={"entrypoint": "luckless:workload"})
    launcher = OfflineLauncher(config, (0, 1), num_jobs=2)
    with pytest.raises(CannotStart, match="status 1"):
        launcher.start(2, timeout_s=240)
    launcher.stop()
    assert "no luck here" in capfd.readouterr().err


def test_command_prints_the_environment_that_a_build_elsewhere_takes():
    assert json.loads(python("-c", MAIN, "doctor", "--environment")) == environment()


@pytest.mark.slow
def test_command_builds_and_a_second_one_compiles_nothing(tmp_path):
    config = write_config(tmp_path)
    script = tmp_path / "bin" / "warmrank"  # an installed script: the current directory is not on its path
    script.parent.mkdir()
    script.write_text(
        "from warmrank.orchestrator.cli.main import main\nif __name__ == '__main__':\n    main()\n"
    )
    command = (str(script), "build", str(config), "--world-size", "16", "--device", "cpu", "--json", "-")
    reports = []
    for _ in range(2):
        printed = python(*command, PYTHONPATH=str(ROOT / "src"))
        reports.append(TypeAdapter(BuildReport).validate_json(printed))
    assert [item.totals.num_compiled for item in reports] == [1, 0]
    assert reports[0].record == reports[1].record


STAGES = {
    "workload": {
        "entrypoint": "warmrank.examples.llama_stage:workload",
        "arguments": {"layers": 2, "dim": 32, "heads": 4, "kv_heads": 2, "hidden": 32},
    },
    "ray": {"num_cpus": 8},
}


@pytest.mark.slow
def test_launch_of_real_ranks_adopts_the_stages_of_a_larger_build(tmp_path):
    path = write_config(tmp_path, **STAGES)
    made = built(load(path, world_size=16))
    assert made.totals.num_compiled == 2
    elsewhere = load(path, (f"cache_dir={tmp_path / 'elsewhere'}",))
    launched = launch(elsewhere, no_compile=True)
    assert (launched.totals.num_compiled, launched.totals.num_adopted) == (0, 4)
    assert all(rank.verification is not None and rank.verification.ok for rank in launched.ranks)


FAKE_NPU = """
import sys
from pathlib import Path
from tests.unit.test_build import compiled, offline, spec_of
for rank in (1, 6):
    spec = spec_of(Path(sys.argv[1]), rank=rank, device_kind="npu", engine="graph")
    with offline(spec, accelerator="Ascend910B", cann="8.5") as built:
        outcome = compiled(built) if rank == 1 else (built.build(), built.probe())[1]
        print(outcome)
(path,) = Path(sys.argv[1]).rglob("compiled_module")
print("'npu'" in path.read_bytes().decode("latin-1"))
"""


@pytest.mark.slow
def test_device_npu_is_built_for_without_its_package(tmp_path):
    first, second, _ = python("-c", FAKE_NPU, str(tmp_path)).splitlines()
    assert "outcome='compiled'" in first
    assert "state='adoptable'" in second


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_build_that_is_stopped_leaves_no_process_and_the_store_as_it_was(number, status, tmp_path):
    mark = uuid.uuid4().hex
    path = write_config(tmp_path, workload={"entrypoint": "tests.support.offline_ranks:hangs"})
    command = [sys.executable, "-u", "-c", MAIN, "build", str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "MARK": mark}
    ) as driver:
        assert driver.stdout is not None
        assert any(line.startswith("build: on") for line in driver.stdout)
        driver.send_signal(number)
        driver.communicate(timeout=240)
    assert driver.returncode == status
    assert still_there(marked(mark)) == []
    assert [item.name for item in (tmp_path / "store").rglob("*") if item.is_file()] == ["FORMAT"]
