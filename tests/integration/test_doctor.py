"""`warmrank doctor` on a real Ray, and on a bucket: alive, and with a server that says nothing."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.support.launching import loaded_config
from tests.support.s3_server import PATIENT_S, S3Server, new_prefix
from tests.support.stored import OFF
from warmrank.cache_store.connect import TierSpec, open_store
from warmrank.orchestrator.config.store import StoreConfig, TierConfig
from warmrank.orchestrator.doctor.nodes import diagnose_nodes
from warmrank.orchestrator.doctor.storage import check_store


@pytest.mark.ray
@pytest.mark.slow
def test_every_node_answers_with_its_findings_and_its_clock(tmp_path: Path, cluster: str):
    found = diagnose_nodes(loaded_config(tmp_path, ray={"address": cluster}), None)
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


def test_server_that_says_nothing_is_left_alone(s3_server: S3Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        options = {"endpoint": f"http://127.0.0.1:{server.getsockname()[1]}", "region": "us-east-1"}
        tier = TierConfig(path="s3://bucket/store", answer_s=0.2, options=options)
        reachable, *_ = check_store(StoreConfig(tiers=(tier,)))
    assert (reachable.check, reachable.level) == ("store.reachable", "error")
