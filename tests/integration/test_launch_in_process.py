"""Whole launches with real workers in this process: cold, warm, another world, another node's disk."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.in_process import InProcessLauncher
from tests.support.launching import counts
from tests.support.made_reports import faults_of
from tests.support.stored import store_config
from warmrank.orchestrator.config.reading import Config, parse
from warmrank.orchestrator.errors import CompileForbidden, LaunchFailed
from warmrank.orchestrator.launch.driver import launch
from warmrank.orchestrator.launch.report import Report
from warmrank.orchestrator.stores import open_store, publish_late
from warmrank.orchestrator.ui.outputs import trace_json

ENTRYPOINT = "tests.support.tiny_workload:workload"


class House:
    """A store, and nodes with cache directories of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def config(self, num_ranks: int = 1, *, node: str = "n1", **changes: Any) -> Config:
        data: dict[str, Any] = {
            "name": "tiny",
            "workload": {"entrypoint": ENTRYPOINT},
            "ranks": num_ranks,
            "parallel": {"dp": num_ranks},
            "cache_dir": str(self.root / node),
            "store": store_config(self.root / "store"),
            **changes,
        }
        return parse(data)

    def launch(self, num_ranks: int = 1, *, no_compile: bool = False, **changes: Any) -> Report:
        return launch(self.config(num_ranks, **changes), no_compile=no_compile, launcher=InProcessLauncher())


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_warm_launch_loads_what_the_cold_one_compiled(house: House) -> None:
    cold, warm = house.launch(), house.launch()
    assert counts(cold) == (2, 0, 0)
    assert counts(warm) == (0, 2, 0)
    assert [faults_of(trace_json(report)) for report in (cold, warm)] == [[], []]


def test_cold_launch_publishes_all_bytes_of_its_artifacts_and_a_warm_one_none(house: House) -> None:
    cold, warm = house.launch(2).totals, house.launch(2).totals
    assert (cold.published_bytes, warm.published_bytes) == (cold.artifact_bytes, 0)
    assert cold.artifact_bytes > 0


def test_equal_ranks_compile_once(house: House) -> None:
    assert counts(house.launch(3)) == (2, 0, 4)


def test_new_node_fetches_from_the_store_and_compiles_nothing(house: House) -> None:
    house.launch(2)
    report = house.launch(2, node="n2", no_compile=True)
    assert counts(report) == (0, 4, 0)
    assert [(fetch.found, fetch.num_partitions) for fetch in report.fetches] == [(True, 2)]
    assert report.totals.fetched_bytes > 0


@pytest.mark.slow
def test_other_arguments_miss_and_no_compile_says_why(house: House) -> None:
    house.launch()
    with pytest.raises(CompileForbidden) as caught:
        house.launch(no_compile=True, workload={"entrypoint": ENTRYPOINT, "arguments": {"rows": 5}})
    assert {miss.function for miss in caught.value.misses} == {"Tiny.twice", "Tiny.increment"}
    assert all(miss.reason for miss in caught.value.misses)


def test_forbidden_compile_writes_nothing_into_the_store(house: House) -> None:
    with pytest.raises(CompileForbidden):
        house.launch(no_compile=True)
    store = house.config().store
    assert store is not None
    assert open_store(store).launches() == ()


def test_store_that_is_away_is_a_problem_not_a_failure(house: House) -> None:
    store = store_config(house.root / "file" / "store")
    (house.root / "file").write_text("no directory")
    report = house.launch(store=store)
    assert counts(report) == (2, 0, 0)
    assert report.record == ""
    assert any("launched without the store" in problem for problem in report.problems)


@pytest.mark.slow
def test_corrupt_artifact_is_replaced_from_the_store(house: House) -> None:
    cold = house.launch()
    path = Path(cold.ranks[0].functions[0].path)
    path.write_bytes(path.read_bytes()[:-1])
    assert counts(house.launch(no_compile=True))[0] == 0


@pytest.mark.slow
def test_lost_cache_directory_comes_back_from_the_store(house: House) -> None:
    house.launch()
    shutil.rmtree(house.root / "n1")
    assert counts(house.launch(no_compile=True)) == (0, 2, 0)


def test_entrypoint_that_does_not_import_fails_in_build(house: House) -> None:
    with pytest.raises(LaunchFailed, match="does not import") as caught:
        house.launch(workload={"entrypoint": "no_such_module:workload"})
    assert caught.value.stage == "build"


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Address of a server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        yield f"http://{host}:{port}"


def test_silent_object_store_is_waited_for_once(
    house: House, silent_server: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore", reason="object stores need the extra [s3]")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "made up")
    store = {
        "path": "s3://bucket/prefix",
        "answer_s": 0.3,
        "options": {"endpoint": silent_server, "allow_http": "true", "region": "nowhere"},
        "trust": {"policy": "off"},
    }
    report = house.launch(2, store=store)
    silences = [
        record for record in caplog.records if record.name == "warmrank.cache_store.backends.deadline"
    ]
    assert len(silences) == 1
    assert "no answer" in silences[0].getMessage()
    assert counts(report) == (2, 0, 2)
    assert (report.record, report.totals.num_queued, len(report.queued_on)) == ("", 2, 1)
    assert [tier.state for tier in report.tiers] == ["away"]


def test_store_that_comes_back_gets_what_was_compiled_without_it(house: House) -> None:
    (house.root / "disk").write_text("not mounted")
    store = store_config(house.root / "disk" / "store")
    house.launch(2, store=store)
    (house.root / "disk").unlink()
    published = publish_late(house.config(2, store=store))
    assert (len(published.published), len(published.committed), published.kept) == (2, 1, {})
    assert counts(house.launch(2, node="n2", store=store, no_compile=True)) == (0, 4, 0)
