"""Which way onto Ray, and what goes along."""

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

from tests.support.processes import marked
from warmrank.orchestrator import import_root, leaving, reaper
from warmrank.orchestrator.config.models import RayConfig
from warmrank.orchestrator.errors import CannotStart
from warmrank.orchestrator.gang import ray_session
from warmrank.orchestrator.gang.ray_session import (
    import_paths,
    rank_environ,
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


@pytest.mark.parametrize(("device", "expected"), [("cpu", "0"), ("cuda", "0"), ("npu", None)])
def test_torch_npu_is_loaded_on_npu_ranks_only(device: str, expected: str | None) -> None:
    assert rank_environ(HERE, device, "local").get("TORCH_DEVICE_BACKEND_AUTOLOAD") == expected


def test_import_paths_are_directories_outside_the_interpreter(tmp_path: Path) -> None:
    for name in ("cwd/lib", "extra", "python/lib/site-packages"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "packed.zip").touch()
    site = str(tmp_path / "python" / "lib" / "site-packages")
    paths = ["", "lib", str(tmp_path / "extra"), site, str(tmp_path / "packed.zip"), str(tmp_path / "absent")]
    found = import_paths(paths, tmp_path / "cwd", [str(tmp_path / "python")])
    assert found[:3] == (str(tmp_path / "cwd"), str(tmp_path / "cwd" / "lib"), str(tmp_path / "extra"))
    assert found[3:] == (str(import_root()),)


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


def test_process_whose_ray_was_cut_short_by_ctrl_c_ends_without_ray_s_own_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cut_short(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ray_session, "join", cut_short)
    monkeypatch.setattr(ray_session, "_is_initialized", lambda: False)  # another test's Ray may be up
    with pytest.raises(KeyboardInterrupt):
        ray_session.enter(HERE, timeout_s=LONG_S)
    assert leaving._at_once


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
