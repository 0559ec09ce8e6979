"""What is looked at on this machine: torch in another process, the cache directory, names, sockets."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.launched import loaded_config
from warmrank.orchestrator.doctor import look as doctor_look
from warmrank.orchestrator.doctor import look_network as doctor_look_network
from warmrank.orchestrator.doctor.look import look_at_devices, look_at_versions, probe_torch
from warmrank.orchestrator.doctor.look_disk import look_at_disk, nearest
from warmrank.orchestrator.doctor.look_limits import look_at_limits
from warmrank.orchestrator.doctor.look_network import look_at_network
from warmrank.orchestrator.doctor.versions import Probe


@pytest.fixture
def listening() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def fake_torch(directory: Path, text: str) -> dict[str, str]:
    """An environment in which ``import torch`` finds this text, after the package's own root."""
    (directory / "torch.py").write_text(text)
    return {**os.environ, "PYTHONPATH": str(directory)}


@pytest.mark.slow
def test_torch_of_this_machine_imports():
    import torch

    found = probe_torch("cpu", os.environ)
    assert (found.error, found.torch) == ("", torch.__version__)


def test_error_of_an_import_is_what_is_said(tmp_path: Path):
    environ = fake_torch(tmp_path, "raise ImportError('libhccl.so: no such file')")
    assert probe_torch("cpu", environ).error == "ImportError: libhccl.so: no such file"


def test_interpreter_that_dies_is_an_answer(tmp_path: Path):
    environ = fake_torch(tmp_path, "import os; os._exit(7)")
    assert "status 7" in probe_torch("cpu", environ).error


def test_interpreter_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor_look, "PROBE_S", 0.2)
    environ = fake_torch(tmp_path, "import threading; threading.Event().wait()")
    assert probe_torch("cpu", environ).error == "no answer within 0.2 s"


def test_missing_device_module_is_no_failed_import(tmp_path: Path):
    text = "__version__ = '2.13.0'\nclass version:\n    cuda = None\n"
    found = probe_torch("cuda", fake_torch(tmp_path, text))
    assert (found.error, found.torch) == ("", "2.13.0")
    assert found.device_error.startswith("AttributeError")


@pytest.mark.parametrize(("device", "said"), [("cpu", "0"), ("npu", "1")])
def test_autoload_is_switched_off_as_it_is_for_ranks(tmp_path: Path, device: str, said: str):
    text = "import os\nraise ImportError(os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'])"
    environ = {**fake_torch(tmp_path, text), "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
    assert probe_torch(device, environ).error == f"ImportError: {said}"


def test_versions_are_those_that_are_installed():
    found = look_at_versions("cpu", {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, Probe())
    assert {"torch", "ray"} <= set(found.installed)
    assert found.autoload == "0"


def test_variable_of_the_device_kind_is_read():
    environ = {"CUDA_VISIBLE_DEVICES": "1", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    found = look_at_devices("cuda", environ, Probe(error="no"), num_ranks=2)
    assert (found.visible, found.num_usable, found.in_container) == ("1", None, True)


def test_limits_of_this_process_are_read(tmp_path: Path):
    found = look_at_limits("cpu", loaded_config(tmp_path), is_local=True)
    assert (found.num_ranks, found.encoding) == (2, "utf-8")
    assert found.num_cpus <= len(os.sched_getaffinity(0))
    assert 0 < found.memory_bytes <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    before = os.umask(found.umask)
    assert before == found.umask


def test_ranks_of_a_cluster_are_not_counted_here(tmp_path: Path):
    assert look_at_limits("cpu", loaded_config(tmp_path), is_local=False).num_ranks == 0


def test_cache_directory_is_tried_and_left_as_it_was(tmp_path: Path):
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    found = look_at_disk(cache, 7)
    assert found is not None
    disk, (clock,) = found
    assert (disk.exists, disk.keeps_modes, disk.scratch_problem, disk.needed_bytes) == (True, True, "", 7)
    assert abs(clock.ahead_s) < 5.0
    assert list(cache.iterdir()) == []


def test_cache_directory_that_is_not_there_is_not_made(tmp_path: Path):
    found = look_at_disk(tmp_path / "a" / "b", 0)
    assert found is not None
    assert (found[0].exists, found[0].looked_at, found[1]) == (False, str(tmp_path), ())
    assert list(tmp_path.iterdir()) == []


def test_file_in_the_place_of_the_cache_directory_is_a_problem(tmp_path: Path):
    (tmp_path / "cache").write_bytes(b"")
    found = look_at_disk(tmp_path / "cache", 0)
    assert found is not None
    assert found[0].problem == "it is no directory"


def test_scratch_that_cannot_be_flushed_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    found = look_at_disk(tmp_path, 0)
    assert found is not None
    assert found[0].scratch_problem == "No space left on device"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("theirs", "ahead_s"), [(11.0, 0.0), (15.0, 3.0), (7.0, -3.0)])
def test_clock_read_between_two_readings_is_ahead_at_least_so_much(theirs: float, ahead_s: float):
    assert nearest(theirs, 10.0, 12.0) == pytest.approx(ahead_s)


def test_listening_cluster_is_no_problem(listening: str):
    found = look_at_network("cpu", {}, spans_nodes=True, ray_address=listening)
    assert (found.ray_problem, found.ray_address) == ("", listening)
    assert "lo" in found.interfaces


def test_cluster_that_does_not_listen_is_a_problem(listening: str):
    host, _, _ = listening.partition(":")
    with socket.create_server((host, 0)) as server:
        gone = f"{host}:{server.getsockname()[1]}"
    found = look_at_network("cpu", {}, spans_nodes=True, ray_address=gone)
    assert "refused" in found.ray_problem


def test_auto_is_the_cluster_that_ray_notes_on_this_machine(tmp_path: Path, listening: str):
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(listening)
    environ = {"RAY_TMPDIR": str(tmp_path), "GLOO_SOCKET_IFNAME": "eth0"}
    found = look_at_network("cpu", environ, spans_nodes=True, ray_address="auto")
    assert (found.ray_address, found.gloo_interface) == (listening, "eth0")


def test_ports_of_hccl_are_tried(listening: str):
    port = int(listening.rpartition(":")[2])
    environ = {"HCCL_IF_BASE_PORT": str(port - 1), "PATH": "/nowhere"}
    found = look_at_network("npu", environ, spans_nodes=False, ray_address="")
    assert port in found.busy_hccl_ports
    assert found.hccl_ports == (port - 1, port + 14)


def test_names_that_are_not_answered_are_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor_look_network, "all_within", lambda calls, *, timeout_s: (None,) * len(calls))
    found = look_at_network("cpu", {}, spans_nodes=False, ray_address="")
    assert (found.addresses, found.resolve_s) == ((), float("inf"))


def test_links_of_npus_are_asked_for_where_the_tool_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tool = tmp_path / "hccn_tool"
    tool.write_text("#!/bin/sh\necho 'link status: UP'\n")
    tool.chmod(0o755)
    assert doctor_look_network._link((str(tool), "-i", "0")) == "UP"
    tool.write_text("#!/bin/sh\nexit 1\n")
    assert doctor_look_network._link((str(tool), "-i", "0")) == ""
    monkeypatch.setenv("PATH", "/nowhere")
    found = look_at_network("npu", {}, spans_nodes=False, ray_address="")
    assert "not on PATH" in found.hccn_problem


def test_driver_s_tool_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho broken >&2\nexit 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = look_at_devices("cuda", {}, Probe(), num_ranks=0)
    assert found.tool is not None
    assert found.tool.problem == "status 9: broken"
