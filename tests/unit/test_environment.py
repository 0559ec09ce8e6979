"""The environment fingerprint: what it holds, where it is read, and what it must not import."""

from __future__ import annotations

import getpass
import importlib.metadata
import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.ascend_machine import ascend_places, lay_out_cann, lay_out_driver, lay_out_npus
from warmrank.worker.keys import environment as fingerprint

ROOT = Path(__file__).parents[2]

Read = Callable[[], dict[str, str]]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without accelerators; tests lay its files below the path."""
    ascend = ascend_places(tmp_path)
    monkeypatch.setattr("warmrank.worker.ascend.places.here", lambda: ascend)
    monkeypatch.setattr(fingerprint, "_NVIDIA", tmp_path / "nvidia")
    monkeypatch.setattr(fingerprint, "_NVIDIA_DEVICE", tmp_path / "nvidiactl")
    monkeypatch.setattr("warmrank.worker.keys.environment._CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr("warmrank.worker.keys.environment.architectures", tuple)
    return tmp_path


@pytest.fixture
def read() -> Read:
    """The fingerprint, computed anew."""
    return fingerprint._components.__wrapped__


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_environment_imports_neither_torch_nor_a_tracer() -> None:
    code = (
        "import json, sys\n"
        "from warmrank.worker.keys.environment import environment\n"
        "found = environment()\n"
        "print(json.dumps([found['torch'], sorted(sys.modules)]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    torch_component, modules = json.loads(done.stdout)
    assert torch_component.startswith(importlib.metadata.version("torch"))
    assert not {"torch", "sympy", "ray", "numpy", "torch_npu"} & set(modules)


def test_environment_has_nothing_of_the_host_or_the_user(tmp_path: Path) -> None:
    text = json.dumps(fingerprint.environment())
    for private in (socket.gethostname(), str(Path.home()), str(os.getpid()), str(Path.cwd()), sys.prefix):
        assert private not in text
    assert getpass.getuser() not in text.split()


def test_ascend_is_part_of_the_fingerprint(machine: Path, read: Read) -> None:
    lay_out_cann(machine / "cann", "9.0.0")
    lay_out_driver(machine, "25.5.0")
    lay_out_npus(machine, "910B2", 2)
    found = read()
    assert [found[name] for name in ("cann", "driver", "accelerator")] == [
        "9.0.0 V100R001C25SPC001B212",
        "ascend 25.5.0",
        "Ascend910B2",
    ]


def test_cpu_with_another_instruction_set_differs(machine: Path, read: Read) -> None:
    write(machine / "cpuinfo", "flags\t\t: avx avx2\n")
    first = read()
    write(machine / "cpuinfo", "flags\t\t: avx avx2 avx512f\n")
    assert read() != first


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cuda: Optional[str] = '12.6'\n", "12.6 cudnn nvidia-cudnn-cu12 9.5"),
        ("cuda = '13.0'\n", "13.0 cudnn nvidia-cudnn-cu13 9.5"),
        ("cuda: Optional[str] = None\n", "none"),
        ("__version__ = '1'\n", "none"),
    ],
)
def test_cuda_of_torch_is_read_without_importing_it(read, tmp_path, monkeypatch, text, expected):
    write(tmp_path / "version.py", text)
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"{name} 9.5")
    assert read()["cuda"] == expected
