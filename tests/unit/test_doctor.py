"""The doctor: this machine, nodes, software and devices."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import Result

from tests.support import ascend_machine as ascend
from tests.support.command_line import run
from tests.support.launching import loaded_config, store_launch, write_config
from tests.support.stored import OFF
from warmrank.cache_store.store import TierSpec, open_store
from warmrank.orchestrator.config.store import StoreConfig, TierConfig
from warmrank.orchestrator.inspect import doctor, machine
from warmrank.orchestrator.inspect.doctor import check_resources
from warmrank.orchestrator.inspect.machine import Finding, Level
from warmrank.worker.ascend import Installation, _ask, package_problems, visible_devices
from warmrank.worker.errors import DeviceUnavailable
from warmrank.worker.settings import AscendPlaces

TORCH = """
import sys, types
__version__ = "2.13.0"
facts = types.ModuleType("warmrank.worker.torch_private.facts")
facts.examined = lambda name: []
sys.modules[facts.__name__] = facts
sys.modules["warmrank.worker.torch_private"] = types.SimpleNamespace(facts=facts)
"""


@pytest.fixture(autouse=True)
def _this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that imports in no time."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "torch.py").write_text(TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))


def levels(result: Result) -> dict[str, str]:
    (node,) = json.loads(result.stdout)["nodes"]
    return {finding["check"]: finding["level"] for finding in node["findings"]}


def test_npu_on_a_machine_without_one_says_what_is_missing():
    if Path("/dev/davinci0").exists():
        pytest.skip("this machine has NPUs")
    result = run("doctor", "--device", "npu", "--json")
    assert (result.exit_code, json.loads(result.stdout)["worst"]) == (1, "error")
    found = levels(result)
    assert (found["devices.present"], found["ascend.cann"]) == ("error", "error")


def test_bad_config_or_cluster_ends_with_two(tmp_path: Path):
    config = write_config(tmp_path)
    for words, said in (
        ([tmp_path / "absent.yaml"], "no readable file"),
        (["--all-nodes"], "CONFIG"),
        ([config, "--all-nodes"], "ray.address"),
    ):
        result = run("doctor", *words)
        assert (result.exit_code, said in result.stderr) == (2, True)


def test_room_for_ranks_is_counted_node_by_node():
    two = [{"CPU": 12.0}] * 2
    assert [item.level for item in check_resources(two, {"CPU": 8.0}, 2)] == ["ok"]
    (found,) = check_resources(two, {"CPU": 8.0}, 3)
    assert (found.level, "24 on 2 nodes have room for 2" in found.what) == ("error", True)


FITS = {"python": "3.11.9", "torch": "2.13.0+cpu", "ray": "2.60.0", "torch_npu": "2.13.0"}


def checked_levels(findings: Iterable[Finding]) -> dict[str, str]:
    return {finding.check: finding.level for finding in findings}


def troubles(findings: Iterable[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings if finding.level != "ok"}


@pytest.mark.parametrize(
    ("value", "level", "said"),
    [
        ("0,1", "ok", "CUDA_VISIBLE_DEVICES=0,1"),
        ("GPU-1e2d", "ok", "CUDA_VISIBLE_DEVICES=GPU-1e2d"),
        ("0,7", "error", "hides devices: no device 7"),
        ("", "error", "hides devices: it names none"),
    ],
)
def test_variable_that_hides_devices_is_an_error(tmp_path: Path, value: str, level: str, said: str):
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1"):
        (tmp_path / "dev" / name).touch()
    environ = {"CUDA_VISIBLE_DEVICES": value}
    every = machine.check_devices("cuda", environ, machine.Probe(num_devices=2), root=tmp_path)
    found = {finding.check: finding for finding in every}["devices.visible"]
    assert (found.level, said in found.what) == (level, True)


@pytest.mark.parametrize(
    ("device", "name", "version"),
    [
        ("cpu", "python", "3.10.1"),
        ("cpu", "torch", "2.10.0"),
        ("cpu", "torch", "3.0.0"),
        ("cpu", "ray", ""),
        ("npu", "torch_npu", ""),
    ],
)
def test_version_outside_its_range_is_an_error(device: str, name: str, version: str):
    assert not troubles(machine.check_versions(device, FITS))
    assert not troubles(machine.check_versions("cpu", {**FITS, "torch_npu": ""}))
    (found,) = troubles(machine.check_versions(device, {**FITS, name: version})).values()
    assert (found.check, found.level, bool(found.remedy)) == (f"versions.{name}", "error", True)


@pytest.mark.parametrize(
    ("text", "timeout_s", "said"),
    [
        ("raise ImportError('libhccl.so: no such file')", 60, "ImportError: libhccl.so: no such file"),
        ("import os; os._exit(7)", 60, "the interpreter ended with status 7"),
        ("import threading; threading.Event().wait()", 1, "no answer within 1 s"),
    ],
)
def test_torch_that_does_not_import_is_an_error_with_its_words(tmp_path, text, timeout_s, said):
    (tmp_path / "torch.py").write_text(text)  # which is imported after the package's own root
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    probe = machine.probe_torch("cpu", environ, timeout_s=timeout_s)
    (found,) = machine.check_probe(probe)
    assert (found.check, found.level, said in found.what) == ("versions.import", "error", True)
    assert machine.usable("cuda", probe).level == "note"


def test_missing_and_unfit_software_of_ascend_is_named():
    empty = dict.fromkeys(("cann", "cann_detail", "home", "driver", "soc"), "")
    none = Installation(**empty, problems=("npu-smi does not run",))
    expected = {"ascend.cann": "error", "ascend.driver": "error", "ascend.problems": "warning"}
    assert checked_levels(machine.check_ascend(none, FITS)) == expected
    there = Installation(**{**empty, "cann": "9.0.0", "driver": "25.2.0"}, problems=())
    found = troubles(machine.check_ascend(there, {**FITS, "torch": "2.12.0"}))
    assert checked_levels(found.values()) == {"ascend.fit": "warning"}


def test_little_shared_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(f_frsize=1, f_bavail=64 * 2**20))
    assert list(troubles(machine.check_limits())) == ["limits.shared_memory"]


def test_cluster_must_listen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        found = checked_levels(machine.check_network("cpu", {}, spans_nodes=False, ray_address=address))
    assert found == {"network.ray": "ok"}
    assert not list(machine.check_network("cpu", {}, spans_nodes=False, ray_address="auto"))
    (gone,) = machine.check_network("cpu", {}, spans_nodes=False, ray_address=address)
    assert (gone.check, "refused" in gone.what) == ("network.ray", True)


def test_store_is_written_and_left_as_it_was(tmp_path: Path):
    def levels_of(**tier: Any) -> list[tuple[str, Level]]:
        config = StoreConfig(tiers=(TierConfig(path=str(tmp_path), **tier),))
        return [(finding.check, finding.level) for finding in doctor.check_store(config)][:-1]

    def files() -> list[Path]:
        return sorted(path for path in tmp_path.rglob("*") if path.is_file())

    shutil.rmtree(tmp_path)
    open_store([TierSpec(location=str(tmp_path))], trust=OFF)
    before = files()
    assert levels_of() == [("store.reachable", "ok"), ("store.writable", "ok")]
    assert files() == before
    assert levels_of(mode="ro") == [("store.reachable", "ok")]


def test_cache_directory_that_cannot_hold_private_files_is_an_error(tmp_path, monkeypatch):
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "cache").mkdir(mode=0o700)
    monkeypatch.setattr(os, "fsync", full)
    said = {"file": "expected a directory", "open": "mode 0777", "cache": "No space left on device"}
    for name, text in said.items():
        (found,) = doctor.check_disk(tmp_path / name)
        assert (found.check, found.level, text in found.what) == ("disk.cache_dir", "error", True), found
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"f_bavail": 1000}, {"disk.free": "warning"}),
        ({"f_bavail": 0}, {"disk.free": "error"}),
        ({"f_favail": 9}, {"disk.free": "warning"}),
        ({"f_favail": 0}, {"disk.free": "error"}),
        ({"f_favail": 0, "f_files": 0}, {}),
        ({"f_flag": os.ST_NOEXEC}, {"disk.execution": "warning"}),
    ],
)
def test_disk_that_is_full_or_noexec_is_named(tmp_path, monkeypatch, change, expected):
    room = {"f_frsize": 4096, "f_bavail": 2**30, "f_files": 2**20, "f_favail": 2**20, "f_flag": 0, **change}
    monkeypatch.setattr(os, "statvfs", lambda _path: type("Room", (), room))
    assert checked_levels(troubles(doctor.check_disk(tmp_path / "cache")).values()) == expected


@pytest.fixture
def places(tmp_path: Path) -> Iterator[AscendPlaces]:
    """A machine without anything of Ascend; tests lay it out below the path."""
    _ask.cache_clear()
    yield ascend.ascend_places(tmp_path)
    _ask.cache_clear()


def test_cann_and_driver_that_do_not_know_each_other_are_a_problem(
    places: AscendPlaces, tmp_path: Path
) -> None:
    ascend.lay_out_driver(tmp_path, "25.0.rc1")
    ascend.lay_out_cann(tmp_path / "cann", "9.9.0", build="V100R001C30SPC001B001")
    assert package_problems(places) == ()  # CANN's own list has the driver's C21
    info = tmp_path / "cann" / "aarch64-linux"
    for file in info.iterdir():
        file.write_text(file.read_text().replace(",[V100R001C21]", ""))
    (problem,) = package_problems(places)
    assert "CANN 9.9.0 (V100R001C30SPC001B001) and driver 25.0.rc1" in problem


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0, 1", "CANN would stop reading"),
        ("0-3", "CANN would stop reading"),
        ("0,", "CANN would stop reading"),
        ("0,-1", "CANN would stop reading"),
        ("npu:0", "CANN would stop reading"),
        ("3,1", "rising order"),
        ("1,1", "rising order"),
        ("1,4,9", "it names 4, 9, but this machine has 4 NPUs, numbered from 0"),
    ],
)
def test_visible_npus_that_cann_would_cut_short_are_refused(text: str, why: str) -> None:
    with pytest.raises(DeviceUnavailable, match=why) as raised:
        visible_devices({"ASCEND_RT_VISIBLE_DEVICES": text}, 4)
    assert raised.value.actual == text
    assert "unset it to use every NPU" in str(raised.value)


def test_config_brings_its_store_and_its_disk(tmp_path: Path):
    store_launch(loaded_config(tmp_path), tmp_path / "work")
    (tmp_path / "cache").mkdir(mode=0o700)
    importable = "workload.entrypoint=json:dumps"
    result = run("doctor", tmp_path / "tiny.yaml", "--set", importable, "--json")
    assert result.exit_code == 0, result.stdout
    names = ("store.reachable", "store.writable", "store.keys", "disk.cache_dir", "disk.free")
    assert {levels(result)[name] for name in names} == {"ok"}


@pytest.mark.parametrize(("mode", "said"), [(0o644, "mode 0644"), (0o600, "no PEM")])
def test_key_that_cannot_be_used_is_named(tmp_path: Path, mode: int, said: str) -> None:
    store_launch(loaded_config(tmp_path), tmp_path / "work")
    key = tmp_path / "ci.pem"
    key.write_text("junk")
    key.chmod(mode)
    chosen = f"store.trust={{policy: require, signing_key: {key}}}"
    result = run("doctor", tmp_path / "tiny.yaml", "--set", chosen, "--json")
    assert levels(result)["store.keys"] == "error"
    assert f"{key}: {said}" in result.stdout


def test_faults_between_keys_of_a_config_are_named_as_config_check_names_them(tmp_path: Path) -> None:
    store = {"path": str(tmp_path / "store"), "trust": {"policy": "require"}}
    write_config(tmp_path, store=store, workload={"entrypoint": "json:dumps"})
    result = run("doctor", tmp_path / "tiny.yaml", "--json")
    checked = run("config", "check", tmp_path / "tiny.yaml", "--json")
    (fault,), (known,) = json.loads(result.stdout)["cluster"], json.loads(checked.stdout)
    assert (fault["check"], fault["level"]) == ("config.store.trust.policy", "error")
    assert (fault["what"], fault["remedy"]) == (known["found"], known["remedy"])
    assert result.exit_code == 1
