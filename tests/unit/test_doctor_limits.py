"""What the system allows, on made-up facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from warmrank.orchestrator.doctor.findings import Finding
from warmrank.orchestrator.doctor.limits import Limits, check

INFINITY = float("inf")
FINE = Limits(
    device="npu",
    num_files=1024,
    num_files_hard=INFINITY,
    num_processes=INFINITY,
    locked_bytes=INFINITY,
    shm_bytes=2**34,
    shm_free_bytes=2**34,
    memory_bytes=2**39,
    num_cpus=192,
    num_ranks=8,
    cpus_per_rank=8.0,
    omp_num_threads=8,
    ray_cpus=0,
    is_local=True,
    encoding="utf-8",
    umask=0o022,
)


def troubles(facts: Limits) -> dict[str, Finding]:
    return {finding.check: finding for finding in check(facts) if finding.level != "ok"}


def test_a_large_node_is_fine():
    assert troubles(FINE) == {}


@pytest.mark.parametrize(
    ("change", "name", "level"),
    [
        ({"num_files_hard": 1024}, "limits.files", "warning"),
        ({"num_processes": 1024}, "limits.processes", "warning"),
        ({"locked_bytes": 65536}, "limits.locked_memory", "warning"),
        ({"shm_free_bytes": 2**26}, "limits.shared_memory", "warning"),
        ({"memory_bytes": 2**33}, "limits.memory", "warning"),
        ({"ray_cpus": 4}, "limits.cpus", "error"),
        ({"omp_num_threads": 64}, "limits.threads", "note"),
        ({"encoding": "ascii"}, "limits.locale", "warning"),
        ({"umask": 0o777}, "limits.umask", "error"),
    ],
)
def test_each_limit_that_is_too_low_is_named(change: dict[str, object], name: str, level: str):
    found = troubles(replace(FINE, **change))  # type: ignore[arg-type]
    assert {check: finding.level for check, finding in found.items()} == {name: level}


def test_each_trouble_says_what_to_do():
    low = replace(FINE, num_files_hard=64, num_processes=64, locked_bytes=0, shm_bytes=0, shm_free_bytes=0)
    assert all(finding.expected and finding.remedy for finding in troubles(low).values())
    assert len(troubles(low)) == 4


def test_soft_limit_of_files_is_raised_by_ray():
    assert troubles(replace(FINE, num_files=256, num_files_hard=65536)) == {}


def test_many_ranks_need_many_files():
    assert troubles(replace(FINE, num_files_hard=4096)) == {}
    assert "limits.files" in troubles(replace(FINE, num_files_hard=4096, num_ranks=32))


def test_locked_memory_does_not_count_on_cpu():
    assert troubles(replace(FINE, device="cpu", locked_bytes=0)) == {}


def test_cpus_of_a_cluster_are_not_those_of_this_machine():
    assert troubles(replace(FINE, is_local=False, num_cpus=1, num_ranks=0)) == {}


def test_pretended_cpus_are_believed_as_ray_believes_them():
    assert "limits.cpus" in troubles(replace(FINE, num_cpus=4, omp_num_threads=0))
    assert troubles(replace(FINE, num_cpus=4, omp_num_threads=0, ray_cpus=64)) == {}
