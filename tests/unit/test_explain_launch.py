"""What a launch would find, said without one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launching import loaded_config, store_launch
from tests.support.stored import overwrite, stored
from warmrank.cache_store.errors import NoStoreYet, StoreUnavailable
from warmrank.cache_store.seed import Wanted, seed
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.launch.identity import launch_key
from warmrank.orchestrator.look.explain import GUARDS_NOTE, Explanation, explain, explain_if_away
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


def test_store_that_is_away_is_said_and_no_error(tmp_path: Path):
    (tmp_path / "file").touch()
    config = loaded_config(tmp_path, store={"path": str(tmp_path / "file")})
    found = explain_if_away(config)
    assert found.outlook == "compile"
    assert found.verdict.startswith(
        "compile, unless the cache holds it: a launch goes on without the store: "
    )
    assert found.store == str(tmp_path / "file")


def test_required_store_that_is_away_would_stop_a_launch(tmp_path: Path):
    (tmp_path / "file").touch()
    config = loaded_config(tmp_path, store={"path": str(tmp_path / "file"), "mode": "required"})
    with pytest.raises(StoreUnavailable):
        explain_if_away(config)


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


def test_other_environment_still_shows_functions_with_what_differs(config: Config, tmp_path: Path):
    store_launch(config, tmp_path / "work", here=OTHER_TORCH)
    prefill, _ = explained(config).functions
    assert prefill.requests[0].changes == (f"torch 2.12.0 -> {environment()['torch']}",)


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


def test_functions_count_what_lies_on_this_node(config: Config, tmp_path: Path):
    store_launch(config, tmp_path / "work")
    before = [item.num_on_this_node for item in explained(config).functions]
    store = open_if_there(config)
    assert store is not None
    wanted = Wanted(launch_key=launch_key(config), environment=environment(), world_size=2)
    seed(store, wanted, config.cache_dir)
    after = [item.num_on_this_node for item in explained(config).functions]
    assert (before, after) == ([0, 0], [1, 1])


def test_cached_artifacts_are_listed_by_directory(config: Config, tmp_path: Path):
    store_launch(config, config.cache_dir, world_size=1)
    assert [(item.directory.split("/")[1:], item.num_artifacts) for item in explained(config).cached] == [
        (["world1global_rank0", "decode"], 1),
        (["world1global_rank0", "prefill"], 1),
    ]


def test_record_that_cannot_be_read_is_a_problem(config: Config, tmp_path: Path):
    store_launch(config, tmp_path / "work")
    overwrite(stored(tmp_path / "store", "launch")[0], b"{}")
    assert len(explained(config).problems) == 1


def test_place_with_anything_but_a_store_is_an_error(config: Config, tmp_path: Path):
    (tmp_path / "store" / "of somebody else").mkdir(parents=True)
    with pytest.raises(StoreUnavailable):
        explained(config)


def test_what_only_a_launch_can_check_is_said(config: Config):
    assert explained(config).note == GUARDS_NOTE


def test_explaining_imports_neither_torch_nor_ray(config: Config, tmp_path: Path):
    store_launch(config, tmp_path / "work")
    code = (
        "import sys\n"
        "from warmrank.orchestrator.cli.main import app\n"
        f"app(['explain', {str(tmp_path / 'tiny.yaml')!r}], standalone_mode=False)\n"
        "assert not {'torch', 'ray'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
