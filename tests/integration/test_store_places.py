"""A node's own directory before an object store, and what the doctor says of both."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.launching import loaded_config
from tests.support.s3_server import PATIENT_S, S3Server, new_prefix
from tests.support.stored import OFF, publish_launch, tree
from warmrank.cache_store.backends.deadline import Tier, TierMode
from warmrank.cache_store.backends.object_store import ObjectBackend
from warmrank.cache_store.errors import StoreUnavailable
from warmrank.cache_store.store import TierSpec, open_store
from warmrank.orchestrator.config.store import StoreConfig, TierConfig
from warmrank.orchestrator.inspect.doctor import check_store, diagnose

pytestmark = pytest.mark.usefixtures("fresh_process")


@pytest.fixture
def near(tmp_path) -> TierSpec:
    return TierSpec(location=str(tmp_path / "near"), answer_s=PATIENT_S)


@pytest.fixture
def black_hole() -> Iterator[str]:
    """An endpoint that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def answering(server: S3Server) -> TierSpec:
    """A new place at a server, with patience for a slow machine."""
    return TierSpec(location=new_prefix(), answer_s=PATIENT_S, options=server.options)


def silent(endpoint: str, *, mode: TierMode = "rw") -> TierSpec:
    options = {"endpoint": endpoint, "region": "us-east-1"}
    return TierSpec(location="s3://bucket/store", mode=mode, answer_s=0.5, options=options)


def test_launch_goes_through_both_places(near, s3_server, tmp_path):
    far = answering(s3_server)
    record = publish_launch(open_store([near, far], trust=OFF), tmp_path / "source", world_size=2)
    for place in (near, far):
        store = open_store([place], trust=OFF)
        assert store.launches(record.launch_key) == (record,)
        outcome = store.fetch_partitions(record.partitions, tmp_path / f"from {place is near}")
        assert outcome.faults == ()
    assert [name for name in tree(tmp_path / "from True") if "compiled_module" in name] == [
        name for name in tree(tmp_path / "source") if "compiled_module" in name
    ]


def test_ping_of_an_object_store_is_answered_and_leaves_nothing(s3_server):
    backend = ObjectBackend(new_prefix(), answer_s=PATIENT_S, options=s3_server.options)
    before = {info.name for info in backend.list("")}
    tier = Tier(name="far", backend=backend)
    tier.ping()
    assert tier.state.state == "used"
    assert {info.name for info in backend.list("")} == before


def test_silent_server_is_left_out_and_the_near_place_serves(near, black_hole, s3_server, tmp_path):
    store = open_store([near, silent(black_hole)], trust=OFF)
    assert [tier.state for tier in store.tiers] == ["used", "away"]
    record = publish_launch(store, tmp_path / "source")
    assert store.launches(record.launch_key) == (record,)
    assert store.behind


def test_silent_server_that_is_required_ends_the_launch(near, black_hole, s3_server):
    with pytest.raises(StoreUnavailable) as caught:
        open_store([near, silent(black_hole, mode="required")], trust=OFF)
    assert caught.value.required


@pytest.mark.ray
@pytest.mark.slow
def test_every_node_answers_with_its_findings_and_its_clock(tmp_path: Path, cluster: str):
    found = diagnose(loaded_config(tmp_path, ray={"address": cluster}), None, all_nodes=True)
    (node,) = found.nodes
    levels = {finding.check: finding.level for finding in node.findings}
    checks = ("versions.import", "versions.facts", "network.ray", "clocks.driver", "store.reachable")
    assert [levels[check] for check in checks] == ["ok"] * len(checks)
    assert node.environment["torch"]
    assert [finding.level for finding in found.cluster] == ["ok"]


def test_bucket_is_written(s3_server: S3Server) -> None:
    place = new_prefix()
    options = dict(s3_server.options)
    open_store([TierSpec(location=place, answer_s=PATIENT_S, options=options)], trust=OFF)
    tier = TierConfig(path=place, answer_s=PATIENT_S, options=options)
    reachable, writable, _ = check_store(StoreConfig(tiers=(tier,)))
    assert (reachable.level, writable.check, writable.level) == ("ok", "store.writable", "ok")


def test_server_that_says_nothing_is_left_alone(s3_server: S3Server, black_hole: str) -> None:
    options = {"endpoint": black_hole, "region": "us-east-1"}
    tier = TierConfig(path="s3://bucket/store", answer_s=0.2, options=options)
    reachable, *_ = check_store(StoreConfig(tiers=(tier,)))
    assert (reachable.check, reachable.level) == ("store.reachable", "error")
