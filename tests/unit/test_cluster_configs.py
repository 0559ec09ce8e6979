"""The configs that come along: each loads, and the files that they name are there."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from warmrank.orchestrator.cli.demo import packaged_config
from warmrank.orchestrator.config.models import EntrypointWorkload, ScriptWorkload
from warmrank.orchestrator.config.reading import load, parse

CONFIGS = sorted((Path(__file__).parents[2] / "cluster_configs").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_config_loads_and_says_what_it_is(path: Path):
    load(path)
    assert path.read_text().startswith("# ")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_what_a_config_launches_is_there(path: Path):
    root = path.parents[1]
    workload = load(path).workload
    if isinstance(workload, ScriptWorkload):
        assert (root / workload.script).is_file()
    else:
        assert isinstance(workload, EntrypointWorkload)
        module, _, function = workload.entrypoint.partition(":")
        source = (root / "src" / f"{module.replace('.', '/')}.py").read_text()
        assert f"def {function}(" in source


def test_default_is_two_cpu_ranks():
    config = load(packaged_config())
    assert (config.ranks, config.device) == (2, "cpu")


def commented_stores(path: Path) -> list[object]:
    """The stores that a config shows in comments."""
    blocks = "".join(
        line.removeprefix("#").removeprefix(" ")
        for line in path.read_text().splitlines(keepends=True)
        if line[:1] == "#"
    ).split("\n\n")
    found = [block[block.index("store:\n") :] for block in blocks if "store:\n" in block]
    return [yaml.safe_load(block)["store"] for block in found]


def test_stores_in_comments_can_be_used():
    stores = commented_stores(CONFIGS[0].parent / "atlas-a2-2-nodes.yaml")
    configs = [
        parse({"workload": {"entrypoint": "a:b"}, "ranks": 1, "store": store}).store for store in stores
    ]
    assert [[tier.path for tier in config.tiers] for config in configs if config] == [
        ["s3://my-bucket/warmrank"],
        ["/var/lib/warmrank", "s3://my-bucket/warmrank"],
    ]
