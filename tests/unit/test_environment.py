"""The environment fingerprint: what it holds, where it is read, and what it must not import."""

from __future__ import annotations

import getpass
import importlib.metadata
import importlib.util
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from worker import environment as fingerprint

NAMES = {"python", "torch", "cuda", "torch_npu", "cann", "driver", "accelerator", "cpu"}
ROOT = Path(__file__).parents[2]

Read = Callable[[], dict[str, str]]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without accelerators; tests lay its files below the path."""
    monkeypatch.setattr(fingerprint, "_CANN_ROOTS", (tmp_path / "cann", tmp_path / "other"))
    monkeypatch.setattr(fingerprint, "_ASCEND_DRIVER", tmp_path / "ascend" / "version.info")
    monkeypatch.setattr(fingerprint, "_NVIDIA", tmp_path / "nvidia")
    monkeypatch.setattr(fingerprint, "_NVIDIA_DEVICE", tmp_path / "nvidiactl")
    monkeypatch.setattr("worker.instruction_set._CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(fingerprint, "architectures", tuple)
    return tmp_path


@pytest.fixture
def read() -> Read:
    """The fingerprint, computed anew."""
    return fingerprint.environment.__wrapped__


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_environment_has_all_components_on_this_machine() -> None:
    found = fingerprint.environment()
    assert set(found) == NAMES
    assert all(found.values())


def test_environment_imports_neither_torch_nor_a_tracer() -> None:
    code = (
        "import json, sys\n"
        "from worker.environment import environment\n"
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


def test_python_names_implementation_and_full_version(read: Read) -> None:
    assert read()["python"] == f"{platform.python_implementation().lower()} {platform.python_version()}"


def test_torch_names_version_and_git_revision(read: Read) -> None:
    import torch

    assert read()["torch"] == f"{torch.__version__} git {torch.version.git_version[:12]}"


def test_torch_that_is_not_installed_is_none(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert read()["torch"] == "none"


def test_torch_of_another_build_differs(read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "version.py", "__version__ = '2.13.0+cpu'\ngit_version = 'feedfacefeedface'\n")
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert read()["torch"] == "2.13.0+cpu git feedfacefeed"


def test_torch_npu_is_the_version_of_the_installed_package(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"{name} 2.11")
    assert read()["torch_npu"] == "torch_npu 2.11"


def test_machine_without_accelerators_says_none(machine: Path, read: Read) -> None:
    found = read()
    assert [found[name] for name in ("cann", "driver", "accelerator")] == ["none"] * 3


def test_cann_is_read_from_its_version_file(machine: Path, read: Read) -> None:
    write(machine / "cann" / "version.cfg", "# version: 1.0\nruntime_running_version=[7.6.0.1:8.0.RC2]\n")
    assert read()["cann"] == "7.6.0.1:8.0.RC2"


def test_cann_is_read_from_its_compiler_where_there_is_no_version_file(machine: Path, read: Read) -> None:
    write(machine / "other" / "compiler" / "version.info", "Version=8.0.RC2\nversion_dir=8.0\n")
    assert read()["cann"] == "8.0.RC2"


def test_cann_of_the_first_root_wins(machine: Path, read: Read) -> None:
    write(machine / "cann" / "opp" / "version.info", "Version=8.0\n")
    write(machine / "other" / "version.cfg", "Version=7.0\n")
    assert read()["cann"] == "8.0"


def test_driver_of_ascend_is_read(machine: Path, read: Read) -> None:
    write(machine / "ascend" / "version.info", "Version=23.0.rc3\nascendhal_version=7.0\n")
    assert read()["driver"] == "ascend 23.0.rc3"


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\n",
    ],
    ids=["closed", "open"],
)
def test_driver_of_nvidia_is_read(machine: Path, read: Read, line: str) -> None:
    write(machine / "nvidia" / "version", line)
    assert read()["driver"] == "nvidia 550.54.15"


def test_accelerator_names_each_model_once(machine: Path, read: Read) -> None:
    for bus, model in (("0:1", "NVIDIA H100"), ("0:2", "NVIDIA H100"), ("0:3", "NVIDIA A10")):
        write(machine / "nvidia" / "gpus" / bus / "information", f"Model: \t {model}\nIRQ: 1\n")
    assert read()["accelerator"] == "NVIDIA A10, NVIDIA H100"


def test_accelerator_does_not_depend_on_the_slot(machine: Path, read: Read) -> None:
    write(machine / "nvidia" / "gpus" / "0:1" / "information", "Model: NVIDIA H100\nBus Location: 0:1\n")
    first = read()
    write(machine / "nvidia" / "gpus" / "0:1" / "information", "Model: NVIDIA H100\nBus Location: 7:1\n")
    assert read() == first


def test_cpu_names_machine_and_instruction_sets_in_a_fixed_order(machine: Path, read: Read) -> None:
    write(machine / "cpuinfo", "flags\t\t: fpu fma avx2 avx sse\n")
    assert read()["cpu"] == f"{platform.machine()} avx avx2 fma"


def test_cpu_of_arm_is_read(machine: Path, read: Read) -> None:
    write(machine / "cpuinfo", "Features\t: fp asimd sve\n")
    assert read()["cpu"] == f"{platform.machine()} asimd sve"


def test_cpu_with_another_instruction_set_differs(machine: Path, read: Read) -> None:
    write(machine / "cpuinfo", "flags\t\t: avx avx2\n")
    first = read()
    write(machine / "cpuinfo", "flags\t\t: avx avx2 avx512f\n")
    assert read() != first


def test_cpu_clock_does_not_count(machine: Path, read: Read) -> None:
    write(machine / "cpuinfo", "cpu MHz\t\t: 2100.0\nflags\t\t: avx\n")
    first = read()
    write(machine / "cpuinfo", "cpu MHz\t\t: 3900.0\nflags\t\t: avx\n")
    assert read() == first


def test_cpu_without_proc_is_the_machine(machine: Path, read: Read) -> None:
    assert read()["cpu"] == platform.machine()


@pytest.mark.parametrize("place", ["nvidia/version", "nvidiactl"])
def test_architecture_of_gpus_is_part_of_the_fingerprint(
    machine: Path, read: Read, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    write(machine / place, "")
    monkeypatch.setattr(fingerprint, "architectures", lambda: ("NVIDIA A10 sm_86", "NVIDIA H100 sm_90"))
    assert read()["accelerator"] == "NVIDIA A10 sm_86, NVIDIA H100 sm_90"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cuda: Optional[str] = '12.6'\n", "12.6 cudnn nvidia-cudnn-cu12 9.5"),
        ("cuda = '13.0'\n", "13.0 cudnn nvidia-cudnn-cu13 9.5"),
        ("cuda: Optional[str] = None\n", "none"),
        ("__version__ = '1'\n", "none"),
    ],
)
def test_cuda_of_torch_is_read_without_importing_it(
    read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: str
) -> None:
    write(tmp_path / "version.py", text)
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"{name} 9.5")
    assert read()["cuda"] == expected
