"""The KubeRay manifests that come along: their launches load, and all numbers in them agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.config.reading import load, parse

PLAIN = Path(__file__).parents[2] / "cluster_configs"
ON_CLUSTERS = sorted((PLAIN / "kuberay").glob("*-job-on-raycluster.yaml"))
MANIFESTS = sorted(set((PLAIN / "kuberay").glob("*.yaml")) - set(ON_CLUSTERS))
JOBS = [path for path in MANIFESTS if "raycluster" not in path.stem]
NPU = "huawei.com/Ascend910"

each = pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
each_job = pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)


def documents(path: Path) -> dict[str, Any]:
    """The documents of a manifest by kind; one of each."""
    found = list(yaml.safe_load_all(path.read_text()))
    assert len({document["kind"] for document in found}) == len(found)
    return {document["kind"]: document for document in found}


def launch_of(path: Path) -> Config:
    return parse(yaml.safe_load(documents(path)["ConfigMap"]["data"]["launch.yaml"]))


def cluster_of(path: Path) -> dict[str, Any]:
    found = documents(path)
    spec: dict[str, Any]
    spec = found["RayJob"]["spec"]["rayClusterSpec"] if "RayJob" in found else found["RayCluster"]["spec"]
    return spec


def workers_of(path: Path) -> dict[str, Any]:
    (group,) = cluster_of(path)["workerGroupSpecs"]
    return dict(group)


def container_of(group: dict[str, Any]) -> dict[str, Any]:
    (container,) = group["template"]["spec"]["containers"]
    return dict(container)


@each_job
def test_launch_under_kuberay_is_that_on_plain_hosts(path: Path) -> None:
    here, plain = launch_of(path), load(PLAIN / path.name)
    own = {"cache_dir", "store", "ray"}
    assert here.model_dump(exclude=own) == plain.model_dump(exclude=own)
    assert here.ray.model_dump(exclude={"ship_code"}) == plain.ray.model_dump(exclude={"ship_code"})


@each
def test_ray_is_told_of_as_many_npus_as_the_pod_gets(path: Path) -> None:
    group = workers_of(path)
    resources = container_of(group)["resources"]
    # Quoted twice: once for YAML, once for the shell that KubeRay starts Ray with.
    assert json.loads(json.loads(group["rayStartParams"]["resources"])) == {"NPU": resources["limits"][NPU]}
    assert resources["requests"] == resources["limits"]


@each
def test_pods_mount_volumes_that_they_have_at_paths_that_the_launch_names(path: Path) -> None:
    config = launch_of(path)
    assert config.store is not None
    assert config.store.trust.signing_key is not None
    named = [config.store.location, str(config.store.trust.signing_key)]
    named += map(str, config.store.trust.trusted_keys.values())
    for group, paths in (
        (cluster_of(path)["headGroupSpec"], [*named, "/etc/warmrank/launch.yaml"]),
        (workers_of(path), [*named, str(config.cache_dir), "/usr/local/Ascend/driver/version.info"]),
    ):
        mounts = container_of(group)["volumeMounts"]
        volumes = {volume["name"] for volume in group["template"]["spec"]["volumes"]}
        assert {mount["name"] for mount in mounts} == volumes
        for wanted in paths:
            assert any(f"{wanted}/".startswith(f"{mount['mountPath']}/") for mount in mounts), wanted


@each
def test_names_in_a_manifest_are_those_of_its_documents(path: Path) -> None:
    found = documents(path)
    (ray,) = (found[kind] for kind in ("RayJob", "RayCluster") if kind in found)
    volumes = {
        volume["name"]: volume
        for group in (cluster_of(path)["headGroupSpec"], workers_of(path))
        for volume in group["template"]["spec"]["volumes"]
    }
    assert volumes["launch"]["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    claim = volumes["store"]["persistentVolumeClaim"]["claimName"]
    assert claim == found["PersistentVolumeClaim"]["metadata"]["name"]
    assert ray["metadata"]["name"] in path.read_text().partition("\napiVersion:")[0]
