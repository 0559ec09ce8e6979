"""What a config's keys say together, and where its values are from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from warmrank.orchestrator.config.doubts import Machine, doubts
from warmrank.orchestrator.config.entrypoint import EntrypointFault
from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.config.reading import parse
from warmrank.worker.rank.workload import not_imported

MACHINE = Machine(num_cpus=8, usable_cpus=8)
MISSING = EntrypointFault(error=not_imported("a:b", "No module named 'a'"))


def config(**data: Any) -> Config:
    least = {"workload": {"entrypoint": "a:b"}, "ranks": 2, "parallel": {"dp": 2}}
    return parse({**least, **data})


def found(machine: Machine = MACHINE, **data: Any) -> list[tuple[str, tuple[str, ...]]]:
    return [(doubt.level, doubt.keys) for doubt in doubts(config(**data), machine)]


CPUS = ("ranks", "ray.num_cpus_per_rank", "ray.num_cpus")


@pytest.mark.parametrize(
    ("data", "level", "keys"),
    [
        ({"ray": {"num_cpus_per_rank": 5.0}}, "error", CPUS),
        ({"ray": {"num_cpus": 1, "address": "auto"}}, "warning", ("ray.num_cpus", "ray.address")),
        ({"ray": {"omp_num_threads": 2}}, "warning", ("ray.omp_num_threads", "ray.num_cpus_per_rank")),
        ({"engine": "torchair"}, "error", ("engine", "device")),
        ({"no_compile": True}, "warning", ("no_compile", "store")),
        ({"cache_dir": "/a/b", "store": {"path": "/a"}}, "error", ("cache_dir", "store")),
        ({"cache_dir": "/a", "store": {"path": "/a/../a/b/"}}, "error", ("cache_dir", "store")),
        (
            {"timeouts": {"collective_s": 301.0}},
            "warning",
            ("timeouts.collective_s", "timeouts.first_call_s"),
        ),
        (
            {"store": {"path": "/a", "trust": {"policy": "require"}}},
            "error",
            ("store.trust.policy", "store.trust.trusted_keys"),
        ),
        (
            {"store": {"path": "/a", "trust": {"policy": "require", "trusted_keys": {"ci": "/k.pem"}}}},
            "error",
            ("store.trust.policy", "store.trust.signing_key"),
        ),
    ],
)
def test_keys_that_do_not_go_together_are_named(data: dict[str, Any], level: str, keys: tuple[str, ...]):
    assert found(**data) == [(level, keys)]


@pytest.mark.parametrize(
    "data",
    [
        {"engine": "torchair", "device": "npu"},
        {"ray": {"num_cpus": 2}},
        {"ray": {"omp_num_threads": 4, "num_cpus_per_rank": 4.0}},
        {"cache_dir": "/a", "store": {"path": "/ab"}},
        {"cache_dir": "/a", "store": {"path": "s3://b/a"}},
        {"no_compile": True, "store": {"path": "/a"}},
        {
            "store": {
                "path": "/a",
                "mode": "ro",
                "trust": {"policy": "require", "trusted_keys": {"ci": "/k.pem"}},
            }
        },
    ],
)
def test_keys_that_go_together_are_not_named(data: dict[str, Any]):
    assert found(**data) == []


def test_store_on_a_disk_of_one_machine_is_named_where_the_ranks_are_on_a_cluster():
    store = {"path": "/a"}
    machine = replace(MACHINE, local_stores=("/a",))
    assert found(machine, store=store) == []
    assert found(machine, store=store, ray={"address": "auto"}) == [("warning", ("store", "ray.address"))]
    tiers = {"tiers": [{"path": "/a"}, {"path": "s3://b/c"}]}
    assert found(machine, store=tiers, ray={"address": "auto"}) == []


@pytest.mark.parametrize(
    ("ray", "level"),
    [
        ({}, "error"),
        ({"address": "10.0.0.1:6379", "ship_code": True}, "error"),
        ({"address": "10.0.0.1:6379", "ship_code": False}, "warning"),
    ],
)
def test_script_that_is_not_there_is_an_error_where_the_nodes_cannot_have_it(ray: dict[str, Any], level: str):
    machine = replace(MACHINE, script=False)
    assert found(machine, workload={"script": "x.py"}, ray=ray) == [(level, ("workload.script",))]


def test_module_that_is_not_found_is_named_with_the_words_of_an_import():
    (doubt,) = doubts(config(), replace(MACHINE, entrypoint=MISSING))
    assert (doubt.level, doubt.keys) == ("error", ("workload.entrypoint",))
    assert "does not import: No module named 'a'" in doubt.found
    assert f"(it is {Path.cwd()} now)" in doubt.remedy


def test_store_that_others_can_write_and_no_key_is_an_error_that_says_how_to_keep_it_unsigned():
    machine = replace(MACHINE, requires_signature="/store: others can write it")
    (doubt,) = doubts(config(store={"path": "/store"}), machine)
    assert (doubt.level, doubt.keys) == ("error", ("store.trust.policy", "store.trust.signing_key"))
    assert "/store: others can write it" in doubt.found
    assert "chmod go-w" in doubt.remedy
    assert doubts(config(store={"path": "/store", "mode": "ro"}), machine) == ()
