"""Whole launches with real workers in this process: cold, warm, in other worlds, until nothing is new."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from torch import nn

from tests.support.checkout import printed_by
from tests.support.in_process import InProcessLauncher
from tests.support.launching import ENTRYPOINT, House, counts
from tests.support.made_reports import faults_of
from tests.support.stored import store_config
from warmrank.cache_store.backends.directory import DirectoryBackend
from warmrank.orchestrator.config.reading import parse
from warmrank.orchestrator.errors import CompileForbidden, LaunchFailed
from warmrank.orchestrator.inspect.explain import explain_here
from warmrank.orchestrator.launch.driver import Launch, launch
from warmrank.orchestrator.launch.events import Event, LaunchState, StageFinished
from warmrank.orchestrator.launch.report import Report
from warmrank.orchestrator.stores import open_store, publish_late
from warmrank.orchestrator.ui.outputs import trace_json

NUM_FUNCTIONS = 2


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_cold_launch_compiles_and_publishes_and_a_warm_one_only_loads(house: House) -> None:
    cold, warm = house.launch(2), house.launch(2)
    assert (counts(cold), counts(warm)) == ((2, 0, 2), (0, 4, 0))
    assert [faults_of(trace_json(report)) for report in (cold, warm)] == [[], []]
    assert cold.totals.artifact_bytes > 0
    assert [each.totals.published_bytes for each in (cold, warm)] == [cold.totals.artifact_bytes, 0]


def test_new_node_fetches_from_the_store_and_compiles_nothing(house: House) -> None:
    house.launch(2)
    report = house.launch(2, node="n2", no_compile=True)
    assert counts(report) == (0, 4, 0)
    assert [(fetch.found, fetch.num_partitions) for fetch in report.fetches] == [(True, 2)]
    assert report.totals.fetched_bytes > 0


_FAILS_ON_RANK_0 = """
import os, torch
from warmrank.inference import cache_compile

class Twice(torch.nn.Module):
    def forward(self, x):
        return x * 2

