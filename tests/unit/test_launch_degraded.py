"""Launches while stores are away; what is known of a running one, how it is shown, who waits for whom."""

from __future__ import annotations

import io
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.support.backends import WaywardBackend, unavailable
from tests.support.fake_rank import FakeWorld
from tests.support.in_process import InProcessLauncher
from tests.support.launching import data_of, loaded_config
from tests.support.made_reports import failing, made_report, placements, result
from warmrank.cache_store import store as cache_store
from warmrank.cache_store.backends import deadline
from warmrank.cache_store.backends.deadline import TICK_S, Call, Ticks
from warmrank.cache_store.errors import StoreUnavailable
from warmrank.cache_store.layout import FORMAT_FILE
from warmrank.cache_store.publish_pending import pending
from warmrank.cache_store.signing.trust import PolicyChoice
from warmrank.orchestrator import stores
from warmrank.orchestrator.cli.console import ExitCode, exit_code_of
from warmrank.orchestrator.config import store as trust_module
from warmrank.orchestrator.config.models import Retries, launch_key
from warmrank.orchestrator.config.reading import Config, parse
from warmrank.orchestrator.config.store import StoreConfig
from warmrank.orchestrator.errors import (
    CLUSTER_LOST,
    DIED,
    NODE_LOST,
    STOPPED,
    TIMEOUT,
    Budget,
    CannotStart,
    CompileForbidden,
    LaunchFailed,
    OrchestratorError,
    WorkerFailure,
    causes_of,
)
from warmrank.orchestrator.launch import events as e
from warmrank.orchestrator.launch.driver import launch, reason_for_another, turn
from warmrank.orchestrator.launch.events import Event, LaunchState, Listener, StageStarted
from warmrank.orchestrator.launch.report import Report
from warmrank.orchestrator.stores import open_store, publish_late
from warmrank.orchestrator.ui.page import timeline_rows
from warmrank.orchestrator.ui.progress import PlainLines, progress
from warmrank.worker.results import FunctionResult

ANSWER_S = 0.1
PATIENT_S = 60.0


class FallsSilent:
    """A place of the store that falls silent when a stage begins."""

    def __init__(self, stage: str, place: WaywardBackend) -> None:
        self._stage, self._place = stage, place

    def __call__(self, state: LaunchState, event: Event) -> None:
        if isinstance(event, StageStarted) and event.stage == self._stage:
            self._place.hangs = True


