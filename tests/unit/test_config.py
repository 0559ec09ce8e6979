"""Configs: check, schema, what this machine has, the shipped ones; the stores and identity of a launch."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.support.checkout import ROOT
from tests.support.command_line import run
from warmrank.cache_store.signing.keyring import Revocation, generate, key_id, revoke
from warmrank.orchestrator.cli.look import SchemaOf, document_schema
from warmrank.orchestrator.config.lint import fault_of, lint
from warmrank.orchestrator.config.models import EntrypointWorkload, ScriptWorkload, launch_key
from warmrank.orchestrator.config.reading import Config, groups, load, parse, read_yaml
from warmrank.orchestrator.errors import ConfigError

MINIMAL = """
workload: {entrypoint: "json:dumps", arguments: {layers: 4}}
ranks: 2
parallel: {dp: 2}
ray: {num_cpus: 4}
"""
LEAST: dict[str, Any] = {"workload": {"entrypoint": "a:b"}, "ranks": 2, "parallel": {"dp": 2}}


def config(**data: Any) -> Config:
    return parse({**LEAST, **data})


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    return str(caught.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(MINIMAL)
    return path


def test_check_names_every_mistake_and_warnings_end_with_two_only_if_strict(file: Path):
    warned = run("config", "check", file, "--set", "no_compile=true")
    assert (warned.exit_code, "warning: no_compile, store" in warned.stdout) == (0, True)
    assert run("config", "check", "--config", file, "--set", "no_compile=true", "--strict").exit_code == 2
    twice = run("launch", file, "--config", file)
    assert (twice.exit_code, "unexpected extra argument" in twice.stderr) == (2, True)
    ignored = run("config", "check", file, "--set", "ray.address=10.0.0.1:6379").stdout
    assert "ray.num_cpus is that of a local Ray" in ignored
    assert "(a-z, 0-9)" in run("config", "check", file, "--set", "parallel.axes.EP=2").stderr
    file.write_text(MINIMAL + "guards: never\nmax_round: 3\n")
    result = run("config", "check", file)
    assert (result.exit_code, "2 problems" in result.stderr) == (2, True)
    assert "did you mean max_rounds?" in result.stderr


def test_show_prints_a_config_that_is_the_same(file: Path, tmp_path: Path):
    result = run("config", "show", file, "--set", "ranks=4", "--set", "parallel.dp=4")
    assert result.exit_code == 0
    shown = tmp_path / "shown.yaml"
    shown.write_text(result.stdout)
    assert load(shown) == load(file, ("ranks=4", "parallel.dp=4"))


@pytest.mark.parametrize("module", ["warmrank.py", "types.py", "yaml.py", "ray/__init__.py"])
def test_module_with_the_name_of_a_library_is_named(file: Path, module: str):
    for name in ("utils.py", "worker.py", "models/__init__.py", "torch/notes.txt"):
        (file.parent / name).parent.mkdir(exist_ok=True)
        (file.parent / name).touch()
    assert run("config", "check", file).exit_code == 0
    (file.parent / module).parent.mkdir(exist_ok=True)
    (file.parent / module).touch()
    result = run("config", "check", file)
    said = f"{module.removesuffix('/__init__.py')} in place of the library"
    assert (result.exit_code, said in result.stdout) == (2, True)


CONFIGS = sorted((ROOT / "cluster_configs").glob("*.yaml"))
NAMES: tuple[SchemaOf, ...] = get_args(SchemaOf)


def kept(name: str) -> Path:
    return ROOT / "docs" / "schemas" / f"{name}.schema.json"


def complaints(name: SchemaOf, data: object) -> list[str]:
    schema = jsonschema.Draft202012Validator(document_schema(name))
    return [error.message for error in schema.iter_errors(data)]


@pytest.mark.parametrize("name", NAMES)
def test_schema_that_is_kept_is_up_to_date(name: SchemaOf):
    remedy = f"warmrank config schema --of {name} > docs/schemas/{name}.schema.json"
    assert json.loads(kept(name).read_text()) == document_schema(name), remedy


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_config_is_valid_names_its_schema_and_launches_what_is_there(path: Path):
    text = path.read_text()
    assert complaints("config", yaml.safe_load(text)) == []
    schema = re.match(r"# yaml-language-server: \$schema=(\S+)\n", text)
    assert schema
    assert (path.parent / schema[1]).resolve() == kept("config")
    workload = load(path).workload
    if isinstance(workload, ScriptWorkload):
        assert (ROOT / workload.script).is_file()
    else:
        assert isinstance(workload, EntrypointWorkload)
        module, _, function = workload.entrypoint.partition(":")
        source = (ROOT / "src" / f"{module.replace('.', '/')}.py").read_text()
        assert f"def {function}(" in source


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


MODULE = """
import functools
from there import build as imported, decorated as imported_too
from there import build as maybe

