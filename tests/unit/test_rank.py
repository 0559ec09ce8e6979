"""One rank through the stages."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import warmrank
from tests.support import workloads
from tests.support.fake_rank import FUNCTIONS, FakeWorld
from tests.support.launching import rank_spec
from tests.support.ray_cluster import free_ports
from warmrank.cache_store.cache_dir.marks import mark_unverified, marks_of, permit_copies
from warmrank.cache_store.errors import NewerFormat, StoreUnavailable, UnusableCache
from warmrank.cache_store.store import Store
from warmrank.orchestrator.config.reading import parse
from warmrank.orchestrator.gang import rank_files
from warmrank.orchestrator.gang.launcher import Process, place_ranks
from warmrank.orchestrator.gang.rank_files import StepFile
from warmrank.orchestrator.gang.rank_host import RankHost, RankInit, answer, failure_of, init_of
from warmrank.worker.engines.graph import GraphEngine
from warmrank.worker.errors import ArtifactCorrupt, WorkloadError
from warmrank.worker.rank.manifests import unpacked
from warmrank.worker.rank.rank_worker import RankWorker
from warmrank.worker.results import FunctionResult
from warmrank.worker.runtime.artifact import parse as parse_artifact
from warmrank.worker.runtime.files import to_bytes

pytestmark = pytest.mark.usefixtures("no_grad")

UNITS = ("Plain.affine", "Plain.scaled", "Plain.affine[1]")


def no_store() -> None:
    """Open nothing."""


def built(cache: Path, store: Store | None = None, **changed: Any) -> RankWorker:
    rank = RankWorker(rank_spec(cache, **changed), lambda: store)
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
def compiled_by_rank_0(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory in which rank 0 of two compiled everything."""
    with torch.no_grad():
        compiled(path := tmp_path_factory.mktemp("compiled") / "cache", world_size=2)
    return path


@pytest.fixture
def offers(compiled_by_rank_0: Path, cache: Path) -> dict[str, str]:
    """What rank 0 of two offers to the other rank, by function; in a copy of its cache directory."""
    shutil.copytree(compiled_by_rank_0, cache)
    return {
        probe.function: probe.digest
        for probe in built(cache, world_size=2).probe()
        if probe.function in UNITS[:2]
    }


def outcomes(results: tuple[FunctionResult, ...]) -> list[str]:
    return [result.outcome if result.ok else f"failed: {result.reason}" for result in results]


