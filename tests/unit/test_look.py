"""What a store holds, as plain values."""

from __future__ import annotations

import io
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.launching import loaded_config, store_launch
from tests.support.stored import stored
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.errors import NothingThere
from warmrank.orchestrator.look.explain import explain_if_away
from warmrank.orchestrator.look.store_contents import list_store, open_to_look, show_partition
from warmrank.orchestrator.ui.table import render_explanation, render_listing
from warmrank.worker.keys.environment import environment

OLDER = "2026-01-01T12:00:00+00:00"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    config = loaded_config(tmp_path)
    store_launch(config, tmp_path / "work")
    return config


def test_listing_counts_equal_artifacts_of_all_ranks_once(config: Config):
    (line,) = list_store(open_to_look(config, None)).launches
    assert (line.world_size, line.num_artifacts) == (2, 2)
    assert [part.num_artifacts for part in line.partitions] == [2, 2]
    assert (line.num_files, [part.num_files for part in line.partitions]) == (2, [2, 2])


def test_listing_says_which_record_is_pinned_and_when_each_was_used(config: Config, tmp_path: Path):
    newer = "2026-02-28T12:00:00+00:00"
    store_launch(config, tmp_path / "newer", functions={"Llama.decode": b"other"}, created=newer)
    store = open_to_look(config, None)
    newest, oldest = store.stored_launches()
    store.pin(oldest.name.rpartition("/")[2])
    store.mark_used(newest.name)
    lines = {line.created: line for line in list_store(store).launches}
    assert [lines[created].pinned for created in (newer, oldest.record.created)] == [False, True]
    assert lines[oldest.record.created].record == oldest.name.rpartition("/")[2]
    assert lines[oldest.record.created].last_used == ""
    used = datetime.fromisoformat(lines[newer].last_used)
    assert (used.utcoffset(), used.microsecond) == (timedelta(0), 0)


def test_listing_names_what_differs_in_the_environment(tmp_path: Path):
    config = loaded_config(tmp_path)
    store_launch(config, tmp_path / "work", here={**environment(), "torch": "2.12.0"})
    (line,) = list_store(open_to_look(config, None)).launches
    assert line.changes == (f"torch 2.12.0 -> {environment()['torch']}",)


def test_ranks_of_other_environments_are_named(tmp_path: Path):
    config, old = loaded_config(tmp_path), {**environment(), "torch": "2.12.0"}
    store_launch(config, tmp_path / "work", elsewhere={1: old})
    listing = list_store(open_to_look(config, None))
    (other,) = listing.launches[0].others
    assert (listing.launches[0].changes, other.ranks) == ((), (1,))
    assert other.changes == (f"torch 2.12.0 -> {environment()['torch']}",)
    found = explain_if_away(config)
    assert (found.outlook, found.records[0].others) == ("load", (other,))
    assert "the 1 in this environment of 2 ranks" in found.verdict
    for shown in (render_listing(listing), render_explanation(found)):
        console = Console(width=200, file=io.StringIO())
        console.print(shown)
        assert "as here, but rank 1" in console.file.getvalue()  # type: ignore[attr-defined]


def test_listing_tells_of_a_manifest_that_is_gone(config: Config, tmp_path: Path):
    stored(tmp_path / "store", "ac")[0].unlink()
    listing = list_store(open_to_look(config, None))
    assert len(listing.problems) == 1
    assert len(listing.launches[0].partitions) == 1


def test_partition_is_found_by_name(config: Config):
    view = show_partition(open_to_look(config, None), "world2global_rank1")
    assert (view.rank, view.changes) == (1, ())
    assert [entry.function for entry in view.artifacts] == ["Llama.prefill", "Llama.decode"]


def test_of_partitions_with_one_name_the_last_stored_is_shown_whatever_the_clock_of_its_maker(
    config, tmp_path
):
    other = config.model_copy(update={"device": "npu"})
    store_launch(other, tmp_path / "other", created=OLDER)
    view = show_partition(open_to_look(config, None), "world2global_rank0")
    assert view.created == OLDER
    assert len(view.others) == 1


def test_key_of_a_launch_names_its_partitions(config: Config):
    store = open_to_look(config, None)
    key = list_store(store).launches[0].launch_key
    with pytest.raises(
        NothingThere, match="is a launch; its partitions: world2global_rank0, world2global_rank1"
    ):
        show_partition(store, key[:12])


def test_unknown_partition_names_those_that_are_there(config: Config):
    with pytest.raises(NothingThere, match="world2global_rank0, world2global_rank1"):
        show_partition(open_to_look(config, None), "world3global_rank0")
