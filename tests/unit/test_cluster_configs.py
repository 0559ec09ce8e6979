"""The configs that come along: each loads, and the files that they name are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config import load
from orchestrator.config_models import EntrypointWorkload, ScriptWorkload
from orchestrator.demo import packaged_config

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
        source = (root / f"{module.replace('.', '/')}.py").read_text()
        assert f"def {function}(" in source


def test_default_is_two_cpu_ranks():
    config = load(packaged_config())
    assert (config.ranks, config.device) == (2, "cpu")