def test_build_gives_the_entrypoint_its_place_and_arguments(cache, monkeypatch):
    seen: list[Any] = []
    original: Callable[..., Any] = workloads.plain

    def spy(context: Any, **arguments: Any) -> Any:
        seen.extend((context, arguments))
        return original(context, **arguments)

    monkeypatch.setattr(workloads, "plain", spy)
    RankWorker(
        rank_spec(cache, rank=1, world_size=2, local_rank=1, arguments={"factor": 3}), no_store
    ).build()
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
        ("tests.support.workloads:wrong", "what it returns is int; expected a warmrank.Workload"),
    ],
)
def test_build_refuses_a_bad_entrypoint(cache: Path, entrypoint: str, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        RankWorker(rank_spec(cache, entrypoint=entrypoint), no_store).build()


def test_build_refuses_a_function_whose_cache_lies_elsewhere(tmp_path: Path, cache: Path) -> None:
    spec = rank_spec(cache, arguments={"cache_dir": str(tmp_path / "elsewhere")})
    with pytest.raises(
        WorkloadError, match=r"Plain.affine keeps its cache in .*elsewhere, .*; leave cache_dir out"
    ):
        RankWorker(spec, no_store).build()


@pytest.mark.parametrize(("max_error", "is_ok"), [("0.5", True), ("0.6", False), ("nan", False)])
def test_check_is_ok_within_its_tolerance_only(cache: Path, max_error: str, is_ok: bool) -> None:
    rank = built(cache, entrypoint="tests.support.workloads:claims", arguments={"max_error": max_error})
    assert rank.verify().ok is is_ok


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


@pytest.mark.filterwarnings("ignore:Skip cache as:UserWarning")
def test_manifest_leaves_out_a_function_that_abandoned_its_cache(cache: Path, store: Store) -> None:
    rank = compiled(cache, store, arguments={"dynamic": False, "on_recompile": "abandon"})
    assert {entry.function for entry in unpacked(rank.partition().manifest).artifacts} == {"Plain.scaled"}


def test_stop_ends_the_process_groups_it_started(cache: Path) -> None:
    (port,) = free_ports(1)
    rank = RankWorker(rank_spec(cache, master_port=port, groups={"world": (0,), "tp": (0,)}), no_store)
    rank.start()
    try:
        assert sorted(rank._groups) == ["tp", "world"]
    finally:
        rank.stop()
    assert not torch.distributed.is_initialized()


def test_file_is_private_and_goes_when_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "rank0.step"
    step = StepFile(path)
    assert path.stat().st_mode & 0o777 == 0o600
    step.close()
    step.note("later")
    assert not path.exists()


_CHILD = """
import ctypes, sys
from pathlib import Path
from warmrank.orchestrator.gang import rank_files
rank_files.record_stacks(Path(sys.argv[1]))
def in_native_code():
    print("up", flush=True)
    ctypes.PyDLL(None).sleep(600)  # holds the interpreter's lock
in_native_code()
"""


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    path = tmp_path / "rank0.stacks"
    child = subprocess.Popen([sys.executable, "-c", _CHILD, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    yield child, path
    child.kill()
    child.wait()
    child.stdout.close()


def test_process_that_hangs_in_native_code_says_where(hung: tuple[subprocess.Popen[str], Path]) -> None:
    child, path = hung
    rank_files.ask_stacks({child.pid: path})
    said = rank_files.read_stacks(path)
    assert "in in_native_code" in said
    assert rank_files.crash_in(said) == ""


def init(tmp_path: Path, rank: int = 1, **changes: Any) -> RankInit:
    config = parse(
        {
            "workload": {"entrypoint": "models.tiny:workload", "arguments": {"layers": 2}},
            "ranks": 4,
            "parallel": {"tp": 2, "dp": 2},
            "cache_dir": str(tmp_path / "cache"),
            **changes,
        }
    )
    nodes = ["a", "a", "b", "b"]
    processes = [Process(node_id=node, host=node, address=node, pid=1) for node in nodes]
    placement = place_ranks(processes)[1][rank]
    return init_of(config, placement, master_addr="10.0.0.1", master_port=1234)


def test_settle_loads_and_adopts_in_one_call(tmp_path: Path) -> None:
    world = FakeWorld(held={(1, FUNCTIONS[0]): "d"}, known={"d": 0, "e": 0})
    host = RankHost(world.make_worker)
    host.open(init(tmp_path))
    results = host.settle((FUNCTIONS[0],), {FUNCTIONS[1]: "e"})
    assert [(found.function, found.outcome) for found in results] == [
        (FUNCTIONS[0], "loaded"),
        (FUNCTIONS[1], "adopted"),
    ]


def test_unverified_cache_is_refused_where_trust_is_required(tmp_path: Path) -> None:
    given = init(tmp_path, store={"path": str(tmp_path / "store")})
    RankHost(FakeWorld().make_worker).open(given)
    mark_unverified(Path(given.spec.cache_dir), "off")
    with pytest.raises(UnusableCache, match="use another cache_dir, or empty this one"):
        RankHost(FakeWorld().make_worker).open(given)


def test_refused_function_that_would_compile_is_told_apart(tmp_path: Path) -> None:
    host = RankHost(FakeWorld().make_worker)
    host.open(init(tmp_path))
    refused = FunctionResult(
        function="Model.f",
        ok=False,
        outcome="adopted",
        reason="CompileForbidden: Model.f would have to be",
        error="CompileForbidden",
    )
    host.worker.first_call = lambda _place: (refused,)  # type: ignore[method-assign, assignment]
    failure = answer(host, 1, "first_call", "first_call", (1,))
    assert (failure.kind, failure.function, failure.message) == (
        "CompileForbidden",
        "Model.f",
        "Model.f would have to be",
    )


def test_compile_that_raises_is_a_result_and_the_next_one_goes_on(tmp_path: Path) -> None:
    world = FakeWorld()
    host = RankHost(world.make_worker)
    host.open(init(tmp_path))
    real = host.worker.compile

    def compile_some(functions: tuple[str, ...]) -> Any:
        return real(functions) if functions != FUNCTIONS[:1] else 1 // 0

    host.worker.compile = compile_some  # type: ignore[method-assign]
    first, second = answer(host, 1, "compile", "compile", (FUNCTIONS,))
    assert (first.function, first.ok, first.outcome) == (FUNCTIONS[0], False, "compiled")
    assert first.reason.startswith("ZeroDivisionError: ")
    assert "(test_rank.py:" in first.reason
    assert (second.function, second.ok) == (FUNCTIONS[1], True)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (StoreUnavailable(what="store", where="/s", reason="away"), True),
        (NewerFormat(what="record", where="/s", found=2, supported=1), True),
        (UnusableCache(what="file", where="/c", expected="0600", actual="0666", remedy="chmod"), False),
        (OSError("away"), False),
    ],
)
def test_only_the_stores_own_errors_are_store_faults(error: Exception, *, expected: bool) -> None:
    assert failure_of(error, rank=0, stage="commit").store_fault is expected


ONE_FUNCTION = ("Plain.affine", "Plain.affine[1]")
WHY = "its code is not taken"


@pytest.fixture
def refused_cache(offers: dict[str, str], cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What rank 0 compiled, and an engine that takes no artifact that was broken."""
    load = GraphEngine.load

    def picky(self: GraphEngine, sections: Any, *args: Any, **kwargs: Any) -> Any:
        if "broken" in sections:
            raise ArtifactCorrupt(WHY, where="here", why=WHY)
        return load(self, sections, *args, **kwargs)

    monkeypatch.setattr(GraphEngine, "load", picky)
    return cache


def probed(cache: Path, *, rank: int = 0) -> RankWorker:
    worker = built(cache, rank=rank, world_size=2, local_rank=rank)
    worker.probe()
    return worker


def break_artifact(path: Path) -> None:
    artifact = parse_artifact(path.read_bytes(), str(path))
    path.write_bytes(to_bytes(replace(artifact, sections={**artifact.sections, "broken": b""})))


def file_of(cache: Path, rank: int) -> Path:
    return next(cache.glob("Plain_*")) / f"world2global_rank{rank}" / "affine" / "compiled_module"


def test_the_other_ranks_artifact_is_adopted_with_the_reason(refused_cache: Path) -> None:
    own = file_of(refused_cache, 1)
    shutil.copytree(file_of(refused_cache, 0).parent, own.parent)
    break_artifact(own)
    first, second = probed(refused_cache, rank=1).load(ONE_FUNCTION)
    assert (first.ok, first.outcome) == (True, "adopted")
    assert first.reason == f"{WHY}; fits world2global_rank0"
    assert second.digest == first.digest


def test_without_another_one_the_rank_compiles_and_later_launches_pass_over_what_was_refused(
    refused_cache: Path,
) -> None:
    break_artifact(file_of(refused_cache, 0))
    worker = probed(refused_cache)
    refused, _ = worker.load(ONE_FUNCTION)
    assert (refused.ok, refused.guard_failed, WHY in refused.reason) == (False, False, True)
    compiled, again = worker.compile(ONE_FUNCTION)
    assert (compiled.ok, compiled.outcome, compiled.reason) == (True, "compiled", WHY)
    assert again.digest == compiled.digest
    later, _ = probed(refused_cache).load(ONE_FUNCTION)
    assert (later.outcome, later.reason, later.digest) == ("loaded", WHY, compiled.digest)


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.nn.Linear(2, 2)(torch.ones(3)),
        warmrank.Call,
    ],
    ids=["torch", "warmrank"],
)
def test_error_that_a_user_s_line_led_to_in_torch_or_here_names_that_line(call: Callable[[], object]) -> None:
    with pytest.raises((RuntimeError, TypeError)) as raised:
        call()
    assert "(test_rank.py:" in failure_of(raised.value, rank=0, stage="build").message


class Odd(BaseException):
    """Of a user: no `Exception`, with names that our own errors have, and without a text."""

    function = results = print

    def __str__(self) -> str:
        raise RuntimeError


def test_whatever_a_rank_raises_is_a_failure_that_names_it(tmp_path: Path) -> None:
    def build() -> tuple[str, ...]:
        raise Odd

    host = RankHost(FakeWorld().make_worker)
    host.open(init(tmp_path))
    host.worker.build = build  # type: ignore[method-assign]
    failure = answer(host, 1, "build", "build", ())
    assert (failure.kind, failure.function, failure.results) == ("Odd", "", ())
    assert failure.message.startswith("(its text raises RuntimeError) (test_rank.py:")
