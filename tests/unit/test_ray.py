"""Launches on Ray: session, resources, ranks, errors."""

from __future__ import annotations

import ctypes
import os
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import exceptions

from tests.support.processes import marked
from warmrank.orchestrator import leaving, reaper
from warmrank.orchestrator.causes import NODE_LOST, WorkerFailure
from warmrank.orchestrator.cli.console import ExitCode, exit_code_of
from warmrank.orchestrator.config.models import RayConfig
from warmrank.orchestrator.config.reading import parse
from warmrank.orchestrator.errors import CannotStart, LacksDevice
from warmrank.orchestrator.gang import ray_launcher, ray_session, reservation
from warmrank.orchestrator.gang.launcher import ProcessStatus
from warmrank.orchestrator.gang.node_group import failure_of_ray
from warmrank.orchestrator.gang.node_watch import Batches
from warmrank.orchestrator.gang.ray_launcher import RayLauncher
from warmrank.orchestrator.gang.ray_session import way_in
from warmrank.orchestrator.reaper_client import ReapedRanks
from warmrank.orchestrator.signals import Terminated, sigterm_raises

LONG_S = 600.0
HERE = RayConfig()
THERE = RayConfig(address="10.0.0.1:6379")
JOB = {"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}", "RAY_ADDRESS": "10.0.0.1:6379"}


@pytest.fixture(autouse=True)
def _stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens to a Ray here, this process goes on."""
    monkeypatch.setattr(leaving, "_at_once", [])


@pytest.mark.parametrize(
    ("config", "environ", "initialized", "expected"),
    [
        (HERE, {}, False, "local"),
        (HERE, {"RAY_ADDRESS": ""}, False, "local"),
        (HERE, {"RAY_ADDRESS": "10.0.0.1:6379"}, False, "address"),
        (THERE, {}, False, "address"),
        (HERE, JOB, False, "job"),
        (THERE, JOB, False, "job"),
        (HERE, {}, True, "initialized"),
        (THERE, JOB, True, "initialized"),
    ],
)
def test_way_in_follows_config_and_environment(
    config: RayConfig, environ: dict[str, str], expected: str, *, initialized: bool
) -> None:
    assert way_in(config, environ, initialized=initialized) == expected


@pytest.mark.parametrize(
    ("device", "expected"),
    [("cpu", {"CPU": 0.5}), ("cuda", {"CPU": 0.5, "GPU": 1.0}), ("npu", {"CPU": 0.5, "NPU": 1.0})],
)
def test_each_rank_asks_for_one_accelerator(device: str, expected: dict[str, float]) -> None:
    config = RayConfig(num_cpus_per_rank=0.5)
    assert ray_session.rank_resources(config, device) == expected


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[threading.Event]:
    """A Ray that never comes up; set when it has begun to."""
    begun, over = threading.Event(), threading.Event()

    def join(*_arguments: object) -> None:
        begun.set()
        over.wait()

    monkeypatch.setattr(ray_session, "join", join)
    monkeypatch.setattr(ray_session, "_is_initialized", lambda: False)  # another test's Ray may be up
    monkeypatch.setattr(ray_session, "_short_temp_dir", lambda: tempfile.mkdtemp(dir=tmp_path))
    yield begun
    over.set()


def test_ray_that_does_not_come_up_in_time_is_given_up_and_leaves_nothing(
    hanging: threading.Event, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mark = uuid.uuid4().hex
    monkeypatch.setenv("WARMRANK_TEST", mark)
    with pytest.raises(CannotStart, match="a local Ray was not up after 0 s") as caught:
        ray_session.enter(HERE, timeout_s=0.1)
    assert hanging.wait(LONG_S)
    assert "timeouts.start_s" in str(caught.value)
    assert not caught.value.may_pass  # another attempt would meet the first one in this process
    assert list(tmp_path.iterdir()) == []
    assert [command for command in marked(mark).values() if reaper.__file__ in command] == []
    assert leaving._at_once


def test_sigterm_is_heeded_while_ray_does_not_come_up(hanging: threading.Event, tmp_path: Path) -> None:
    def terminate() -> None:
        hanging.wait()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate).start()
    with sigterm_raises(), pytest.raises(Terminated):
        ray_session.enter(HERE, timeout_s=LONG_S)
    assert list(tmp_path.iterdir()) == []
    assert leaving._at_once


def libc() -> ctypes.CDLL:
    found = ctypes.CDLL(None)
    found.signal.argtypes, found.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    return found


def test_sigterm_that_ray_s_native_half_has_taken_is_python_s_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def take(*_arguments: object) -> None:
        libc().signal(signal.SIGTERM, int(signal.SIG_IGN))

    monkeypatch.setattr(ray_session, "join", take)
    monkeypatch.setattr(ray, "shutdown", lambda: None)  # of another test's Ray
    monkeypatch.setattr(ray_session, "_is_initialized", lambda: False)  # another test's Ray may be up
    monkeypatch.setattr(ray_session, "_short_temp_dir", lambda: tempfile.mkdtemp(dir=tmp_path))
    with sigterm_raises():
        session = ray_session.enter(HERE, timeout_s=LONG_S)
        try:
            with pytest.raises(Terminated):
                os.kill(os.getpid(), signal.SIGTERM)
        finally:
            ray_session.leave(session)


def test_directory_of_an_own_ray_goes_even_when_its_reaper_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = uuid.uuid4().hex
    monkeypatch.setenv("WARMRANK_TEST", mark)
    own = tmp_path / "own"
    own.mkdir()
    own_reaper = ReapedRanks({}, remove=[str(own)], spare=[os.getpid()])
    (pid,) = (pid for pid, command in marked(mark).items() if reaper.__file__ in command)
    os.kill(pid, signal.SIGKILL)
    ray_session.leave(ray_session.Session(way_in="local", temp_dir=str(own), reaper=own_reaper))
    assert not own.exists()


LATER_S = 0.2


@dataclass(frozen=True)
class Answer:
    """What stands for a reference: an answer, and when it is there."""

    value: Any
    ready_s: float


@dataclass
class Actor:
    """A rank that answers at once, or later."""

    value: Any
    after_s: float = 0.0

    @property
    def call(self) -> Actor:
        return self

    def remote(self, _call: int, _stage: str, _method: str, batches: Batches) -> Answer:
        answers = tuple((self.value, ranks) for _, ranks in batches)
        return Answer((answers, True), time.monotonic() + self.after_s)


@dataclass
class Watch:
    """Sees nothing wrong; is in doubt for as long as it takes to see that a rank's node was lost with it."""

    lost_after: dict[int, int] = field(default_factory=dict)
    nodes: dict[int, Actor] = field(default_factory=dict)
    _died: list[int] = field(default_factory=list)
    _looks: int = 0

    def refs(self) -> list[Any]:
        return []

    def take(self, _ready: Collection[Any]) -> dict[int, ProcessStatus]:
        return {}

    def failures(self, stage: str) -> tuple[WorkerFailure, ...]:
        self._looks += bool(self._died)
        return tuple(
            WorkerFailure(rank=rank, stage=stage, kind=NODE_LOST, message="gone with it")
            for rank, looks in self.lost_after.items()
            if rank in self._died and self._looks >= looks
        )

    def failed(self, rank: int, *, died: bool) -> None:
        if died:
            self._died.append(rank)

    def is_in_doubt(self, *, others_wait: bool) -> bool:
        return any(self._looks < looks for rank, looks in self.lost_after.items() if rank in self._died)

    def explained(self, failure: WorkerFailure) -> WorkerFailure:
        return failure


