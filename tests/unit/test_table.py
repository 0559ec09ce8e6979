"""Tables for people: complete, within 100 columns, and safe with any text."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from tests.support.launching import loaded_config, store_launch
from tests.support.stored import open_store
from warmrank.orchestrator.config.reading import Config
from warmrank.orchestrator.look.store_contents import list_store, open_to_look
from warmrank.orchestrator.nodes import Node
from warmrank.orchestrator.seed.here import NodeSeed
from warmrank.orchestrator.seed.show import render_seeds
from warmrank.orchestrator.ui.table import render_listing
from warmrank.worker.keys.environment import environment


def text_of(renderable: RenderableType, width: int = 100) -> str:
    file = StringIO()
    Console(file=file, width=width).print(renderable)
    return file.getvalue()


def node(host: str, **changes: object) -> NodeSeed:
    values: dict[str, object] = {"found": True, "reason": "launch ab", "num_partitions": 2, **changes}
    return NodeSeed(node=Node(node_id="", address="10.0.0.1", host=host), **values)  # type: ignore[arg-type]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    config = loaded_config(tmp_path)
    store_launch(config, tmp_path / "work")
    return config


@pytest.mark.parametrize("entrypoint", ["models.tiny:workload", f"models.{'a_long_name.' * 8}m:workload"])
def test_heading_of_a_listing_fits_in_100_columns(tmp_path: Path, entrypoint: str):
    config = loaded_config(tmp_path, workload={"entrypoint": entrypoint})
    store_launch(config, tmp_path / "work", here={**environment(), "torch": "2.12.0", "cann": "8.3"})
    lines = text_of(render_listing(list_store(open_to_look(config, None), config))).splitlines()
    headings = [line.split() for line in lines if "launch  " in line]
    assert headings == [["launch", "made", "used", "what", "ranks", "files", "size", "environment"]]
    assert any("2026-01-31 12:00 UTC" in line for line in lines)


def test_listing_marks_pins_and_names_the_day_of_the_last_use(config: Config, tmp_path: Path):
    store = open_store(tmp_path / "store")
    (stored,) = store.stored_launches()
    assert "12:00 UTC  -  " in text_of(render_listing(list_store(store)))
    store.pin(stored.record.launch_key)
    store.mark_used(stored.name)
    text = text_of(render_listing(list_store(store, config)))
    (used,) = store.last_uses().values()
    assert f"12:00 UTC  {used.date().isoformat()}  " in text
    assert text.splitlines()[3].startswith("*P ")
    assert "P pinned: no evict takes it" in text


def test_nodes_with_one_reason_share_its_line():
    text = text_of(render_seeds((node("one"), node("two"), node("three", found=False, reason="no launch"))))
    assert "one, two: launch ab" in text
    assert "three: no launch" in text
