"""What a store holds, and what a launch would find there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launching import loaded_config, store_launch
from tests.support.processes import python
from warmrank.cache_store.errors import NoStoreYet
from warmrank.cache_store.keys import nearest
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.look.explain import Explanation, explain
from warmrank.orchestrator.look.store_contents import open_if_there, open_to_look, show_partition
from warmrank.worker.keys.environment import environment

OLDER = "2026-01-01T12:00:00+00:00"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    config = loaded_config(tmp_path)
    store_launch(config, tmp_path / "work")
    return config


def test_of_partitions_with_one_name_the_last_stored_is_shown_whatever_the_clock_of_its_maker(
    config, tmp_path
):
    other = config.model_copy(update={"device": "npu"})
    store_launch(other, tmp_path / "other", created=OLDER)
    view = show_partition(open_to_look(config, None), "world2global_rank0")
    assert view.created == OLDER
    assert len(view.others) == 1


OTHER_TORCH = {**environment(), "torch": "2.12.0"}


@pytest.fixture
def config_launch(tmp_path: Path) -> Config:
    return loaded_config(tmp_path)


def explained(config_launch: Config) -> Explanation:
    return explain(config_launch, open_if_there(config_launch))


@pytest.mark.parametrize("is_made", [False, True])
def test_before_the_first_launch_there_is_no_store_yet(config_launch: Config, tmp_path: Path, is_made: bool):
    if is_made:
        (tmp_path / "store").mkdir()
    found = explained(config_launch)
    assert found.outlook == "compile"
    assert found.store == str(tmp_path / "store")
    assert str(NoStoreYet(what="store", where=found.store)) in found.verdict
    assert f"relative paths are read from {Path.cwd()}" in found.verdict
    with pytest.raises(NoStoreYet) as caught:
        open_to_look(config_launch, None)
    assert str(caught.value) in found.verdict


def test_other_environment_compiles_and_names_what_differs(config_launch: Config, tmp_path: Path):
    store_launch(config_launch, tmp_path / "work", here=OTHER_TORCH)
    found = explained(config_launch)
    assert found.outlook == "compile"
    assert f"torch 2.12.0 -> {environment()['torch']}" in found.verdict


def test_explaining_imports_neither_torch_nor_ray(config_launch: Config, tmp_path: Path):
    store_launch(config_launch, tmp_path / "work")
    code = (
        "import sys\n"
        "from warmrank.orchestrator.cli.main import app\n"
        f"app(['explain', {str(tmp_path / 'tiny.yaml')!r}], standalone_mode=False)\n"
        "assert not {'torch', 'ray'} & set(sys.modules)\n"
    )
    python("-c", code)


ASKED = {"torch": "2.13.1", "cann": "9.0", "soc": "910B"}
FAR = ("world 4", {"torch": "2.12.0", "cann": "8.0", "soc": "910B"})
NEAR = ("world 2", {"torch": "2.13.0", "cann": "9.0", "soc": "910B"})


def test_nearest_has_the_fewest_changes():
    found = nearest(ASKED, [FAR, NEAR])
    assert found is not None
    assert (found.label, [str(change) for change in found.changes]) == ("world 2", ["torch 2.13.0 -> 2.13.1"])
