"""The checks of `warmrank doctor`, each on files, sockets and variables of a test's own."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from warmrank.orchestrator.config.store import StoreConfig, TierConfig
from warmrank.orchestrator.doctor import Finding, Level, machine, software, storage
from warmrank.worker.ascend.chips import Installation

FITS = {"python": "3.11.9", "torch": "2.13.0+cpu", "ray": "2.60.0", "torch_npu": "2.13.0"}


def levels(findings: Iterable[Finding]) -> dict[str, str]:
    return {finding.check: finding.level for finding in findings}


def troubles(findings: Iterable[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings if finding.level != "ok"}


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
    assert not troubles(software.check_versions(device, FITS))
    assert not troubles(software.check_versions("cpu", {**FITS, "torch_npu": ""}))
    (found,) = troubles(software.check_versions(device, {**FITS, name: version})).values()
    assert (found.check, found.level, bool(found.remedy)) == (f"versions.{name}", "error", True)


def fake_torch(directory: Path, text: str) -> dict[str, str]:
    """An environment in which ``import torch`` finds this text, after the package's own root."""
    (directory / "torch.py").write_text(text)
    return {**os.environ, "PYTHONPATH": str(directory)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ImportError('libhccl.so: no such file')", "ImportError: libhccl.so: no such file"),
        ("import os; os._exit(7)", "the interpreter ended with status 7"),
        ("import threading; threading.Event().wait()", "no answer within 1 s"),
    ],
)
def test_torch_that_does_not_import_is_an_error_with_its_words(tmp_path: Path, text: str, said: str):
    probe = software.probe_torch("cpu", fake_torch(tmp_path, text), timeout_s=1.0)
    (found,) = software.check_probe(probe)
    assert (found.check, found.level, said in found.what) == ("versions.import", "error", True)
    assert machine.usable("cuda", probe).level == "note"


def test_missing_and_unfit_software_of_ascend_is_named():
    empty = dict.fromkeys(("cann", "cann_detail", "home", "nnal", "driver", "firmware", "soc"), "")
    none = Installation(**empty, devices=(), chips=(), problems=("chip 3 is not healthy",))
    expected = {"ascend.cann": "error", "ascend.driver": "error", "ascend.problems": "warning"}
    assert levels(software.check_ascend(none, FITS)) == expected
    there = Installation(
        **{**empty, "cann": "9.0.0", "driver": "25.2.0"}, devices=(0,), chips=(), problems=()
    )
    found = troubles(software.check_ascend(there, {**FITS, "torch": "2.12.0"}))
    assert levels(found.values()) == {"ascend.fit": "warning"}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({}, []),
        ({"num_files": 1024}, ["limits.files"]),
        ({"num_ranks": 64}, ["limits.files"]),
        ({"shm_bytes": 64 * 2**20}, ["limits.shared_memory"]),
    ],
)
def test_limits_too_low_for_the_ranks_are_named(change: dict[str, Any], names: list[str]):
    facts = {"num_files": 4096.0, "shm_bytes": 2**30, "num_ranks": 8, **change}
    assert list(troubles(machine.judge_limits(**facts))) == names


@pytest.mark.parametrize(
    ("value", "level"), [("eth", "ok"), ("=eth0", "ok"), ("enp,eth", "error"), ("ib0", "error")]
)
def test_interface_must_be_there_and_may_be_named_by_its_first_letters(value: str, level: str):
    assert machine.interface("HCCL_SOCKET_IFNAME", value, ["lo", "eth0"]).level == level


def test_cluster_must_listen_and_ports_of_hccl_be_free():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        environ = {"HCCL_IF_BASE_PORT": str(port - 1)}
        found = levels(
            machine.check_network("npu", environ, spans_nodes=False, ray_address=f"127.0.0.1:{port}")
        )
    assert found == {"network.hccl_ports": "warning", "network.ray": "ok"}
    assert not list(machine.check_network("cpu", {}, spans_nodes=False, ray_address="auto"))
    (gone,) = machine.check_network("cpu", {}, spans_nodes=False, ray_address=f"127.0.0.1:{port}")
    assert (gone.check, "refused" in gone.what) == ("network.ray", True)


def store_levels(*tiers: dict[str, Any]) -> list[tuple[str, Level]]:
    config = StoreConfig(tiers=tuple(TierConfig(**tier) for tier in tiers))
    return [(finding.check, finding.level) for finding in storage.check_store(config)][:-1]


def made_store(path: Path) -> dict[str, Any]:
    from tests.support.stored import OFF
    from warmrank.cache_store.connect import TierSpec, open_store

    open_store([TierSpec(location=str(path))], trust=OFF)
    return {"path": str(path)}


def test_store_is_written_and_left_as_it_was(tmp_path: Path):
    tier = made_store(tmp_path / "store")
    before = sorted(path for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert store_levels(tier) == [("store.reachable", "ok"), ("store.writable", "ok")]
    assert sorted(path for path in (tmp_path / "store").rglob("*") if path.is_file()) == before
    assert store_levels({**tier, "mode": "ro"}) == [("store.reachable", "ok")]


def full(_descriptor: int) -> None:
    raise OSError(28, "No space left on device")


def test_cache_directory_that_cannot_hold_private_files_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "cache").mkdir(mode=0o700)
    monkeypatch.setattr(os, "fsync", full)
    said = {"file": "it is no directory", "open": "mode 0777", "cache": "No space left on device"}
    for name, text in said.items():
        (found,) = storage.check_disk(tmp_path / name)
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
    assert levels(troubles(storage.check_disk(tmp_path / "cache")).values()) == expected
