"""Looks at a node: what is installed, and its devices. Input only.

Everything here answers within seconds or says that it did not: torch is imported by an interpreter of its
own, and tools of drivers get a time limit. What a function cannot find out it leaves empty.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from warmrank.orchestrator import import_root
from warmrank.orchestrator.doctor.ascend import Ascend
from warmrank.orchestrator.doctor.devices import DRIVER_LIBRARIES, VARIABLES, DeviceFile, Devices, Tool
from warmrank.orchestrator.doctor.versions import AUTOLOAD, RANGES, Probe, Versions
from warmrank.worker.ascend.chips import installation
from warmrank.worker.ascend.versions import fit
from warmrank.worker.environment import environment
from warmrank.worker.errors import ToolchainError
from warmrank.worker.settings import settings
from warmrank.worker.toolchain import check_cpp_compiler, check_cuda

PROBE_S = 120.0
"""A first import of torch from a cold network disk takes long; a rank would wait as long."""

TOOL_S = 20.0

_FILES = {"cuda": "nvidia", "npu": "davinci"}
_MANAGERS = {
    "cuda": ("/dev/nvidiactl", "/dev/nvidia-uvm"),
    "npu": ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"),
}

_PROBE = """
import json, sys
kind = sys.argv[1]
said = {}
try:
    import torch
    said["torch"] = torch.__version__
    said["cuda"] = torch.version.cuda or ""
    if kind == "npu":
        import torch_npu
except Exception as error:
    said["error"] = f"{type(error).__name__}: {error}"
else:
    if kind != "cpu":
        try:
            module = torch.get_device_module(kind)
            said["num_devices"] = module.device_count() if module.is_available() else 0
            if kind == "cuda" and said["cuda"]:
                said["architectures"] = module.get_arch_list()
        except Exception as error:
            said["device_error"] = f"{type(error).__name__}: {error}"
    from warmrank.worker.torch_private import facts
    said["untested"] = facts.untested()
    groups = ["compile", "trial", "offline", "torchair" if kind == "npu" else "inductor"]
    found = (fact for name in groups for fact in facts.examined(name))
    said["facts"] = [[fact.module, fact.text, fact.instead] for fact in found]
print(json.dumps({name: str(v)[:500] if isinstance(v, str) else v for name, v in said.items()}))
"""


def probe_torch(device: str, environ: Mapping[str, str]) -> Probe:
    """Import torch in a fresh interpreter, with the variables that a rank would have."""
    child = dict(environ)
    if device != "npu":
        child[AUTOLOAD] = "0"  # as for ranks, see `ray_session.rank_environ`
    root = str(import_root())
    child["PYTHONPATH"] = os.pathsep.join(part for part in (root, child.get("PYTHONPATH", "")) if part)
    command = [sys.executable, "-c", _PROBE, device]
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter
            command, env=child, capture_output=True, text=True, errors="replace", timeout=PROBE_S, check=False
        )
        said = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return Probe(error=f"no answer within {PROBE_S:g} s")
    except (IndexError, ValueError):
        last = next(reversed(done.stderr.strip().splitlines()), "")
        return Probe(error=f"the interpreter ended with status {done.returncode}: {last[:500]}")
    said["architectures"] = tuple(said.get("architectures", ()))
    said["facts"] = tuple(map(tuple, said.get("facts", ())))
    return Probe(**said)


def look_at_versions(device: str, environ: Mapping[str, str], probe: Probe) -> Versions:
    """What is installed."""
    here = environment()
    driver = here["driver"]
    return Versions(
        device=device,
        python=platform.python_version(),
        installed={name: version for name in RANGES if (version := _version(name))},
        autoload=environ.get(AUTOLOAD),
        has_cann=here["cann"] != "none",
        nvidia_driver=driver.removeprefix("nvidia ") if driver.startswith("nvidia ") else "",
        accelerators=here["accelerator"],
        probe=probe,
        compiler_problem=_compiler_problem(device),
    )


def look_at_ascend(versions: Versions) -> Ascend:
    """What is installed of Ascend's software, and what of it does not belong together."""
    found = installation()
    installed = versions.installed
    misfits = fit(installed.get("torch", ""), installed.get("torch_npu", ""), found.cann, found.driver)
    return Ascend(
        cann=found.cann_detail or found.cann,
        home=found.home,
        is_set_up=bool(settings().ascend_home),
        driver=found.driver,
        firmware=found.firmware,
        soc=found.soc,
        num_chips=len(found.chips),
        problems=found.problems,
        misfits=misfits,
    )


def look_at_devices(device: str, environ: Mapping[str, str], probe: Probe, *, num_ranks: int) -> Devices:
    """What there is of an accelerator."""
    files = sorted(Path("/dev").glob(f"{_FILES[device]}[0-9]*"), key=lambda path: (len(path.name), path.name))
    managers = [Path(name) for name in _MANAGERS[device]]
    there = [path for path in managers if path.exists()]
    return Devices(
        device=device,
        files=_files(files),
        managers=_files(there),
        missing_managers=tuple(str(path) for path in managers if path not in there),
        has_driver_libraries=device != "npu" or Path(DRIVER_LIBRARIES).is_dir(),
        visible=environ.get(VARIABLES[device]),
        in_container=in_container(environ),
        tool=_tool("nvidia-smi", "-L") if device == "cuda" else None,
        num_usable=None if probe.error else probe.num_devices,
        device_error=probe.device_error,
        num_ranks=num_ranks,
    )


def has_nvidia_files() -> bool:
    """Whether there are files of NVIDIA devices."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def in_container(environ: Mapping[str, str]) -> bool:
    """Whether this process runs in a container, as far as that shows."""
    marks = (Path("/.dockerenv"), Path("/run/.containerenv"))
    return "KUBERNETES_SERVICE_HOST" in environ or any(mark.exists() for mark in marks)


def _compiler_problem(device: str) -> str:
    """Why Inductor could compile nothing for this device kind; not asked on npu, where it never does."""
    if device == "npu":
        return ""
    try:
        check_cpp_compiler()
        if device == "cuda":
            check_cuda()
    except ToolchainError as error:
        return error.message
    return ""


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _files(paths: Iterable[Path]) -> tuple[DeviceFile, ...]:
    return tuple(DeviceFile(path=str(path), usable=os.access(path, os.R_OK | os.W_OK)) for path in paths)


def _tool(name: str, argument: str) -> Tool | None:
    path = shutil.which(name)
    if path is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 - the driver's own tool
            [path, argument], capture_output=True, text=True, errors="replace", timeout=TOOL_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Tool(name=name, problem=f"no answer within {TOOL_S:g} s")
    first = next(iter((done.stderr.strip() or done.stdout.strip()).splitlines()), "")
    return Tool(name=name, problem=f"status {done.returncode}: {first[:200]}" if done.returncode else "")
