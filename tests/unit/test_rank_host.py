"""The edge of a rank: what it calls, and what failures become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_rank import FUNCTIONS, FakeWorld
from warmrank.cache_store.cache_dir.marks import mark_unverified
from warmrank.cache_store.errors import NewerFormat, StoreUnavailable, UnusableCache
from warmrank.orchestrator.config.reading import parse
from warmrank.orchestrator.gang.launcher import Process, seat_ranks
from warmrank.orchestrator.gang.rank_host import RankHost, RankInit, answer, failure_of
from warmrank.worker.results import FunctionResult


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
    seat = seat_ranks(processes)[1][rank]
    return RankInit(config=config, seat=seat, master_addr="10.0.0.1", master_port=1234, no_compile=False)


def test_settle_loads_and_adopts_in_one_call(tmp_path: Path) -> None:
    world = FakeWorld(held={(1, FUNCTIONS[0]): "d"}, known={"d": 0, "e": 0})
    host = RankHost(world.make_worker)
    host.open(init(tmp_path))
    results = host.call("settle", ((FUNCTIONS[0],), {FUNCTIONS[1]: "e"}))
    assert [(found.function, found.outcome) for found in results] == [
        (FUNCTIONS[0], "loaded"),
        (FUNCTIONS[1], "adopted"),
    ]


def test_unverified_cache_is_refused_where_trust_is_required(tmp_path: Path) -> None:
    given = init(tmp_path, store={"path": str(tmp_path / "store")})
    RankHost(FakeWorld().make_worker).open(given)
    mark_unverified(given.config.cache_dir, "off")
    with pytest.raises(UnusableCache):
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
    host._worker.first_call = lambda _place: (refused,)
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
    real = host._worker.compile

    def compile_some(functions: tuple[str, ...]) -> Any:
        return real(functions) if functions != FUNCTIONS[:1] else 1 // 0

    host._worker.compile = compile_some
    first, second = answer(host, 1, "compile", "compile", (FUNCTIONS,))
    assert (first.function, first.ok, first.outcome) == (FUNCTIONS[0], False, "compiled")
    assert first.reason.startswith("ZeroDivisionError: ")
    assert "(test_rank_host.py:" in first.reason
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
