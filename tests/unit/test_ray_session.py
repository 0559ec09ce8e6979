"""Which way onto Ray, and what goes along."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import ray

from tests.support.processes import marked
from warmrank.orchestrator import import_root, reaper, signals
from warmrank.orchestrator.cli.console import ExitCode, exit_code_of
from warmrank.orchestrator.config.models import RayConfig
from warmrank.orchestrator.errors import CannotStart
from warmrank.orchestrator.gang import ray_session
from warmrank.orchestrator.gang.ray_session import (
    Beginning,
    TookTooLong,
    import_paths,
    rank_environ,
    runtime_env,
    way_in,
)
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


def test_threads_of_a_rank_come_from_the_config() -> None:
    assert rank_environ(RayConfig(omp_num_threads=3), "cpu", "local")["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize(("device", "expected"), [("cpu", "0"), ("cuda", "0"), ("npu", None)])
def test_torch_npu_is_loaded_on_npu_ranks_only(device: str, expected: str | None) -> None:
    assert rank_environ(HERE, device, "local").get("TORCH_DEVICE_BACKEND_AUTOLOAD") == expected


def test_launcher_without_a_session_stops_without_importing_ray() -> None:
    code = (
        "import sys; from warmrank.orchestrator.config.reading import parse;"
        "from warmrank.orchestrator.gang.ray_launcher import RayLauncher;"
        "RayLauncher(parse({'workload': {'script': 'a.py'}, 'ranks': 1})).stop();"
        "sys.exit('ray' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_job_keeps_its_own_working_directory() -> None:
    assert runtime_env(HERE, "job") == {}


def test_import_paths_are_directories_outside_the_interpreter(tmp_path: Path) -> None:
    for name in ("cwd/lib", "extra", "python/lib/site-packages"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "packed.zip").touch()
    site = str(tmp_path / "python" / "lib" / "site-packages")
    paths = ["", "lib", str(tmp_path / "extra"), site, str(tmp_path / "packed.zip"), str(tmp_path / "absent")]
    found = import_paths(paths, tmp_path / "cwd", [str(tmp_path / "python")])
    assert found[:3] == (str(tmp_path / "cwd"), str(tmp_path / "cwd" / "lib"), str(tmp_path / "extra"))
    assert found[3:] == (str(import_root()),)


def test_address_where_nothing_listens_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_session, "_is_initialized", lambda: False)  # another test's Ray may be up
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(CannotStart, match=rf"can be joined at '{address}' \(ray.address\)") as told:
            ray_session.enter(RayConfig(address=address), timeout_s=LONG_S)
    assert not told.value.may_pass
    assert exit_code_of(told.value) == ExitCode.LOST


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
    assert signals._at_once


def test_sigterm_is_heeded_while_ray_does_not_come_up(hanging: threading.Event, tmp_path: Path) -> None:
    def terminate() -> None:
        hanging.wait()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate).start()
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


def test_alarm_that_ray_s_native_half_sets_at_sigterm_does_not_cut_the_end_short(
    hanging: threading.Event,
) -> None:
    def terminate() -> None:
        hanging.wait()
        libc().alarm(int(LONG_S))
        os.kill(os.getpid(), signal.SIGTERM)

    own_s = signal.getitimer(signal.ITIMER_REAL)  # that of a test's own time-out
    threading.Thread(target=terminate).start()
    try:
        with sigterm_raises(), pytest.raises(Terminated):
            ray_session.enter(HERE, timeout_s=LONG_S)
        left_s = signal.alarm(0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *own_s)
    assert left_s == 0


def test_whatever_ray_raises_when_it_does_not_come_up_is_told_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def time_out(*_arguments: object) -> None:
        raise Exception("The current node timed out during startup.\nMore.")  # noqa: TRY002 - as Ray does

    monkeypatch.setattr(ray_session, "join", time_out)
    monkeypatch.setattr(ray_session, "_is_initialized", lambda: False)  # another test's Ray may be up
    with pytest.raises(CannotStart, match=r"did not start: The current node timed out during") as told:
        ray_session.enter(HERE, timeout_s=LONG_S)
    assert told.value.may_pass  # Ray's own limit on a busy machine; a second start in this process works


@pytest.mark.parametrize(("slow_s", "num_starts"), [(0.0, 3), (LONG_S, 1)], ids=["timed out", "at once"])
def test_own_ray_that_times_out_is_cleaned_up_and_started_again_within_the_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slow_s: float, num_starts: int
) -> None:
    left_over: list[int] = []

    def time_out(*_arguments: object) -> None:
        left_over.append(len(list(tmp_path.iterdir())) - 1)  # but for its own directory
        if len(left_over) < 3:
            raise Exception("The current node timed out during startup.")  # noqa: TRY002 - as Ray does

    monkeypatch.setattr(ray_session, "join", time_out)
    monkeypatch.setattr(ray, "shutdown", lambda: None)  # of another test's Ray
    monkeypatch.setattr(ray_session, "_is_initialized", lambda: False)  # another test's Ray may be up
    monkeypatch.setattr(ray_session, "_short_temp_dir", lambda: tempfile.mkdtemp(dir=tmp_path))
    monkeypatch.setattr(ray_session, "_SLOW_S", slow_s)
    with nullcontext() if num_starts == 3 else pytest.raises(CannotStart, match="overloaded") as caught:
        ray_session.leave(ray_session.enter(HERE, timeout_s=LONG_S))
    assert left_over == [0] * num_starts
    assert caught is None or ".." not in str(caught.value)


def test_own_ray_has_a_token_of_its_own_also_where_ray_is_imported_already(tmp_path: Path) -> None:
    code = (
        "import sys, ray; from warmrank.orchestrator.gang.ray_session import _prepare_environ;"
        "_prepare_environ('local'); from ray._raylet import AuthenticationMode, get_authentication_mode;"
        "sys.exit(get_authentication_mode() != AuthenticationMode.TOKEN)"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environ | {"HOME": str(tmp_path)})


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


def test_process_whose_ray_was_cut_short_by_ctrl_c_ends_without_ray_s_own_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cut_short(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ray_session, "join", cut_short)
    monkeypatch.setattr(ray_session, "_is_initialized", lambda: False)  # another test's Ray may be up
    with pytest.raises(KeyboardInterrupt):
        ray_session.enter(HERE, timeout_s=LONG_S)
    assert signals._at_once


def test_own_ray_is_over_once_its_raylet_is_even_as_a_zombie() -> None:
    raylet = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    session = ray_session.Session(way_in="local", own={"raylet": (raylet.pid, reaper.start_of(raylet.pid))})
    assert ray_session.ended(session) == ""
    raylet.kill()
    os.waitid(os.P_PID, raylet.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie now, and stays one
    assert ray_session.ended(session) == "its raylet is gone"
    raylet.wait()
    assert ray_session.ended(session) == "its raylet is gone"
    assert ray_session.ended(ray_session.Session(way_in="address")) == ""


def test_ray_client_is_refused_by_name() -> None:
    with pytest.raises(CannotStart, match="Ray Client, which is not supported"):
        ray_session.enter(RayConfig(address="ray://10.0.0.1:10001"), timeout_s=60)


def test_versions_that_differ_are_told_in_a_line() -> None:
    theirs, ours = "    Ray: 2.50.0\n    Python: 3.11.2\n", "    Ray: 2.60.0\n    Python: 3.12.0\n"
    text = f"Version mismatch: The cluster was started with:\n{theirs}This process on h:\n{ours}"
    said = ray_session.refusal("address", THERE, RuntimeError(text))
    assert "it runs Ray 2.50.0 on Python 3.11.2, and this process Ray 2.60.0 on Python 3.12.0;" in said


def test_refused_token_is_named_and_not_taken_for_a_wrong_address() -> None:
    nested = RuntimeError(
        "Failed to connect to GCS. Last connection error: Traceback:\nray.exceptions."
        "AuthenticationError: RPC error: InvalidAuthToken: Authentication token is missing. Note: more"
    )
    error = ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379")
    error.__cause__ = nested
    said = ray_session.refusal("address", THERE, error)
    assert (
        "refuses this process: InvalidAuthToken: Authentication token is missing. Set RAY_AUTH_MODE" in said
    )
    assert not ray_session.is_unreachable(error)
    error.__cause__ = None
    assert ray_session.is_unreachable(error)


# A child that asks to die with the thread that started it, as Ray's processes do.
CHILD = """
import ctypes, signal, time
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
print("up", flush=True)
time.sleep(600)
"""


def test_what_its_call_raises_is_raised_where_it_is_waited_for() -> None:
    def fail() -> None:
        raise ValueError("no such luck")

    with pytest.raises(ValueError, match="no such luck"):
        Beginning(fail).wait(LONG_S)


def test_what_takes_too_long_goes_on() -> None:
    go_on, ended = threading.Event(), threading.Event()

    def begin() -> None:
        go_on.wait()
        ended.set()

    beginning = Beginning(begin)
    with pytest.raises(TookTooLong):
        beginning.wait(0.01)
    go_on.set()
    beginning.wait(LONG_S)
    assert ended.is_set()
    beginning.end()


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_process_that_dies_with_its_thread_lives_until_the_end() -> None:
    started: list[subprocess.Popen[str]] = []

    def begin() -> None:
        command = [sys.executable, "-I", "-S", "-c", CHILD]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))

    beginning = Beginning(begin)
    beginning.wait(LONG_S)
    (child,) = started
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        assert child.poll() is None
        beginning.end()
        assert child.wait(timeout=20) == -9
