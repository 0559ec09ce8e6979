"""Launches on Ray: where ranks go, session, errors, who is lost."""

from __future__ import annotations

import ctypes
import os
import signal
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray import exceptions
from ray.core.generated.common_pb2 import ActorDiedErrorContext

from tests.support.processes import marked
from warmrank.orchestrator import reaper, signals
from warmrank.orchestrator.config.models import RayConfig
from warmrank.orchestrator.errors import CannotStart
from warmrank.orchestrator.exec.driver import choose_nodes
from warmrank.orchestrator.exec.node import Placement, When, parse_when
from warmrank.orchestrator.gang import ray_session
from warmrank.orchestrator.gang.node_group import failure_of_ray
from warmrank.orchestrator.gang.ray_session import way_in
from warmrank.orchestrator.nodes import Node
from warmrank.orchestrator.reaper_client import ReapedRanks
from warmrank.orchestrator.signals import Terminated, sigterm_raises

LONG_S = 600.0
HERE = RayConfig()
THERE = RayConfig(address="10.0.0.1:6379")
JOB = {"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}", "RAY_ADDRESS": "10.0.0.1:6379"}


@pytest.fixture(autouse=True)
def _stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens to a Ray here, this process goes on."""
    monkeypatch.setattr(signals, "_at_once", [])


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
    assert caught.value.budget is None  # another attempt would meet the first one in this process
    assert list(tmp_path.iterdir()) == []
    assert [command for command in marked(mark).values() if reaper.__file__ in command] == []
    assert signals._at_once


def terminate_after(begun: threading.Event) -> None:
    def terminate() -> None:
        begun.wait()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate).start()


def test_who_stops_a_start_of_ray_hears_of_it_before_the_clean_up(
    hanging: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []
    clean_up = ray_session.abandon

    def abandon(session: ray_session.Session) -> None:
        said.append(caplog.text)
        clean_up(session)

    monkeypatch.setattr(ray_session, "abandon", abandon)
    terminate_after(hanging)
    with sigterm_raises(), pytest.raises(Terminated):
        ray_session.enter(HERE, timeout_s=LONG_S)
    assert "stopping" in said[0]


def test_sigterm_is_heeded_while_ray_does_not_come_up(hanging: threading.Event, tmp_path: Path) -> None:
    terminate_after(hanging)
    with sigterm_raises(), pytest.raises(Terminated):
        ray_session.enter(HERE, timeout_s=LONG_S)
    assert list(tmp_path.iterdir()) == []
    assert signals._at_once


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


@pytest.mark.parametrize(
    ("detail", "said"),
    [
        (
            "Worker unexpectedly exits with a connection error code 2. End of file. Some guesses.",
            "its process ended all at once: it was killed, or crashed in native code",
        ),
        (
            "Worker exits unexpectedly by a signal. More guesses.",
            "its process ended (SYSTEM_ERROR: Worker exits unexpectedly by a signal.)",
        ),
    ],
)
def test_death_of_a_process_is_told_in_the_words_of_who_saw_it(detail: str, said: str) -> None:
    text = "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR "
    seen = ActorDiedErrorContext(actor_id=bytes(16), error_message=f"{text}Worker exit detail: {detail}")
    error = exceptions.ActorDiedError(seen)
    failure = failure_of_ray(error, rank=0, stage="load")
    assert (failure.kind, failure.message, failure.traceback) == ("died", said, "")


NAMES = ("a", "bb", "ccc")
ONE, TWO, THREE = (Node(node_id=name, address=f"10.0.0.{len(name)}", host=name) for name in NAMES)
ROOMS = {THREE: 2, ONE: 4, TWO: 4}


@pytest.mark.parametrize(
    ("num_ranks", "named", "nodes"),
    [
        (4, False, (ONE,)),  # the fewest
        (8, False, (ONE, TWO)),  # the roomier, in the order of the cluster
        (6, False, (ONE, TWO)),  # as many on each
        (6, True, (THREE, ONE, TWO)),  # all that were named
    ],
)
def test_fewest_nodes_that_hold_as_many_ranks_each_are_taken(
    num_ranks: int, named: bool, nodes: tuple[Node, ...]
) -> None:
    assert choose_nodes(ROOMS, num_ranks, named=named) == nodes


@pytest.mark.parametrize(("num_ranks", "named"), [(10, False), (4, True), (9, True)])
def test_ranks_that_do_not_fit_are_refused(num_ranks: int, named: bool) -> None:
    with pytest.raises(CannotStart, match=rf"{num_ranks} ranks do not fit .* a \(10.0.0.1\) holds 4.*--node"):
        choose_nodes(ROOMS, num_ranks, named=named)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("exit", When(kind="exit")),
        ("none", When(kind="none")),
        ("8000", When(kind="port", port=8000)),
        ("node7:8000", When(kind="port", host="node7", port=8000)),
        ("[::1]:8000", When(kind="port", host="::1", port=8000)),
        ("/run/ready", When(kind="file", path="/run/ready")),
        ("./8000", When(kind="file", path="./8000")),
        ("C:/x:1/y", When(kind="file", path="C:/x:1/y")),
    ],
)
def test_condition_is_read(text: str, expected: When) -> None:
    assert parse_when(text) == expected


PLACEMENT = Placement(
    node_rank=1, nnodes=2, nproc=4, ranks=8, master_addr="10.0.0.1", master_port=29500, cache_dir="/cache"
)


def test_variables_say_the_same_as_placeholders() -> None:
    assert PLACEMENT.variables() == {
        "WARMRANK_NODE_RANK": "1",
        "WARMRANK_NNODES": "2",
        "WARMRANK_NPROC": "4",
        "WARMRANK_RANKS": "8",
        "WARMRANK_MASTER_ADDR": "10.0.0.1",
        "WARMRANK_MASTER_PORT": "29500",
        "WARMRANK_CACHE_DIR": "/cache",
        "TORCHAIR_CACHE_HOME": "/cache",
    }
