"""What a launch would find, said without one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launching import loaded_config, store_launch
from tests.support.stored import overwrite, stored
from warmrank.cache_store.errors import NoStoreYet
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.look.explain import Explanation, explain
from warmrank.orchestrator.look.store_contents import open_if_there, open_to_look
from warmrank.worker.keys.environment import environment

OTHER_TORCH = {**environment(), "torch": "2.12.0"}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return loaded_config(tmp_path)


def explained(config: Config) -> Explanation:
    return explain(config, open_if_there(config))


def test_without_a_store_ranks_may_compile(tmp_path: Path):
    found = explained(loaded_config(tmp_path, store=None))
    assert (found.outlook, found.store) == ("compile", "")
    assert "no store is configured" in found.verdict


@pytest.mark.parametrize("is_made", [False, True])
def test_before_the_first_launch_there_is_no_store_yet(config: Config, tmp_path: Path, is_made: bool):
    if is_made:
        (tmp_path / "store").mkdir()
    found = explained(config)
    assert found.outlook == "compile"
    assert found.store == str(tmp_path / "store")
    assert str(NoStoreYet(what="store", where=found.store)) in found.verdict
    assert f"relative paths are read from {Path.cwd()}" in found.verdict
    with pytest.raises(NoStoreYet) as caught:
        open_to_look(config, None)
    assert str(caught.value) in found.verdict


def test_same_world_and_environment_loads(config: Config, tmp_path: Path):
    store_launch(config, tmp_path / "work")
    found = explained(config)
    assert found.outlook == "load"
    assert found.verdict.startswith("load, if the model's code is unchanged: a launch here loads")
    assert found.verdict.endswith("2026-01-31 12:00 UTC")
    assert [record.chosen for record in found.records] == [True]


def test_other_world_size_adopts(config: Config, tmp_path: Path):
    store_launch(config, tmp_path / "work", world_size=4)
    found = explained(config)
    assert found.outlook == "adopt"
    assert "stored by 4 ranks, launched with 2" in found.verdict


def test_other_environment_compiles_and_names_what_differs(config: Config, tmp_path: Path):
    store_launch(config, tmp_path / "work", here=OTHER_TORCH)
    found = explained(config)
    assert found.outlook == "compile"
    assert f"torch 2.12.0 -> {environment()['torch']}" in found.verdict


def test_other_arguments_name_the_nearest_launch(config: Config, tmp_path: Path):
    store_launch(config, tmp_path / "work")
    found = explained(
        loaded_config(tmp_path, workload={"entrypoint": "models.tiny:workload", "arguments": {"layers": 4}})
    )
    assert found.nearest_launch == ("argument layers 8 -> 4",)


def test_functions_hold_the_stored_request_components(config: Config, tmp_path: Path):
    store_launch(config, tmp_path / "work")
    prefill, decode = explained(config).functions
    assert (prefill.function, decode.function) == ("Llama.prefill", "Llama.decode")
    assert prefill.requests[0].components["function"] == "Llama.prefill"
    assert prefill.requests[0].ranks == (0, 1)


def test_record_that_cannot_be_read_is_a_problem(config: Config, tmp_path: Path):
    store_launch(config, tmp_path / "work")
    overwrite(stored(tmp_path / "store", "launch")[0], b"{}")
    assert len(explained(config).problems) == 1


def test_explaining_imports_neither_torch_nor_ray(config: Config, tmp_path: Path):
    store_launch(config, tmp_path / "work")
    code = (
        "import sys\n"
        "from warmrank.orchestrator.cli.main import app\n"
        f"app(['explain', {str(tmp_path / 'tiny.yaml')!r}], standalone_mode=False)\n"
        "assert not {'torch', 'ray'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