def _ready(refs: list[Answer], *, timeout_s: float) -> list[Answer]:
    """Those that are there; waits for the first one as long as it may."""
    ends_s = min([time.monotonic() + timeout_s, *(ref.ready_s for ref in refs)])
    while time.monotonic() < ends_s:
        time.sleep(0.01)
    return [ref for ref in refs if ref.ready_s <= time.monotonic()]


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_launcher, "await_some", _ready)
    monkeypatch.setattr(ray_launcher, "answers_of", lambda ref: ref.value)
    monkeypatch.setattr(ray_launcher, "GRACE_S", LATER_S / 10)


def launcher_of(*actors: Actor) -> RayLauncher:
    data = {"workload": {"entrypoint": "a:b"}, "ranks": len(actors), "parallel": {"dp": len(actors)}}
    launcher = RayLauncher(parse(data))
    launcher._actors = list(actors)
    launcher._watch = Watch(nodes=dict(enumerate(actors)))  # type: ignore[assignment]
    launcher._node_of = {rank: rank for rank in range(len(actors))}
    return launcher


def answers(stage: str, *actors: Actor) -> dict[int, Any]:
    launcher = launcher_of(*actors)
    arguments: dict[int, tuple[Any, ...]] = dict.fromkeys(range(len(actors)), ())
    return dict(launcher.call(stage, stage, arguments, timeout_s=60))


def failure(kind: str, *, store_fault: bool = False) -> WorkerFailure:
    return WorkerFailure(rank=0, stage="any", kind=kind, message="text", store_fault=store_fault)


def test_devices_that_are_not_here_are_refused_before_an_own_ray_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reservation, "_num_here", lambda _resource: 1)
    monkeypatch.delenv("RAY_OVERRIDE_RESOURCES", raising=False)
    bundle, config = {"CPU": 1.0, "NPU": 1.0}, RayConfig()
    reservation.refuse_missing_devices(bundle, 1, config)
    reservation.refuse_missing_devices({"CPU": 1e6}, 1, config)
    with pytest.raises(LacksDevice, match="NPU: 2 x 1 = 2 wanted, 1 there, 1 too few") as caught:
        reservation.refuse_missing_devices(bundle, 2, config)
    assert exit_code_of(caught.value) == ExitCode.BAD_INPUT


def launcher() -> RayLauncher:
    return RayLauncher(parse({"workload": {"entrypoint": "a:b"}, "ranks": 1, "parallel": {"dp": 1}}))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (exceptions.OutOfMemoryError("killed"), "died"),
        (exceptions.NodeDiedError("lost"), "node lost"),
        (exceptions.ActorUnschedulableError("the node does not exist any more"), "node lost"),
        (exceptions.RuntimeEnvSetupError("no space"), "environment"),
        (exceptions.GetTimeoutError("late"), "GetTimeoutError"),
    ],
)
def test_every_error_of_ray_becomes_a_failure(error: Exception, kind: str) -> None:
    failure = failure_of_ray(error, rank=0, stage="load")
    assert failure.kind == kind
    assert failure.message