class House:
    """A cache directory, and places of a store that can be taken away."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.world = FakeWorld()
        self.stores: list[Any] = []
        self.places: dict[str, WaywardBackend] = {"/store": WaywardBackend()}
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(cache_store, "open_backend", self._open)
        monkeypatch.setattr(Ticks, "until", self._until)
        self.new_process()

    @property
    def place(self) -> WaywardBackend:
        return self.places["/store"]

    def new_process(self) -> None:
        """Forget which places were silent, as a process that starts does."""
        self._monkeypatch.setattr(deadline, "_circuits", {})

    def comes_back(self, place: WaywardBackend) -> None:
        place.hangs, place.failure = False, None
        self.new_process()

    def config(self, **changes: Any) -> Config:
        store = {"path": "/store", "answer_s": ANSWER_S, "trust": {"policy": "off"}}
        workload = {"entrypoint": "models.tiny:workload"}
        return parse(data_of(self.root, **{"workload": workload, "store": store, **changes}))

    def launch(self, listener: Listener | None = None, **changes: Any) -> Report:
        launcher = InProcessLauncher(self._make_worker)
        return launch(self.config(**changes), listener=listener, launcher=launcher)

    def waiting(self) -> tuple[int, int]:
        found = pending(self.root / "cache")
        return len(found.partitions), len(found.launches)

    def _make_worker(self, spec: Any, open_store: Any) -> Any:
        self.stores.append(open_store())
        return self.world.make_worker(spec, open_store)

    def _until(self, call: Call[object]) -> Iterator[float]:
        """Time passes only while a place hangs: to answer late on a busy machine is no silence."""
        while not call.wait(TICK_S):
            if any(place.hangs for place in self.places.values()):
                yield TICK_S

    def _open(self, spec: cache_store.TierSpec, *, create: bool) -> WaywardBackend:
        del create
        place = self.places[spec.location]
        place.open(FORMAT_FILE).close()
        return place


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    made = House(tmp_path, monkeypatch)
    yield made
    for place in made.places.values():
        place.thaw()  # the threads that wait in it


def tiers(near: str = "rw", far: str = "rw") -> dict[str, Any]:
    places = [("/near", near, PATIENT_S), ("/far", far, ANSWER_S)]
    listed = [{"path": path, "mode": mode, "answer_s": answer_s} for path, mode, answer_s in places]
    return {"tiers": listed, "trust": {"policy": "off"}}


def test_silent_store_is_waited_for_once_and_by_the_driver_alone(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.place.hangs = True
    report = house.launch()
    assert house.place.calls == ["open"]
    assert house.stores == [None, None]
    # A place is left alone once: that costs its ``answer_s``, and nothing else waits.
    assert [record.name for record in caplog.records].count("warmrank.cache_store.backends.deadline") == 1
    assert report.totals.num_compiled == 2


@pytest.mark.parametrize("hangs", [False, True])
def test_record_says_in_which_environment_each_rank_ran(house: House, hangs: bool) -> None:
    first, other = {"cpu": "one"}, {"cpu": "another"}
    house.world.environments = {0: first, 1: other}
    house.place.hangs = hangs
    house.launch()
    if hangs:
        house.comes_back(house.place)
        publish_late(house.config())
    store = house.config().store
    assert store is not None
    (record,) = open_store(store).launches(launch_key(house.config()))
    assert [[ref.rank for ref in record.made_in(found)] for found in (first, other)] == [[0], [1]]


def test_what_cannot_be_signed_waits_where_only_the_place_of_a_store_that_is_away_asks_for_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = PolicyChoice(policy="require", reason="others can write it")
    monkeypatch.setattr(trust_module, "choose_policy", lambda _location: choice)
    house.place.hangs = True
    report = house.launch(store={"path": "/store", "answer_s": ANSWER_S})
    assert house.waiting() == (2, 1)
    assert not any(problem.startswith("not committed") for problem in report.problems)
    (told,) = [problem for problem in report.problems if "trust.policy" in problem]
    assert told.startswith(
        "warmrank store publish looks at the place again: the config sets no trust.policy, and require was "
        "chosen for /store: others can write it"
    )


REQUIRED = {"path": "/store", "mode": "required", "answer_s": ANSWER_S, "trust": {"policy": "off"}}


def test_required_store_that_is_away_stops_the_launch_before_any_rank_starts(house: House) -> None:
    house.place.hangs = True
    with pytest.raises(StoreUnavailable) as caught:
        house.launch(store=REQUIRED)
    for said in ("required store /store", "no answer within 0.1 s", "check that"):
        assert said in str(caught.value)
    assert exit_code_of(caught.value) == ExitCode.FAULT
    assert house.stores == []


def test_required_store_that_falls_silent_on_the_way_fails_the_launch(house: House) -> None:
    with pytest.raises(LaunchFailed) as caught:
        house.launch(FallsSilent("build", house.place), store=REQUIRED)
    assert caught.value.stage == "commit"
    assert "required store /store" in str(caught.value)
    assert exit_code_of(caught.value) == ExitCode.FAULT
    assert house.waiting() == (0, 0)


@pytest.mark.parametrize("is_silent", [True, False], ids=["silent", "full"])
def test_what_the_farther_place_lacks_is_published_to_it_later(house: House, is_silent: bool) -> None:
    house.places = {"/near": WaywardBackend(), "/far": WaywardBackend()}
    house.places["/far"].hangs = is_silent
    house.places["/far"].failure = None if is_silent else unavailable("No space left on device")
    house.places["/far"].fails_on = frozenset({"put_new"})
    report = house.launch(store=tiers())
    assert report.totals.num_queued == 2
    house.comes_back(house.places["/far"])
    publish_late(house.config(store=tiers()))
    assert len(list(house.places["/far"].list("launch/"))) == 1
    assert house.waiting() == (0, 0)


def store_of(*paths: Path | str, trust: dict[str, Any] | None = None, mode: str = "rw") -> StoreConfig:
    tiers = [{"path": str(path), "mode": mode, "answer_s": 60} for path in paths]
    store = {"tiers": tiers, "trust": {"policy": "off"} if trust is None else trust}
    found = parse({"workload": {"entrypoint": "a:b"}, "ranks": 1, "store": store}).store
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("choices", "expected"), [(("off", "off"), "off"), (("off", "require"), "require")], ids=str
)
def test_strictest_place_decides_the_policy(
    monkeypatch: pytest.MonkeyPatch, choices: tuple[str, str], expected: str
) -> None:
    answers = dict(zip(("/a", "/b"), choices, strict=True))
    monkeypatch.setattr(
        trust_module,
        "choose_policy",
        lambda place: PolicyChoice(policy=answers[place], reason=""),  # type: ignore[arg-type]
    )
    assert stores.decided(store_of("/a", "/b", trust={})).trust.policy == expected


def test_place_that_hangs_when_it_is_looked_at_asks_for_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def hang(place: str) -> PolicyChoice:
        released.wait()
        return PolicyChoice(policy="off", reason=place)

    monkeypatch.setattr(trust_module, "choose_policy", hang)
    monkeypatch.setattr(trust_module, "LOOK_S", 0.1)
    try:
        assert stores.decided(store_of("/a", trust={})).trust.policy == "require"
    finally:
        released.set()


def test_fetching_makes_nearer_places_but_not_the_farthest(tmp_path: Path) -> None:
    stores.open_store(store_of(tmp_path / "far"))
    opened = stores.open_to_fetch(store_of(tmp_path / "near", tmp_path / "far"))
    assert [tier.state for tier in opened.tiers] == ["used", "used"]
    with pytest.raises(StoreUnavailable):
        stores.open_to_fetch(store_of(tmp_path / "other", tmp_path / "absent"))
    assert not (tmp_path / "other").exists()
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize(
    ("num_ranks", "per_node", "num_rows"),
    [
        (8, 8, 8),
        (64, 8, 64),
        (256, 8, 32),
        *(pytest.param(*sizes, 0, marks=pytest.mark.slow) for sizes in ((4096, 8), (1024, 1), (1024, 1024))),
    ],
)
def test_rows_are_ranks_nodes_or_groups_that_are_few_and_lose_nobody(
    num_ranks: int, per_node: int, num_rows: int
) -> None:
    report = made_report(num_ranks, per_node=per_node)
    rows = timeline_rows(report.timeline, report.ranks, max_rows=64)
    assert num_rows in {0, len(rows)}
    assert 1 < len(rows) <= 64
    assert sorted(rank for row in rows for rank in row.ranks) == list(range(num_ranks))


def plain(heard: Iterable[e.Event]) -> list[str]:
    written, state = io.StringIO(), LaunchState(num_ranks=2)
    listener = PlainLines(Console(file=written, width=40))
    for event in heard:
        state.apply(event)
        listener(state, event)
    return written.getvalue().splitlines()


def test_terminal_that_cannot_move_its_cursor_gets_lines() -> None:
    dumb = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    with progress(dumb, 2) as listener:
        assert isinstance(listener, PlainLines)


def told(result_of: FunctionResult, *ranks: int) -> list[e.Event]:
    return [e.FunctionFinished(at_s=1.0, stage="load", rank=rank, result=result_of) for rank in ranks]


def stage(name: str, *ranks: int, at_s: float = 0.0) -> e.StageStarted:
    return e.StageStarted(at_s=at_s, stage=name, ranks=ranks)


ONE_HOST = e.Placed(
    at_s=0.0,
    placements=tuple(
        replace(placement, host="vm", node_id=f"{placement.rank}f{54 * '0'}")
        for placement in placements(2, 1)
    ),
)
LOADED = e.StageFinished(at_s=1.5, stage="load", seconds=1.5)
ADOPTED = result("Model.decode", compiled=False)
REFUSED = FunctionResult(function="f", ok=False, outcome="adopted", reason="a guard does not hold")


@pytest.mark.parametrize(
    ("heard", "line"),
    [
        ([stage("build", 0, 1, 2)], "build: on ranks 0-2"),
        ([LOADED], "load: 1.50 s"),
        ([*told(ADOPTED, 1, 2, 3), LOADED], "  Model.decode adopted on ranks 1-3 (from rank 0)"),
        ([*told(REFUSED, 0), LOADED], "  f refused on rank 0 (a guard does not hold)"),
        ([ONE_HOST], "2 ranks on 2 nodes: vm 0f0000000000, vm 1f0000000000"),
        (failing(8), "attempt 1 failed in stage compile"),
        (failing(8), "    rank 0: node lost"),
        (failing(8), "attempt 2, because attempt 1 failed: node node-0 was lost"),
    ],
)
def test_plain_lines_tell_what_happens_once_without_wrapping(heard: Iterable[e.Event], line: str) -> None:
    assert plain(heard).count(line) == 1


def failure(rank: int, kind: str, message: str = "m", function: str = "") -> WorkerFailure:
    return WorkerFailure(rank=rank, stage="load", kind=kind, message=message, function=function)


def test_equal_failures_are_one_cause_with_its_ranks_and_nodes_in_order() -> None:
    (cause,) = causes_of([failure(3, "OSError"), failure(1, "OSError")], {1: "n1", 3: "n2"})
    assert (cause.ranks, cause.kind, cause.hosts) == ((1, 3), "OSError", ("n1", "n2"))


def test_what_others_fail_in_the_wake_of_comes_first() -> None:
    kinds = ("OSError", TIMEOUT, STOPPED, DIED, NODE_LOST, CLUSTER_LOST)
    found = causes_of([failure(rank, kind) for rank, kind in enumerate(kinds)], {})
    assert [cause.kind for cause in found] == list(reversed(kinds))


def failed(*kinds: str) -> LaunchFailed:
    failures = [
        WorkerFailure(rank=rank, stage="capture", kind=kind, message=f"message of {kind}")
        for rank, kind in enumerate(kinds)
    ]
    return LaunchFailed("capture", failures, num_ranks=4)


@pytest.mark.parametrize(
    ("error", "budget"),
    [
        (failed(DIED), "rank"),
        (failed(NODE_LOST, NODE_LOST), "node"),
        (failed(STOPPED), "hang"),
        (failed(TIMEOUT), "hang"),
        (failed("DistBackendError"), "hang"),
        (failed("PortInUse", TIMEOUT, "DistNetworkError"), "start"),
        (CannotStart("silent", budget="node"), "node"),
        (failed("RuntimeError", DIED), "rank"),  # the others fail in the wake of the dead one
        (failed(TIMEOUT, "DistBackendError", NODE_LOST), "node"),
        (CannotStart("late", budget="start"), "start"),
        (failed("WorkloadError"), None),
        (failed("RuntimeError"), None),
        (failed(CLUSTER_LOST, DIED), None),
        (CannotStart("too few CPUs"), None),
        (CompileForbidden([("f", "r", 0)]), None),
    ],
)
def test_failure_counts_against_its_budget(error: OrchestratorError, budget: str | None) -> None:
    assert error.budget == budget


def test_each_budget_is_spent_by_its_own_failures_only() -> None:
    retries, spent = Retries(rank=1, node=2, hang=0), Counter[Budget]()
    kinds = (DIED, NODE_LOST, DIED, NODE_LOST, NODE_LOST, STOPPED)
    reasons = [reason_for_another(failed(kind), retries, spent) for kind in kinds]
    assert [bool(reason) for reason in reasons] == [True, True, False, True, False, False]


@pytest.mark.parametrize("error", [failed(DIED), failed(CLUSTER_LOST), CannotStart("late", budget="start")])
def test_launch_that_another_one_may_mend_is_lost(error: LaunchFailed | CannotStart) -> None:
    assert error.is_lost


def test_second_launch_waits_for_the_first_on_an_empty_cache_and_later_ones_do_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    config, order, waits = loaded_config(tmp_path), [], threading.Event()

    def note(_record: logging.LogRecord) -> bool:
        waits.set()
        return True

    caplog.handler.addFilter(note)

    def second() -> None:
        with turn(config):
            order.append("second")

    with pytest.raises(RuntimeError), turn(config):
        raise RuntimeError  # who failed leaves the first turn to the next
    thread = threading.Thread(target=second)
    with turn(config):
        thread.start()
        assert waits.wait(60)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]
    assert "waiting for its end" in caplog.text
    caplog.clear()
    with turn(config), turn(config):
        pass
    assert not caplog.records


def test_launches_that_waited_for_the_first_go_on_side_by_side(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    config, num_waiting, beside = loaded_config(tmp_path), threading.Semaphore(0), threading.Barrier(2)
    met: list[int] = []

    def note(_record: logging.LogRecord) -> bool:
        num_waiting.release()
        return True

    def later() -> None:
        with turn(config):
            met.append(beside.wait(30))

    caplog.handler.addFilter(note)
    threads = [threading.Thread(target=later) for _ in range(2)]
    with turn(config):
        for thread in threads:
            thread.start()
        assert all(num_waiting.acquire(timeout=60) for _ in threads)
    for thread in threads:
        thread.join(60)
    assert sorted(met) == [0, 1]
