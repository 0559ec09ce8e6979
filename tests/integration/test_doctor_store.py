"""A store in a bucket, as `doctor` looks at it: alive, and with a server that says nothing."""

from __future__ import annotations

import socket

from tests.support.s3_server import PATIENT_S, S3Server, new_prefix
from tests.support.stored import OFF
from warmrank.cache_store.connect import TierSpec, open_store
from warmrank.orchestrator.config.store import StoreConfig, TierConfig
from warmrank.orchestrator.doctor.look_store import look_at_places


def test_bucket_is_written_and_its_clock_is_read(s3_server: S3Server) -> None:
    place = new_prefix()
    tier = TierConfig(path=place, answer_s=PATIENT_S, options=dict(s3_server.options))
    spec = TierSpec(location=place, answer_s=PATIENT_S, options=s3_server.options)
    open_store([spec], trust=OFF)
    (found,), (clock,) = look_at_places(StoreConfig(tiers=(tier,)))
    assert (found.state, found.was_written, found.write_problem) == ("open", True, "")
    assert abs(clock.ahead_s) < 5.0


def test_server_that_says_nothing_is_left_alone(s3_server: S3Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        options = {"endpoint": f"http://127.0.0.1:{server.getsockname()[1]}", "region": "us-east-1"}
        tier = TierConfig(path="s3://bucket/store", answer_s=0.2, options=options)
        (found,), clocks = look_at_places(StoreConfig(tiers=(tier,)))
    assert found.state in {"silent", "refused"}
    assert clocks == ()
