"""JSON Schemas: those that are kept are up to date, and accept what is shipped."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
import yaml

from warmrank.orchestrator.cli.config import SchemaOf, schema_of, schema_text

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "cluster_configs").glob("*.yaml"))
NAMES: tuple[SchemaOf, ...] = get_args(SchemaOf)
LEAST: dict[str, Any] = {"workload": {"entrypoint": "a:b"}, "ranks": 2, "parallel": {"dp": 2}}


def kept(name: str) -> Path:
    return ROOT / "docs" / "schemas" / f"{name}.schema.json"


def complaints(name: SchemaOf, data: object) -> list[str]:
    return [error.message for error in jsonschema.Draft202012Validator(schema_of(name)).iter_errors(data)]


@pytest.mark.parametrize("name", NAMES)
def test_schema_that_is_kept_is_up_to_date(name: SchemaOf):
    remedy = f"warmrank config schema --of {name} > docs/schemas/{name}.schema.json"
    assert kept(name).read_text() == schema_text(name), remedy


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_config_is_valid_and_names_its_schema(path: Path):
    assert complaints("config", yaml.safe_load(path.read_text())) == []
    assert named_schema(path) == kept("config")


def named_schema(path: Path) -> Path:
    found = re.match(r"# yaml-language-server: \$schema=(\S+)\n", path.read_text())
    assert found
    return (path.parent / found[1]).resolve()


@pytest.mark.parametrize(
    "store",
    [
        None,
        {"path": "/a"},
        {"path": "/a", "mode": "ro", "trust": {"policy": "off"}},
        {"tiers": [{"path": "/a"}, {"path": "s3://b/c", "options": {"region": "x"}}], "trust": {}},
    ],
)
def test_store_may_be_written_in_short_and_in_full(store: object):
    assert complaints("config", {**LEAST, "store": store}) == []


@pytest.mark.parametrize(
    "change",
    [
        {"ranks": "2"},
        {"rankz": 2},
        {"device": "tpu"},
        {"store": {"pth": "/a"}},
        {"store": {"path": "/a", "tiers": [{"path": "/a"}]}},
        {"store": {"path": "/a", "trust": {"policy": "maybe"}}},
        {"timeouts": {"compile_s": 0}},
        {"workload": {"entrypoint": "no colon"}},
        {"workload": {}},
    ],
)
def test_mistake_in_a_config_is_one_to_an_editor_too(change: dict[str, Any]):
    assert complaints("config", {**LEAST, **change})