raise RuntimeError("it ran")

try:
    from absent import maybe
except ImportError:
    pass

def workload(context, layers=2, *, dim): return make(dim)
def anything(context, **arguments): return make(arguments)
def nothing(): ...

@functools.cache
def cached(context): ...

other = workload
def _set():
    global late
"""
RAISES = "raise RuntimeError('it ran')\n"
FILES = {
    "qwen.py": MODULE,
    "pack/__init__.py": "",
    "pack/model.py": "",
    "open.py": "from there import *\n",
    "broken.py": "def workload(:\n",
    "whole_p/__init__.py": RAISES,
    "whole_p/inner.py": RAISES,
    "open_p/deep/leaf.py": RAISES,
    "path_p/__init__.py": "__path__ = ['/elsewhere']",
    "star_p/__init__.py": "from there import *",
    "modules_p/__init__.py": "import sys; sys.modules['modules_p.made'] = sys",
}


@pytest.fixture(autouse=True)
def user_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that commands are started in, with modules that say when they run."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    "entrypoint",
    [
        "qwen:anything", "qwen:cached", "qwen:other", "qwen:maybe", "qwen:late", "open:anything",
        "whole_p:RuntimeError", "whole_p.inner:RuntimeError", "open_p.deep.leaf:RuntimeError", "json:dumps",
        "path_p.made:f", "star_p.made:f", "modules_p.made:f",
    ],
)  # fmt: skip
def test_call_that_may_work_is_left_to_the_ranks_and_nothing_runs(entrypoint: str):
    assert fault_of(parse({"workload": {"entrypoint": entrypoint}})) is None
    assert not {name.partition("/")[0].removesuffix(".py") for name in FILES} & sys.modules.keys()


@pytest.mark.parametrize(
    ("entrypoint", "arguments", "said"),
    [
        ("qwen:wrkload", {"dim": 1}, "has no function 'wrkload'; did you mean qwen:workload?"),
        ("qwen:workload", {"dim": 1, "layerz": 2}, "unexpected keyword argument 'layerz'"),
        ("qwen:workload", {"layers": 2}, "it takes the rank's context and layers=2, dim"),
        ("qwen:nothing", {}, "too many positional arguments"),
        ("broken:workload", {}, "does not import: SyntaxError"),
        ("absent_of_all:f", {}, "No module named 'absent_of_all'. It"),
        ("qwne:workload", {}, "No module named 'qwne'; did you mean qwen:workload? It"),
        ("pack.modell:f", {}, "No module named 'pack.modell'; did you mean pack.model:f?"),
        ("qwen.py:workload", {}, "No module named 'qwen.py'; leave out .py"),
        ("pack:workload", {}, "'pack' has no function 'workload'"),
    ],
)
def test_call_that_is_certain_to_fail_is_named(entrypoint: str, arguments: dict[str, object], said: str):
    fault = fault_of(parse({"workload": {"entrypoint": entrypoint, "arguments": arguments}}))
    assert fault is not None
    assert said in str(fault[0])


def doubled(first: str, each: str) -> str:
    """A document of which each line holds twice what the line before does."""
    lines = (f"a{index}: &a{index} {each.replace('_', f'*a{index - 1}')}" for index in range(1, 40))
    return "\n".join((f"a0: &a0 {first}", *lines))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: &a\n  b: *a\n", "recursive node"),
        ("a: " + "[" * 3000 + "]" * 3000, "hundreds of levels"),
        (doubled("[x]", "[_, _]"), "with aliases written out"),
        (doubled("{x: 1}", "{<<: [_, _]}"), "with aliases written out"),
        ("a: " + "x" * 2**20, "more than 1 MiB"),
    ],
)
def test_document_that_cannot_be_walked_is_refused(text: str, found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        read_yaml(text, "a.yaml")


def test_file_without_an_end_is_no_config() -> None:
    with pytest.raises(ConfigError, match="/dev/zero: found more than 1 MiB"):
        load("/dev/zero")


def test_file_whose_name_is_none_for_a_launch_asks_for_a_name(file: Path) -> None:
    odd = file.rename(file.with_name("my config (1).yaml"))
    assert "the file's own name; expected a key name in it" in refusal(odd)
    assert load(odd, ("name=mine",)).name == "mine"
    assert "name: found" in refusal(odd, f"name={'x' * 129}")


@pytest.mark.parametrize(
    "override",
    [
        "cache_dir=~nobody-here/x",
        "store.path=~nobody-here/x",
        "store={path: /s, trust: {keyring: ~nobody-here/k}}",
    ],
)
def test_home_of_a_user_who_is_not_known_is_refused(file: Path, override: str) -> None:
    assert "expected a path whose home directory is known here" in refusal(file, override)


def test_whole_number_and_date_are_texts_where_only_texts_go_and_else_quotes_are_asked_for(file):
    found = load(file, ("env={PORT: 61000, DAY: 2026-01-01}", "ray.labels={rack: 3}"))
    assert (found.env, found.ray.labels) == ({"PORT": "61000", "DAY": "2026-01-01"}, {"rack": "3"})
    for override in (
        "audit=off",
        "store={path: /s, trust: {policy: off}}",
        "env={A: true}",
        "env={A: 1.0}",
        "name=5",
    ):
        assert "in quotes" in refusal(file, override)
    assert "env={A: 010}:1: found 010, which YAML takes for 8" in refusal(file, "env={A: 010}")


KUBERAY = ROOT / "cluster_configs" / "kuberay"
MANIFESTS = sorted(path for path in KUBERAY.glob("*.yaml") if "job-on-raycluster" not in path.stem)


def container_of(group: dict[str, Any]) -> dict[str, Any]:
    (container,) = group["template"]["spec"]["containers"]
    return dict(container)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifest_of_kuberay_launches_what_plain_hosts_do_in_pods_that_fit(path: Path) -> None:
    every = list(yaml.safe_load_all(path.read_text()))
    documents = {document["kind"]: document for document in every}
    assert len(documents) == len(every)
    config = parse(yaml.safe_load(documents["ConfigMap"]["data"]["launch.yaml"]))
    if is_job := "RayJob" in documents:
        plain, own = load(KUBERAY.parent / path.name), {"cache_dir", "store", "ray"}
        assert config.model_dump(exclude=own) == plain.model_dump(exclude=own)
        assert config.ray.model_dump(exclude={"ship_code"}) == plain.ray.model_dump(exclude={"ship_code"})
    cluster = documents["RayJob" if is_job else "RayCluster"]["spec"]
    cluster = cluster["rayClusterSpec"] if is_job else cluster
    (workers,) = cluster["workerGroupSpecs"]
    resources = container_of(workers)["resources"]
    # Quoted twice: once for YAML, once for the shell that KubeRay starts Ray with.
    npus = {"NPU": resources["limits"]["huawei.com/Ascend910"]}
    assert json.loads(json.loads(workers["rayStartParams"]["resources"])) == npus
    assert resources["requests"] == resources["limits"]
    assert config.store is not None
    trust = config.store.trust
    assert trust.signing_key is not None
    named = [config.store.location, str(trust.signing_key), *map(str, trust.trusted_keys.values())]
    for group, paths in (
        (cluster["headGroupSpec"], [*named, "/etc/warmrank/launch.yaml"]),
        (workers, [*named, str(config.cache_dir), "/usr/local/Ascend/driver/version.info"]),
    ):
        mounts = container_of(group)["volumeMounts"]
        volumes = {volume["name"] for volume in group["template"]["spec"]["volumes"]}
        assert {mount["name"] for mount in mounts} == volumes
        for wanted in paths:
            assert any(f"{wanted}/".startswith(f"{mount['mountPath']}/") for mount in mounts), wanted


@pytest.mark.parametrize(
    "override",
    [
        "ranks=true", "ranks=0", "ranks=2.0", "parallel=2", "workload=3", "workload={}",
        "workload.entrypoint=nocolon", "workload={script: a.py, entrypoint: 'a:b'}",
        "workload={script: a.py, arguments: [null]}", "device=tpu", "timeouts.start_s=0",
        "timeouts.start_s=.inf", "store={}", "no_compile='yes'", "name='../x'", "ray.num_cpus_per_rank=-1",
        "ranks", "=1", "ranks.x=1", "ranks=[",
    ],
)  # fmt: skip
def test_unusable_value_is_refused(file: Path, override: str) -> None:
    assert override.partition("=")[0].partition(".")[0] in refusal(file, override)


def found(**data: Any) -> list[tuple[str, str]]:
    data = {"workload": {"entrypoint": "json:dumps"}, "ray": {"num_cpus": 8}, **data}
    return [(finding.level, ", ".join(finding.keys)) for finding in lint(config(**data))]


CPUS, THREADS = "ranks, ray.num_cpus_per_rank, ray.num_cpus", "ray.omp_num_threads, ray.num_cpus_per_rank"
NO_KEY = {"path": "/a", "trust": {"policy": "require"}}
NO_SIGNER = {"path": "/a", "trust": {"policy": "require", "trusted_keys": {"ci": "/k.pem"}}}


@pytest.mark.parametrize(
    ("data", "level", "keys"),
    [
        ({"ray": {"num_cpus": 8, "num_cpus_per_rank": 5.0}}, "error", CPUS),
        ({"ray": {"num_cpus": 8, "omp_num_threads": 2}}, "warning", THREADS),
        ({"engine": "torchair"}, "error", "engine, device"),
        ({"no_compile": True}, "warning", "no_compile, store"),
        ({"cache_dir": "/a/b", "store": {"path": "/a"}}, "error", "cache_dir, store"),
        ({"cache_dir": "/a", "store": {"path": "/a/../a/b/"}}, "error", "cache_dir, store"),
        ({"store": NO_KEY}, "error", "store.trust.policy, store.trust.trusted_keys"),
        ({"store": NO_SIGNER}, "error", "store.trust.policy, store.trust.signing_key"),
    ],
)
def test_keys_that_do_not_go_together_are_named(data: dict[str, Any], level: str, keys: str):
    assert found(**data) == [(level, keys)]


SHARED = {"address": "10.0.0.1:6379"}


def test_accelerators_that_ray_does_not_find_here_are_an_error_unless_a_cluster_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "")
    assert found(device="npu") == [("error", "ranks, device")]
    assert found(device="npu", ray=SHARED) == []
    monkeypatch.setenv("RAY_OVERRIDE_RESOURCES", '{"NPU": 1}')
    assert found(device="npu") == []


def test_what_this_machine_lacks_is_an_error_where_the_nodes_cannot_have_it(tmp_path: Path) -> None:
    (path := tmp_path / "store").mkdir()
    store = {"path": str(path), "trust": {"policy": "off"}}
    assert found(store=store) == []
    assert found(store=store, ray=SHARED) == [("warning", "store, ray.address")]
    tiers = [{"path": str(path)}, {"path": "s3://b/c"}]
    assert found(store={"tiers": tiers, "trust": {"policy": "off"}}, ray=SHARED) == []
    assert found(workload={"entrypoint": "absent_of_all:f"}) == [("error", "workload.entrypoint")]
    script = {"script": "x.py"}
    assert found(workload=script, ray=SHARED) == [("error", "workload.script")]
    assert found(workload=script, ray={**SHARED, "ship_code": False}) == [("warning", "workload.script")]


def test_cache_directory_below_a_file_is_named_by_check_and_launch(file: Path, tmp_path: Path):
    (tmp_path / "taken").touch()
    for command in (("config", "check"), ("launch",)):
        result = run(*command, file, "--set", f"cache_dir={tmp_path}/taken/cache")
        assert (result.exit_code, f"{tmp_path}/taken is no directory" in result.output) == (2, True)
    at_nodes = run("config", "check", file, "--set", "cache_dir=taken", "--set", "ray.address=10.0.0.1:6379")
    assert (at_nodes.exit_code, "warning: cache_dir" in at_nodes.stdout) == (0, True)


def test_key_that_cannot_sign_is_found_before_a_launch_begins(file: Path, tmp_path: Path):
    keyring = tmp_path / "keys"
    signer = generate(keyring, "ci")
    store = ("--set", f"store={{path: {tmp_path}/store, trust: {{signing_key: ci, keyring: {keyring}}}}}")
    assert run("config", "check", file, *store).exit_code == 0
    (keyring / "ci.pem").chmod(0o644)
    for command in (("config", "check"), ("launch",)):
        result = run(*command, file, *store)
        assert (result.exit_code, "store.trust.signing_key" in result.output) == (2, True)
        assert "found mode 0644" in result.output
    (keyring / "ci.pem").chmod(0o600)
    revoke(keyring, Revocation(key_id=key_id(signer.public_key), name="ci", reason="lost"))
    for command in (("config", "check"), ("launch",), ("doctor",)):
        result = run(*command, file, *store)
        assert (result.exit_code, "it may sign nothing" in result.output) == (
            1 if "doctor" in command else 2,
            True,
        )


def test_store_that_others_can_write_and_no_key_is_an_error_that_says_how_to_keep_it_unsigned():
    store = {"path": "s3://bucket/store"}
    data = {"workload": {"entrypoint": "json:dumps"}, "ray": {"num_cpus": 8}}
    (finding,) = lint(config(**data, store=store))
    assert (finding.level, finding.keys) == ("error", ("store.trust.policy", "store.trust.signing_key"))
    assert "policy require (s3://bucket/store: " in finding.found
    assert "chmod go-w" in finding.remedy
    assert lint(config(**data, store={**store, "mode": "ro"})) == ()


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
        ({"tiers": [{"path": "s3://b/a%20b"}, {"path": "s3a://b/a b"}]}, "store.tiers"),
        ({"path": "s3://b:99/p"}, "store.path"),
        ({"path": "/s", "options": {"region": "x"}}, "store.options"),
        ({"path": "ftp://host/s"}, "store.path"),
        ({"path": "s3://"}, "store.path"),
        ([{"path": "/s"}], "store"),
    ],
)
def test_unusable_value_is_refused_once_by_its_key(store: Any, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(store=store)
    assert [problem.key for problem in caught.value.problems] == [key]


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({"store": {"path": "/a\0b"}}, "store.path"),
        ({"store": {"tiers": [{"path": "/a"}, {"path": "/b\udc00"}]}}, "store.tiers.1.path"),
        ({"store": {"path": "/s", "trust": {"keyring": ""}}}, "store.trust.keyring"),
        *(({"cache_dir": it}, "cache_dir") for it in ("/a\0b", "", "//")),
        ({"name": "\ud800"}, "name"),
        ({"env": {"A": "x\0y"}}, "env.A"),
        *(({"ray": {"address": it}}, "ray.address") for it in ("nonsense", "http://10.0.0.1:8265", "")),
    ],
)
def test_text_that_the_system_cannot_take_is_refused_by_its_key(data: Any, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**data)
    assert [problem.key for problem in caught.value.problems] == [key]


@pytest.mark.parametrize("near", ["link", "far/near", "."])
def test_places_in_one_another_are_named_also_behind_a_link(tmp_path: Path, near: str) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to("far")
    store = {"tiers": [{"path": str(tmp_path / it)} for it in (near, "far")], "trust": {"policy": "off"}}
    assert found(store=store, cache_dir="/elsewhere") == [("error", "store.tiers")]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"tools": {"pth": "/x"}}, "node_caches.tools.path"),
        ({"tools": {"path": ""}}, "of tools a path"),
        ({"triton": {}}, "of triton a path"),
        ({"ge": {"path": "/x"}}, "engine torchair looks"),
        ({"tools": {"path": "/x", "collect": "some"}}, "what a launch adds or changes"),
        ({"tools": {"path": "/x", "scope": "rank"}}, "once a node"),
        ({"Tools/x": {"path": "/x"}}, "mapping of a name"),
        ({"tools": {"path": "/x", "patterns": []}}, "list of patterns"),
    ],
)
def test_node_caches_that_are_none_are_refused(given: Any, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(node_caches=given)
    assert expected in str(caught.value)


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
        config(store=store)
    assert SECRET not in str(caught.value)
    assert "not shown here" in str(caught.value)


def test_secret_of_an_override_is_not_shown(file: Path) -> None:
    text = refusal(file, "store={path: 's3://b'}", f"store.secret_key={SECRET}")
    assert SECRET not in text
    assert "--set store.secret_key: store.secret_key" in text


WORKLOAD = {"entrypoint": "models.tiny:workload", "arguments": {"layers": 4, "sizes": {"a": 1, "b": 2}}}
SAME_KEY: list[dict[str, Any]] = [
    {"name": "other"},
    {"ranks": 4, "parallel": {"tp": 2, "dp": 2}},
    {"ranks": 2, "parallel": {"tp": 2}},
    {"ray": {"num_cpus_per_rank": 2, "address": "10.0.0.1:6379"}},
    *({"ray": {"address": it}} for it in ("auto", "local", "[::1]:6379", "ray://10.0.0.1:10001")),
    {"cache_dir": "/elsewhere"},
    {"store": {"path": "/store"}},
    {"timeouts": {"compile_s": 1}},
    {"no_compile": True},
    {"max_rounds": 1},
    {"workload": {**WORKLOAD, "arguments": {"sizes": {"b": 2, "a": 1}, "layers": 4}}},
]
OTHER_KEY: list[dict[str, Any]] = [
    {"workload": {**WORKLOAD, "entrypoint": "models.tiny:other"}},
    {"workload": {**WORKLOAD, "arguments": {"layers": 5}}},
    {"workload": {**WORKLOAD, "arguments": {"layers": "4"}}},
    {"workload": {"script": "tiny.py"}},
    {"device": "cuda"},
    {"guards": "skip"},
]


@pytest.mark.parametrize("changes", [*SAME_KEY, *OTHER_KEY], ids=str)
def test_key_depends_on_what_is_launched_and_on_nothing_that_changes_no_artifact(changes: dict[str, Any]):
    key, changed = (launch_key(config(**{"workload": WORKLOAD, **more})) for more in ({}, changes))
    assert (changed == key) == (changes in SAME_KEY)


def test_override_sets_a_nested_value_as_yaml(file: Path) -> None:
    found = load(file, ("workload.arguments.names=[a, b]", "timeouts.compile_s=1.5"))
    assert found.model_dump()["workload"]["arguments"] == {"layers": 4, "names": ["a", "b"]}
    assert found.timeouts.compile_s == 1.5


def test_misspelt_key_names_file_key_value_and_nearest(file: Path) -> None:
    file.write_text(MINIMAL + "timeouts: {compile: 3}\n")
    text = refusal(file)
    assert str(file) in text
    assert "timeouts.compile: found an unknown key with value 3 (int)" in text
    assert "did you mean timeouts.compile_s?" in text


def test_keys_of_two_kinds_of_workload_are_not_each_others_remedy(file: Path) -> None:
    file.write_text("workload: {entrypoint: model:workload, script: x.py}\nranks: 1\ncache_dir: cache\n")
    text = refusal(file)
    assert "only script, arguments; entrypoint does not go with script" in text
    assert "did you mean" not in text


axis = st.integers(min_value=1, max_value=4)


@given(tp=axis, pp=axis, dp=axis)
def test_groups_of_each_role_divide_the_ranks(tp: int, pp: int, dp: int) -> None:
    ranks = tp * pp * dp
    launch = config(ranks=ranks, parallel={"tp": tp, "pp": pp, "dp": dp})
    of_rank = [groups(launch, rank) for rank in range(ranks)]
    for role, size in (("world", ranks), ("tp", tp), ("pp", pp), ("dp", dp)):
        found = {tuple(own[role]) for own in of_rank}
        assert sorted(rank for group in found for rank in group) == list(range(ranks))
        assert {len(group) for group in found} == {size}
        assert all(rank in own[role] for rank, own in enumerate(of_rank))