cache_compile(Twice().forward)(torch.ones(2))
raise SystemExit(os.environ["RANK"] == "0")
"""


def test_report_of_a_script_that_failed_counts_what_each_rank_got(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_FAILS_ON_RANK_0)
    data = {"workload": {"script": str(script)}, "ranks": 2, "cache_dir": str(tmp_path / "cache")}
    data["parallel"] = {"tp": 2}
    failing = Launch(parse(data), launcher=InProcessLauncher())
    with pytest.raises(LaunchFailed) as caught:
        failing.run()
    assert counts(failing.failed(caught.value, exit_code=1)) == (1, 1, 0)


@pytest.mark.slow
def test_other_arguments_miss_and_no_compile_says_why(house: House) -> None:
    house.launch()
    with pytest.raises(CompileForbidden) as caught:
        house.launch(no_compile=True, workload={"entrypoint": ENTRYPOINT, "arguments": {"rows": 5}})
    assert {miss.function for miss in caught.value.misses} == {"Tiny.twice", "Tiny.increment"}
    assert all(miss.reason for miss in caught.value.misses)


@pytest.mark.parametrize(
    ("engine", "outlook"), [("auto", "load"), ("graph", "load"), ("aoti", "compile"), ("torchair", "compile")]
)
def test_explain_promises_no_load_of_what_another_engine_compiled(
    house: House, engine: str, outlook: str
) -> None:
    house.launch()
    found = explain_here(house.config(engine=engine))
    assert found.outlook == outlook
    assert found.verdict.startswith(outlook)
    assert ("stored for engine graph" in found.verdict) == (outlook == "compile")


def test_forbidden_compile_writes_nothing_into_the_store(house: House) -> None:
    with pytest.raises(CompileForbidden):
        house.launch(no_compile=True)
    store = house.config().store
    assert store is not None
    assert open_store(store).launches() == ()


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["artifact", "directory"])
def test_what_the_disk_has_lost_comes_back_from_the_store(house: House, damage: str) -> None:
    path = Path(house.launch().ranks[0].functions[0].path)
    if damage == "artifact":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        shutil.rmtree(house.root / "n1")
    assert house.launch(no_compile=True).totals.num_compiled == 0


def test_entrypoint_that_does_not_import_fails_in_build(house: House) -> None:
    with pytest.raises(LaunchFailed, match="does not import") as caught:
        house.launch(workload={"entrypoint": "no_such_module:workload"})
    assert caught.value.stage == "build"


def test_silent_object_store_is_waited_for_once(
    house: House, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore", reason="object stores need the extra [s3]")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "made up")
    with socket.create_server(("127.0.0.1", 0)) as server:  # it takes connections and never says a word
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        store = {
            "path": "s3://bucket/prefix",
            "answer_s": 0.3,
            "options": {"endpoint": endpoint, "allow_http": "true", "region": "nowhere"},
            "trust": {"policy": "off"},
        }
        report = house.launch(2, store=store)
    said_by = "warmrank.cache_store.backends.deadline"
    silences = [record for record in caplog.records if record.name == said_by]
    assert len(silences) == 1
    assert "no answer" in silences[0].getMessage()
    assert counts(report) == (2, 0, 2)
    assert (report.record, report.totals.num_queued, len(report.queued_on)) == ("", 2, 1)
    assert [tier.state for tier in report.tiers] == ["away"]


def test_store_that_is_away_is_a_problem_and_gets_later_what_was_compiled_without_it(house: House) -> None:
    (house.root / "disk").write_text("not mounted")
    store = store_config(house.root / "disk" / "store")
    report = house.launch(2, store=store)
    assert (counts(report), report.record) == ((2, 0, 2), "")
    assert any("launched without the store" in problem for problem in report.problems)
    (house.root / "disk").unlink()
    published = publish_late(house.config(2, store=store))
    assert (len(published.published), len(published.committed), published.kept) == (2, 1, {})
    assert counts(house.launch(2, node="n2", store=store, no_compile=True)) == (0, 4, 0)


AB = ("a", "a", "b", "b")


@pytest.fixture
def blobs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The blobs that were read from a store."""
    found: list[str] = []
    real = DirectoryBackend.open

    def opened(backend: DirectoryBackend, name: str) -> BinaryIO:
        found.extend([name] if name.startswith("cas/") else [])
        return real(backend, name)

    monkeypatch.setattr(DirectoryBackend, "open", opened)
    return found


def fetching(report: Report) -> list[str]:
    """Nodes that copied something from the store."""
    return [fetch.host for fetch in report.fetches if fetch.bytes_copied]


def test_equal_ranks_on_two_nodes_compile_once_each_function_on_its_own_node(
    house: House, blobs: list[str]
) -> None:
    report = house.launch_on(AB)
    assert counts(report) == (NUM_FUNCTIONS, 0, NUM_FUNCTIONS * 3)
    leaders = [rank.host for rank in report.ranks for found in rank.functions if found.outcome == "compiled"]
    assert leaders == ["a", "b"]
    assert len(blobs) == NUM_FUNCTIONS  # each node takes from the store what the other compiled


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "fetch"),
    [
        ((*AB, "c", "c", "d"), ["c", "d"]),
        (("b",), []),
        (("a", "a", "e", "e"), ["e"]),
    ],
    ids=["more", "fewer", "one replaced"],
)
def test_other_nodes_compile_nothing_and_only_new_ones_fetch_each_blob_once(
    house: House, blobs: list[str], nodes: tuple[str, ...], fetch: list[str]
) -> None:
    house.launch_on(AB)
    blobs.clear()
    report = house.launch_on(nodes)
    assert (report.totals.num_compiled, fetching(report)) == (0, fetch)
    assert len(blobs) == NUM_FUNCTIONS * len(fetch)


@pytest.mark.slow
def test_other_places_of_ranks_compile_nothing(house: House) -> None:
    house.launch_on(AB)
    assert house.launch_on(("b", "b", "a", "a")).totals.num_compiled == 0


