"""The config of a launch, its stores and its identity."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.checkout import python
from warmrank.orchestrator.config.lint import Machine, lint
from warmrank.orchestrator.config.models import launch_key
from warmrank.orchestrator.config.reading import Config, groups, load, parse
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
        "workload={script: a.py, arguments: [null]}",
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


def test_config_imports_neither_torch_nor_ray() -> None:
    program = (
        "import sys, warmrank.orchestrator.config.reading;"
        "from warmrank.orchestrator.launch import driver;"
        "sys.exit(' '.join({'torch', 'ray'} & set(sys.modules)) or 0)"
    )
    assert python("-c", program) == ""


MACHINE = Machine(num_cpus=8, usable_cpus=8)


def config(**data: Any) -> Config:
    least = {"workload": {"entrypoint": "a:b"}, "ranks": 2, "parallel": {"dp": 2}}
    return parse({**least, **data})


def found(machine: Machine = MACHINE, **data: Any) -> list[tuple[str, tuple[str, ...]]]:
    return [(finding.level, finding.keys) for finding in lint(config(**data), machine)]


CPUS = ("ranks", "ray.num_cpus_per_rank", "ray.num_cpus")


@pytest.mark.parametrize(
    ("data", "level", "keys"),
    [
        ({"ray": {"num_cpus_per_rank": 5.0}}, "error", CPUS),
        ({"ray": {"omp_num_threads": 2}}, "warning", ("ray.omp_num_threads", "ray.num_cpus_per_rank")),
        ({"engine": "torchair"}, "error", ("engine", "device")),
        ({"no_compile": True}, "warning", ("no_compile", "store")),
        ({"cache_dir": "/a/b", "store": {"path": "/a"}}, "error", ("cache_dir", "store")),
        ({"cache_dir": "/a", "store": {"path": "/a/../a/b/"}}, "error", ("cache_dir", "store")),
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


ON_DISK = replace(MACHINE, local_stores=("/a",))
NO_CODE = replace(MACHINE, code_fault="no file x.py")
SCRIPT = {"script": "x.py"}
SHARED = {"address": "10.0.0.1:6379"}
TIERS = {"tiers": [{"path": "/a"}, {"path": "s3://b/c"}]}


@pytest.mark.parametrize(
    ("machine", "data", "expected"),
    [
        (ON_DISK, {"store": {"path": "/a"}}, []),
        (ON_DISK, {"store": {"path": "/a"}, "ray": SHARED}, [("warning", ("store", "ray.address"))]),
        (ON_DISK, {"store": TIERS, "ray": SHARED}, []),
        (NO_CODE, {}, [("error", ("workload.entrypoint",))]),
        (
            NO_CODE,
            {"workload": SCRIPT, "ray": {**SHARED, "ship_code": True}},
            [("error", ("workload.script",))],
        ),
        (
            NO_CODE,
            {"workload": SCRIPT, "ray": {**SHARED, "ship_code": False}},
            [("warning", ("workload.script",))],
        ),
    ],
)
def test_what_a_machine_lacks_is_an_error_where_the_nodes_cannot_have_it(
    machine: Machine, data: dict[str, Any], expected: list[Any]
):
    assert found(machine, **data) == expected


def test_store_that_others_can_write_and_no_key_is_an_error_that_says_how_to_keep_it_unsigned():
    machine = replace(MACHINE, requires_signature="/store: others can write it")
    (finding,) = lint(config(store={"path": "/store"}), machine)
    assert (finding.level, finding.keys) == ("error", ("store.trust.policy", "store.trust.signing_key"))
    assert "/store: others can write it" in finding.found
    assert "chmod go-w" in finding.remedy
    assert lint(config(store={"path": "/store", "mode": "ro"}), machine) == ()


HEAD: dict[str, Any] = {"workload": {"entrypoint": "models.tiny:workload"}, "ranks": 1}


@pytest.mark.parametrize(
    ("store", "key"),
    [
        ({}, "store.path"),
        ({"tiers": []}, "store.tiers"),
        ({"tiers": [{"path": "/a"}, {"path": "/b"}, {"path": "/c"}]}, "store.tiers"),
        ({"tiers": [{}]}, "store.tiers.0.path"),
        ({"path": ""}, "store.path"),
        ({"path": "/s", "mode": "readonly"}, "store.mode"),
        ({"path": "/s", "mode": True}, "store.mode"),
        ({"path": "/s", "flush": "sync"}, "store.flush"),
        ({"path": "/s", "answer_s": 0}, "store.answer_s"),
        ({"path": "s3://b", "options": {"allow_http": True}}, "store.options.allow_http"),
        ({"path": "s3://b", "options": {"regoin": "x"}}, "store.options.regoin"),
        ({"path": "s3://b", "options": {"allow_http": "maybe"}}, "store.options.allow_http"),
        ({"path": "s3:/bucket/x"}, "store.path"),
        ({"tiers": [{"path": "/s"}, {"path": "/x/../s/"}]}, "store.tiers"),
        ({"tiers": [{"path": "s3://b/p"}, {"path": "s3://b/p/"}]}, "store.tiers"),
        ({"path": "/s", "options": {"region": "x"}}, "store.options"),
        ({"path": "ftp://host/s"}, "store.path"),
        ([{"path": "/s"}], "store"),
    ],
)
def test_unusable_value_is_refused_once_by_its_key(store: Any, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({**HEAD, "store": store})
    assert [problem.key for problem in caught.value.problems] == [key]


SECRET = "hunter2"  # noqa: S105 - what must never be shown


@pytest.mark.parametrize(
    "store",
    [
        {"path": "s3://b", "options": {"aws_secret_access_key": SECRET}},
        {"path": "s3://b", "options": {"token": 3, "secret": SECRET}},
        {"path": "s3://b", "aws_secret_access_key": SECRET},
        {"path": f"s3://user:{SECRET}@bucket/prefix"},
        {"tiers": [{"path": "s3://b", "options": {"account_key": SECRET}}]},
    ],
    ids=["option", "two options", "key", "url", "tier"],
)
def test_secret_is_refused_and_not_shown(store: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({**HEAD, "store": store})
    assert SECRET not in str(caught.value)
    assert "not shown here" in str(caught.value)


def test_secret_of_an_override_is_not_shown(file: Path) -> None:
    text = refusal(file, "store={path: 's3://b'}", f"store.secret_key={SECRET}")
    assert SECRET not in text
    assert "--set store.secret_key: store.secret_key" in text


BASE: dict[str, Any] = {
    "workload": {"entrypoint": "models.tiny:workload", "arguments": {"layers": 4, "sizes": {"a": 1, "b": 2}}},
    "ranks": 2,
    "parallel": {"tp": 2},
}


def key(base: dict[str, Any] = BASE, **changes: Any) -> str:
    return launch_key(parse({**base, **changes}))


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"ranks": 4, "parallel": {"tp": 2, "dp": 2}},
        {"ranks": 2, "parallel": {"dp": 2}},
        {"ray": {"num_cpus_per_rank": 2, "address": "10.0.0.1:6379"}},
        {"cache_dir": "/elsewhere"},
        {"store": {"path": "/store"}},
        {"timeouts": {"compile_s": 1}},
        {"no_compile": True},
        {"max_rounds": 1},
        {
            "workload": {
                "arguments": {"sizes": {"b": 2, "a": 1}, "layers": 4},
                "entrypoint": "models.tiny:workload",
            }
        },
    ],
    ids=str,
)
def test_key_does_not_depend_on_what_changes_no_artifact(changes: dict[str, Any]) -> None:
    assert key(**changes) == key()


@pytest.mark.parametrize(
    "changes",
    [
        {"workload": {"entrypoint": "models.tiny:other", "arguments": BASE["workload"]["arguments"]}},
        {"workload": {"entrypoint": "models.tiny:workload", "arguments": {"layers": 5}}},
        {"workload": {"entrypoint": "models.tiny:workload", "arguments": {"layers": "4"}}},
        {"workload": {"script": "tiny.py"}},
        {"device": "cuda"},
        {"guards": "skip"},
    ],
    ids=str,
)
def test_key_depends_on_what_is_launched(changes: dict[str, Any]) -> None:
    assert key(**changes) != key()


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


axis = st.integers(min_value=1, max_value=4)


@given(tp=axis, pp=axis, dp=axis)
def test_groups_of_each_role_divide_the_ranks(tp: int, pp: int, dp: int) -> None:
    ranks = tp * pp * dp
    found = groups(config(ranks=ranks, parallel={"tp": tp, "pp": pp, "dp": dp}))
    for role, size in (("world", ranks), ("tp", tp), ("pp", pp), ("dp", dp)):
        assert sorted(rank for group in found[role] for rank in group) == list(range(ranks))
        assert {len(group) for group in found[role]} == {size}
