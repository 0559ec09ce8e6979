"""The launch key: what changes it, and what must not."""

from __future__ import annotations

from typing import Any

import pytest

from warmrank.orchestrator.config.reading import parse
from warmrank.orchestrator.launch.identity import launch_key

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