@pytest.mark.slow
def test_launch_while_the_ranks_of_another_are_there_costs_only_what_is_new(
    house: House, blobs: list[str]
) -> None:
    beside: list[Report] = []

    def when_committed(_state: LaunchState, event: Event) -> None:
        if isinstance(event, StageFinished) and event.stage == "commit":
            blobs.clear()
            # Of an empty cache directory on the driver's machine the first would have the first turn.
            beside.append(house.launch_on(("c", "c"), cache_dir=str(house.root / "beside")))

    first = house.launch_on(AB, listener=when_committed)
    (second,) = beside
    assert (first.totals.num_compiled, second.totals.num_compiled) == (NUM_FUNCTIONS, 0)
    assert fetching(second) == ["c"]
    assert len(blobs) == NUM_FUNCTIONS


def num_rounds(report: Report) -> int:
    return len({found.round for found in report.timeline.classes})


def test_without_a_store_nodes_get_from_each_other_what_one_of_them_compiled(house: House) -> None:
    nodes = ("a", "a", "b", "c")
    report = house.launch_on(nodes, store=None)
    assert (report.totals.num_compiled, num_rounds(report)) == (NUM_FUNCTIONS, 1)
    reasons = {found.reason for found in report.ranks[-1].functions if found.outcome == "adopted"}
    assert reasons == {"from another rank"}
    assert house.launch_on((*nodes, "d"), store=None, no_compile=True).totals.num_compiled == 0


def workload(name: str, **arguments: Any) -> dict[str, Any]:
    return {"entrypoint": f"tests.support.workloads:{name}", "arguments": arguments}


@pytest.mark.slow
def test_classes_that_no_request_shows_compile_once_each_in_two_rounds(tmp_path: Path) -> None:
    house = House(tmp_path, workload=workload("by_rank", num_kinds=4))
    report = house.launch_on(("a", "a", "b", "b", "c"))
    assert (counts(report), num_rounds(report)) == ((4, 0, 1), 2)
    first, second, *_ = (found.reason for rank in report.ranks for found in rank.functions)
    assert first == "the cache holds nothing for Plain.affine"
    assert second.startswith(f"{first}; ")
    assert second.endswith(" refused: self.factor: 2 -> 3")
    assert house.launch_on(("b", "d")).totals.num_compiled == 0


@pytest.mark.slow
def test_rank_whose_own_class_does_not_compile_is_the_only_one_that_is_given_up(house: House) -> None:
    with pytest.raises(LaunchFailed) as caught:
        house.launch_on(AB, workload=workload("picky", broken=[0]))
    # Rank 0 refuses what another rank compiled: its guards make it a class of its own.
    assert {(failure.rank, failure.function) for failure in caught.value.failures} == {(0, "Picky.fragile")}
    assert "for rank 0;" in str(caught.value)


