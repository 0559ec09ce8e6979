"""One rank of a launch, stage by stage, in this process."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import workloads
from tests.support.launching import rank_spec
from tests.support.ray_cluster import free_ports
from tests.support.stored import open_store
from warmrank.cache_store.cache_dir.marks import marks_of, permit_copies
from warmrank.cache_store.records.manifest import CaptureEntry
from warmrank.cache_store.store import Store
from warmrank.worker.errors import WorkloadError
from warmrank.worker.rank.rank_worker import RankWorker
from warmrank.worker.results import FunctionResult

pytestmark = pytest.mark.usefixtures("no_grad")

Warmed = Callable[..., RankWorker]
UNITS = ("Plain.affine", "Plain.scaled", "Plain.affine[1]")
LAUNCH_KEY = "0f" * 32


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store")


def built(cache: Path, store: Store | None = None, **changed: Any) -> RankWorker:
    rank = RankWorker(rank_spec(cache, **changed), store)
    rank.start()
    rank.build()
    return rank


def compiled(cache: Path, store: Store | None = None, **changed: Any) -> RankWorker:
    """A rank that compiled everything."""
    rank = built(cache, store, **changed)
    rank.probe()
    assert all(result.ok for result in rank.compile(UNITS))
    return rank


@pytest.fixture(scope="module")
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """By world size, a cache directory in which rank 0 compiled everything."""
    with torch.no_grad():
        caches = {size: tmp_path_factory.mktemp("compiled") / f"world{size}" for size in (1, 2)}
        for world_size, cache in caches.items():
            compiled(cache, world_size=world_size)
    return caches


@pytest.fixture
def warmed(compiled_once: dict[int, Path]) -> Warmed:
    """Makes a rank 0 that has loaded everything."""

    def make(cache: Path, store: Store | None = None, *, world_size: int = 1) -> RankWorker:
        shutil.copytree(compiled_once[world_size], cache)
        rank = built(cache, store, world_size=world_size)
        rank.probe()
        assert all(result.ok for result in rank.load(UNITS))
        return rank

    return make


@pytest.fixture
def offers(warmed: Warmed, cache: Path) -> dict[str, str]:
    """What rank 0 of two offers to the other rank, by function."""
    return {result.function: result.digest for result in warmed(cache, world_size=2).load(UNITS[:2])}


def called(rank: RankWorker) -> tuple[FunctionResult, ...]:
    """The results of all calls, one after the other."""
    answers = [rank.first_call(place) for place in range(1, len(UNITS) + 1)]
    return tuple(item for answer in answers for item in answer if isinstance(item, FunctionResult))


def capture_all(rank: RankWorker, planned: tuple[CaptureEntry, ...] = ()) -> list[FunctionResult]:
    """Take every step that a rank proposes."""
    return [result for step in rank.propose_captures(planned) for result in rank.capture(step)]


def outcomes(results: tuple[FunctionResult, ...]) -> list[str]:
    return [result.outcome if result.ok else f"failed: {result.reason}" for result in results]


# Start and build.


def test_build_gives_the_entrypoint_its_place_and_arguments(cache, monkeypatch):
    seen: list[Any] = []
    original: Callable[..., Any] = workloads.plain

    def spy(context: Any, **arguments: Any) -> Any:
        seen.extend((context, arguments))
        return original(context, **arguments)

    monkeypatch.setattr(workloads, "plain", spy)
    RankWorker(rank_spec(cache, rank=1, world_size=2, local_rank=1, arguments={"factor": 3}), None).build()
    context, arguments = seen
    assert (context.rank, context.world_size, context.local_rank) == (1, 2, 1)
    assert (context.device, context.groups) == (torch.device("cpu"), {})
    assert arguments == {"factor": 3}


@pytest.mark.parametrize(
    ("entrypoint", "said"),
    [
        ("tests.support.workloads", "is not 'module:function'"),
        ("tests.support.no_such_module:f", "does not import"),
        ("tests.support.workloads:no_such_function", "has no function 'no_such_function'"),
        (
            "tests.support.workloads:wrong",
            "returns int; expected a function that returns a warmrank.Workload",
        ),
    ],
)
def test_build_refuses_a_bad_entrypoint(cache: Path, entrypoint: str, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        RankWorker(rank_spec(cache, entrypoint=entrypoint), None).build()


def test_build_refuses_a_function_whose_cache_lies_elsewhere(tmp_path: Path, cache: Path) -> None:
    spec = rank_spec(cache, arguments={"cache_dir": str(tmp_path / "elsewhere")})
    with pytest.raises(
        WorkloadError, match=r"Plain.affine keeps its cache in .*elsewhere, .*; leave cache_dir out"
    ):
        RankWorker(spec, None).build()


# Probe.


def test_probe_of_the_own_partition_is_a_hit_with_the_digest(cache: Path) -> None:
    digests = [result.digest for result in compiled(cache).load(UNITS)]
    probes = built(cache).probe()
    assert {probe.state for probe in probes} == {"hit"}
    assert [probe.digest for probe in probes] == digests


# Compile.


def test_compile_that_fails_is_a_result_and_the_others_go_on(cache: Path) -> None:
    rank = built(cache, entrypoint="tests.support.workloads:half_unfit")
    bad, good = rank.compile(("Unfit.breaks", "Plain.affine"))
    assert (bad.ok, good.ok) == (False, True)
    assert bad.reason.startswith("GraphBreak: Unfit.breaks does not form one whole graph")
    assert not bad.guard_failed


# Load.


# Adopt.


def adopter(cache: Path, store: Store | None = None, **changed: Any) -> RankWorker:
    """Rank 1 of two, after its probe."""
    rank = built(cache, store, rank=1, world_size=2, **changed)
    rank.probe()
    return rank


def test_adopt_takes_the_artifact_of_another_rank_by_its_digest(cache: Path, offers: dict[str, str]) -> None:
    results = adopter(cache).adopt(offers)
    assert outcomes(results) == ["adopted", "adopted"]
    assert {result.reason for result in results} == {"same as world2global_rank0"}
    assert [result.digest for result in results] == list(offers.values())


def test_adopt_from_the_store_where_no_partition_has_it(tmp_path, store, offers, cache):
    store.put_blob(next(cache.rglob("affine/compiled_module")))
    (result,) = adopter(tmp_path / "other", store).adopt({"Plain.affine": offers["Plain.affine"]})
    assert (result.ok, result.outcome, result.reason) == (True, "adopted", "from the store")
    assert Path(result.path).is_relative_to(tmp_path / "other")


def test_artifact_that_is_handed_over_brings_the_marks_of_its_directory(tmp_path, offers, cache):
    permit_copies(cache, "require", ["0" * 32])
    name = "Plain.affine"
    handed = built(cache, world_size=2).hand_out({name: offers[name]})[name]
    assert handed is not None
    taker = adopter(tmp_path / "other")
    taker.take_in(name, handed)
    assert marks_of(tmp_path / "other") == marks_of(cache)
    assert outcomes(taker.adopt({name: offers[name]})) == ["adopted"]


def test_adopt_whose_guards_fail_is_a_result_that_says_so(cache: Path, offers: dict[str, str]) -> None:
    result = adopter(cache, arguments={"factor": 5}).adopt(offers)[0]
    assert (result.ok, result.guard_failed) == (False, True)
    assert result.reason == "self.factor: 2 -> 5"


# Capture, first call, verify.


def test_capture_leaves_the_models_buffers_as_they_were(cache: Path) -> None:
    rank = built(cache, entrypoint="tests.support.workloads:unchecked")
    rank.compile(("Cached.accumulate",))
    capture_all(rank)
    assert rank._workload is not None
    assert torch.equal(rank._workload.model.get_buffer("cache"), torch.zeros(8, 4))


def test_first_call_after_a_capture_captures_nothing_more(cache: Path, warmed: Warmed) -> None:
    rank = warmed(cache)
    capture_all(rank)
    called(rank)
    captures = {id(unit.variant.runner): unit.variant.runner for unit in rank._units.values() if unit.variant}
    assert sum(runner.statistics.captures for runner in captures.values()) == 3


# Manifest and publish.


@pytest.mark.filterwarnings("ignore:Skip cache as:UserWarning")
def test_manifest_leaves_out_a_function_that_abandoned_its_cache(cache: Path, store: Store) -> None:
    rank = compiled(cache, store, arguments={"dynamic": False, "on_recompile": "abandon"})
    assert {entry.function for entry in rank.manifest().artifacts} == {"Plain.scaled"}
    assert rank.publish(LAUNCH_KEY) is not None


def test_publish_puts_manifest_and_artifacts_into_the_store(cache, store, tmp_path, warmed):
    rank = warmed(cache, store)
    published = rank.publish(LAUNCH_KEY)
    assert published is not None
    ref = published.ref
    assert ref is not None
    assert store.fetch_partitions([ref], tmp_path / "node").faults == ()
    assert {path.relative_to(tmp_path / "node") for path in (tmp_path / "node").rglob("compiled_module")} == {
        path.relative_to(cache) for path in cache.rglob("compiled_module")
    }


def test_launch_of_a_warm_cache_traces_nothing(cache, monkeypatch, warmed):
    from warmrank.worker.compile import compiler

    warmed(cache)
    monkeypatch.setattr(compiler, "compile_call", None)
    rank = built(cache)
    rank.probe()
    rank.load(UNITS)
    capture_all(rank)
    assert {result.ok for result in called(rank)} == {True}
    assert rank.verify().ok


# Stop.


def test_stop_ends_the_process_groups_it_started(cache: Path) -> None:
    (port,) = free_ports(1)
    rank = RankWorker(rank_spec(cache, master_port=port, groups={"world": ((0,),), "tp": ((0,),)}), None)
    rank.start()
    try:
        assert sorted(rank._groups) == ["tp", "world"]
    finally:
        rank.stop()
    assert not torch.distributed.is_initialized()
