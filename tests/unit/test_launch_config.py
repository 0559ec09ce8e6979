"""Configs: what is accepted, what is refused, and what the refusal says."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmrank.orchestrator.config.doubts import Machine, doubts
from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.config.reading import groups, load, parse
from warmrank.orchestrator.errors import ConfigError

MINIMAL = """
workload: {entrypoint: "models.tiny:workload", arguments: {layers: 4}}
ranks: 2
parallel: {tp: 2}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny.yaml"
    path.write_text(MINIMAL)
    return path


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    return str(caught.value)


def test_override_sets_a_nested_value_as_yaml(file: Path) -> None:
    config = load(file, ("workload.arguments.names=[a, b]", "timeouts.compile_s=1.5"))
    assert config.model_dump()["workload"]["arguments"] == {"layers": 4, "names": ["a", "b"]}
    assert config.timeouts.compile_s == 1.5


def test_misspelt_key_names_file_key_value_and_nearest(file: Path) -> None:
    file.write_text(MINIMAL + "timeouts: {compile: 3}\n")
    text = refusal(file)
    assert str(file) in text
    assert "timeouts.compile: found an unknown key with value 3 (int)" in text
    assert "did you mean timeouts.compile_s?" in text


@pytest.mark.parametrize(
    "override",
    [
        "ranks=true",
        "ranks=0",
        "ranks=2.0",
        "parallel=2",
        "workload=3",
        "workload={}",
        "workload.entrypoint=nocolon",
        "workload={script: a.py, entrypoint: 'a:b'}",
        "workload={script: a.py, arguments: [1]}",
        "device=tpu",
        "timeouts.start_s=0",
        "timeouts.start_s=.inf",
        "store={}",
        "no_compile='yes'",
        "name='../x'",
        "ray.num_cpus_per_rank=-1",
        "ranks",
        "=1",
        "ranks.x=1",
        "ranks=[",
    ],
)
def test_unusable_value_is_refused(file: Path, override: str) -> None:
    assert override.partition("=")[0].partition(".")[0] in refusal(file, override)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ranks: 1\nranks: 2\n", "tiny.yaml:2: found the key 'ranks' twice"),
        ("ranks: [1\n", "broken YAML"),
        ("- ranks\n", "found ['ranks'] (list) at the top level"),
        ("", "found None (NoneType) at the top level"),
        ("1: 2\n", "the key 1 (int)"),
        ("ranks: 2024-01-01\n", "ranks: found datetime.date(2024, 1, 1) (date)"),
    ],
)
def test_file_that_is_no_mapping_of_plain_data_is_refused(file: Path, text: str, expected: str) -> None:
    file.write_text(text)
    assert expected in refusal(file)


axis = st.integers(min_value=1, max_value=4)


@given(tp=axis, pp=axis, dp=axis)
def test_groups_of_each_role_divide_the_ranks(tp: int, pp: int, dp: int) -> None:
    found = groups(config_of(tp=tp, pp=pp, dp=dp))
    for role, size in (("world", tp * pp * dp), ("tp", tp), ("pp", pp), ("dp", dp)):
        assert sorted(rank for group in found[role] for rank in group) == list(range(tp * pp * dp))
        assert {len(group) for group in found[role]} == {size}


def config_of(**parallel: int) -> Config:
    ranks = 1
    for size in parallel.values():
        ranks *= size
    data: dict[str, Any] = {"workload": {"entrypoint": "a:b"}, "ranks": ranks, "parallel": parallel}
    return parse(data)


def test_config_imports_neither_torch_nor_ray() -> None:
    program = (
        "import sys, warmrank.orchestrator.config.reading;"
        "from warmrank.orchestrator.launch import driver, identity;"
        "sys.exit(' '.join({'torch', 'ray'} & set(sys.modules)) or 0)"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


MACHINE = Machine(num_cpus=8, usable_cpus=8)


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


def test_store_that_others_can_write_and_no_key_is_an_error_that_says_how_to_keep_it_unsigned():
    machine = replace(MACHINE, requires_signature="/store: others can write it")
    (doubt,) = doubts(config(store={"path": "/store"}), machine)
    assert (doubt.level, doubt.keys) == ("error", ("store.trust.policy", "store.trust.signing_key"))
    assert "/store: others can write it" in doubt.found
    assert "chmod go-w" in doubt.remedy
    assert doubts(config(store={"path": "/store", "mode": "ro"}), machine) == ()