def test_launch_after_a_failed_compile_compiles_only_what_failed(house: House) -> None:
    with pytest.raises(LaunchFailed) as caught:
        house.launch_on(AB, workload=workload("picky", broken=[0, 1, 2, 3]))
    assert [failure.kind for failure in caught.value.failures] == ["GraphBreak", "GraphBreak"]
    # Node e is new: ranks of node a offer it what no manifest of the store names.
    report = house.launch_on(("a", "a", "e", "e"), workload=workload("picky", broken=[]))
    compiled = [
        found.function for rank in report.ranks for found in rank.functions if found.outcome == "compiled"
    ]
    assert compiled == ["Picky.fragile"]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_each_stage_compiles_once_and_other_sizes_of_the_world_compile_nothing(tmp_path: Path) -> None:
    sizes = {"layers": 2, "dim": 32, "heads": 4, "kv_heads": 2, "hidden": 32}
    staged = {"entrypoint": "warmrank.examples.llama_stage:workload", "arguments": sizes}

    def launched(node: str, dp: int, **changes: Any) -> Report:
        more = {
            "workload": staged,
            "parallel": {"tp": 2, "pp": 2, "dp": dp},
            "ray": {"num_cpus": 4, "num_cpus_per_rank": 0.5},
        }
        return launch(House(tmp_path).config(4 * dp, node=node, **more, **changes))

    cold = launched("first", 2)
    assert (cold.totals.num_compiled, cold.totals.num_adopted) == (2, 6)
    leaders = [rank.rank for rank in cold.ranks for found in rank.functions if found.outcome == "compiled"]
    assert [rank // 2 % 2 for rank in leaders] == [0, 1]  # one in each stage
    assert launched("second", 1, no_compile=True).totals.num_compiled == 0
    again = launched("third", 2, no_compile=True)
    assert (again.totals.num_compiled, again.totals.num_loaded) == (0, 8)
    assert all(rank.verification is not None and rank.verification.ok for rank in again.ranks)


@pytest.fixture
def modules_as_before() -> Iterator[None]:
    """Transformers leaves a function in `nn.Module`, which is a condition of all that is compiled later."""
    yield
    if "smart_apply" in vars(nn.Module):
        delattr(nn.Module, "smart_apply")


@pytest.mark.usefixtures("modules_as_before")
@pytest.mark.parametrize(
    ("entrypoint", "arguments", "num_variants"),
    [
        ("lazy", {}, 2),
        ("counting", {"limit": 100}, 1),
        pytest.param("marking", {"limit": 2}, 3, marks=pytest.mark.slow),
        pytest.param("growing", {}, 3, marks=pytest.mark.slow),
        pytest.param("decoder", {"cache": "static"}, 4, marks=pytest.mark.slow),
        pytest.param("decoder", {"cache": "dynamic"}, 4, marks=pytest.mark.slow),
        pytest.param("within", {}, 4, marks=pytest.mark.slow),
        pytest.param("grown", {}, 2, marks=pytest.mark.slow),
        ("elsewhere", {"place": "dict"}, 2),
        pytest.param("elsewhere", {"place": "check"}, 2, marks=pytest.mark.slow),
        pytest.param("elsewhere", {"place": "thread"}, 2, marks=pytest.mark.slow),
    ],
)
def test_an_empty_node_needs_no_compile_after_a_launch_that_settled(
    tmp_path: Path, entrypoint: str, arguments: dict[str, Any], num_variants: int
) -> None:
    house = House(tmp_path, workload=workload(entrypoint, **arguments))
    cold = house.launch(2)
    assert (cold.totals.num_compiled, cold.totals.num_adopted) == (num_variants, num_variants)
    for num_ranks in (2, 3, 1):
        warm = house.launch(num_ranks, node=f"new{num_ranks}", no_compile=True)
        assert warm.totals.num_compiled == 0
        assert {len({each.digest for each in rank.functions}) for rank in warm.ranks} == {num_variants}


def test_function_that_keeps_its_artifacts_elsewhere_is_refused(house: House) -> None:
    own = str(house.root / "own")
    with pytest.raises(LaunchFailed, match=r"Within.tripled keeps its cache in .*own, but the launch in"):
        house.launch(1, workload=workload("outside", cache_dir=own))


def test_call_that_misses_after_others_ran_is_forbidden_too(house: House) -> None:
    house.launch(1, workload=workload("lazy"))
    with pytest.raises(CompileForbidden, match=r"Grown\.prefill"):
        house.launch(1, node="new", workload=workload("grown"), no_compile=True)


def test_calls_that_never_settle_end_the_launch(house: House) -> None:
    with pytest.raises(LaunchFailed, match=r"Marking.forward.*self.marks: '\.*' -> '\.*'") as failed:
        house.launch(2, workload=workload("marking", limit=100))
    assert "keep what changes from call to call in a tensor" in str(failed.value)
    assert not list((house.root / "store").rglob("launches/*/*"))


@pytest.mark.parametrize(
    ("what", "printed"),
    [
        ("collectives", "equal"),
        ("apart", "equal"),
        ("sending", "equal"),
        pytest.param("llama", "heads=2", marks=pytest.mark.slow),
    ],
)
def test_two_ranks_equal_eager(tmp_path: Path, what: str, printed: str) -> None:
    said = printed_by("tests.support.two_ranks", str(tmp_path / "store"), what, OMP_NUM_THREADS="1")
    assert said.split() == [printed] * 2
