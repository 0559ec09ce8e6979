"""The launch key: what changes it, and what must not."""

from __future__ import annotations

from typing import Any

import pytest

from warmrank.orchestrator.config.reading import parse
from warmrank.orchestrator.launch.identity import identity, launch_key

BASE: dict[str, Any] = {
    "workload": {"entrypoint": "models.tiny:workload", "arguments": {"layers": 4, "sizes": {"a": 1, "b": 2}}},
    "ranks": 2,
    "parallel": {"tp": 2},
}
SCRIPT: dict[str, Any] = {"workload": {"script": "jobs/run.py", "arguments": ["--n", "2"]}, "ranks": 1}


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


def test_each_argument_is_a_component_of_its_own() -> None:
    assert identity(parse(BASE))["argument layers"] == "4"


@pytest.mark.parametrize("script", ["./jobs/run.py", "jobs/../jobs/run.py", "jobs//run.py"])
def test_spelling_of_a_script_path_does_not_matter(script: str) -> None:
    assert key(SCRIPT, workload={**SCRIPT["workload"], "script": script}) == key(SCRIPT)


def test_directory_of_an_absolute_script_does_not_matter() -> None:
    first = key(SCRIPT, workload={"script": "/a/run.py"})
    assert key(SCRIPT, workload={"script": "/b/run.py"}) == first


def test_order_of_script_arguments_matters() -> None:
    assert key(SCRIPT, workload={"script": "jobs/run.py", "arguments": ["2", "--n"]}) != key(SCRIPT)
