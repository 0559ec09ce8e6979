"""Checks on software: Python, torch, Ray, torch_npu, CANN, the compiler, and what compiles rely on of torch.

torch is imported by an interpreter of its own, with the variables that a rank would have, and within
`PROBE_S`. The ranges are those of ``pyproject.toml``; a test compares the two.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from warmrank.orchestrator import import_root
from warmrank.orchestrator.inspect.findings import Finding, error, ok, warning
from warmrank.worker.ascend.chips import Installation, installation
from warmrank.worker.ascend.versions import fit
from warmrank.worker.engines.toolchain import check_cpp_compiler, check_cuda
from warmrank.worker.errors import ToolchainError

RANGES: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "python": ((3, 11), (4,)),
    "torch": ((2, 11), (3,)),
    "ray": ((2, 50), (3,)),
    "torch_npu": ((2, 11), (3,)),
}
"""The oldest release that is supported, and the first that is not any more."""

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
PROBE_S = 120.0
"""A first import of torch from a cold network disk takes long; a rank would wait as long."""

_PROBE = """
import json, sys
kind = sys.argv[1]
said = {}
try:
    import torch
    said["torch"] = torch.__version__
    if kind == "npu":
        import torch_npu
except Exception as error:
    said["error"] = f"{type(error).__name__}: {error}"
else:
    if kind != "cpu":
        try:
            module = torch.get_device_module(kind)
            said["num_devices"] = module.device_count() if module.is_available() else 0
            torch.zeros(1, device=kind)  # or torch says why it cannot
        except Exception as error:
            said["device_error"] = f"{type(error).__name__}: {error}"
    from warmrank.worker.torch_private import facts
    groups = ["compile", "trial", "offline", "torchair" if kind == "npu" else "inductor"]
    found = (fact for name in groups for fact in facts.examined(name))
    said["facts"] = [[fact.module, fact.text, fact.instead] for fact in found]
print(json.dumps({name: str(v)[:500] if isinstance(v, str) else v for name, v in said.items()}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Answer of a fresh interpreter that imported torch as a rank does."""

    error: str = ""  # why it did not import, or did not answer; empty if it did
    torch: str = ""  # version
    num_devices: int = 0  # devices of the kind asked for that torch can use
    device_error: str = ""  # why it cannot use them, in torch's words
    facts: tuple[tuple[str, str, str], ...] = ()  # that compiles rely on: module, fact, what is there instead


def probe_torch(device: str, environ: Mapping[str, str], *, timeout_s: float = PROBE_S) -> Probe:
    """Import torch in a fresh interpreter, with the variables that a rank would have."""
    child = dict(environ)
    if device != "npu":
        child[AUTOLOAD] = "0"  # as for ranks, see `ray_session.rank_environ`
    root = str(import_root())
    child["PYTHONPATH"] = os.pathsep.join(part for part in (root, child.get("PYTHONPATH", "")) if part)
    command = [sys.executable, "-c", _PROBE, device]
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter
            command,
            env=child,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
        said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return Probe(error=f"no answer within {timeout_s:g} s")
    except (IndexError, ValueError):
        last = next(reversed(done.stderr.strip().splitlines()), "")
        return Probe(error=f"the interpreter ended with status {done.returncode}: {last[:500]}")
    said["facts"] = tuple(map(tuple, said.get("facts", ())))
    return Probe(**said)


def check_software(device: str, probe: Probe) -> Iterator[Finding]:
    """All findings on software."""
    installed = {name: version for name in RANGES if (version := _version(name))}
    installed["python"] = platform.python_version()
    yield from check_versions(device, installed)
    if device == "npu":
        yield from check_ascend(installation(), installed)
    yield from check_probe(probe)
    if device != "npu":
        yield _compiler(device)


def check_versions(device: str, installed: Mapping[str, str]) -> Iterator[Finding]:
    """Compare versions with the supported ranges; what is not installed is left out of ``installed``."""
    for name, (oldest, beyond) in RANGES.items():
        if name == "torch_npu" and device != "npu":
            continue
        version = installed.get(name, "")
        if version and oldest <= release(version) < beyond:
            yield ok(f"versions.{name}", f"{name} {version}")
            continue
        extra = "[npu]" if name == "torch_npu" else ""
        yield error(
            f"versions.{name}",
            f"{name} is {version or 'not installed'}, expected >= {_dotted(oldest)}, < {_dotted(beyond)}",
            f"make an environment with Python {_dotted(oldest)} or later"
            if name == "python"
            else f"pip install -e 'PATH_TO_CLONE{extra}' installs one that fits",
        )


def check_probe(probe: Probe) -> Iterator[Finding]:
    """Check that torch imports, and has what the modules of `worker.torch_private` rely on."""
    if probe.error:
        yield error(
            "versions.import",
            f"{'torch_npu' if probe.torch else 'torch'} does not import: {probe.error}",
            "install it anew; a missing libhccl.so or libascendcl.so is CANN's, whose set_env.sh must be "
            f"sourced before `ray start`; where torch_npu is installed without CANN, export {AUTOLOAD}=0",
        )
        return
    yield ok("versions.import", f"torch {probe.torch} imports in a fresh interpreter")
    broken = [f"{module}: {text}: {instead}" for module, text, instead in probe.facts if instead]
    if broken:
        yield error(
            "versions.facts",
            f"nothing compiles, because torch {probe.torch} is not what is relied on: {'; '.join(broken)}",
            "install a torch that is tested (docs/status.md); artifacts load without these facts",
        )
    else:
        yield ok("versions.facts", f"all {len(probe.facts)} facts that compiles rely on hold")


def check_ascend(found: Installation, installed: Mapping[str, str]) -> Iterator[Finding]:
    """CANN and the driver, and what of them does not belong together; `worker.ascend` names the remedies."""
    if found.cann:
        yield ok("ascend.cann", f"CANN {found.cann_detail or found.cann} in {found.home}")
    else:
        yield error(
            "ascend.cann",
            "CANN is neither in /usr/local/Ascend nor at ASCEND_HOME_PATH, and torch_npu needs it",
            "install CANN's toolkit and kernels of one release",
        )
    if found.driver:
        yield ok("ascend.driver", f"driver {found.driver}{', ' if found.soc else ''}{found.soc}")
    else:
        yield error(
            "ascend.driver",
            "there is no version.info in /usr/local/Ascend/driver",
            "install the driver; in a container mount /usr/local/Ascend/driver read-only",
        )
    for problem in found.problems:
        yield warning("ascend.problems", problem, "")
    for misfit in fit(installed.get("torch", ""), installed.get("torch_npu", ""), found.cann, found.driver):
        yield warning("ascend.fit", misfit, "")


def _compiler(device: str) -> Finding:
    try:
        check_cpp_compiler()
        if device == "cuda":
            check_cuda()
    except ToolchainError as fault:
        return warning(
            "versions.compiler",
            f"mode max-autotune cannot compile here: {fault.message}",
            "install a C++ compiler (on cuda Triton and the CUDA toolkit too) on nodes that compile; loads, "
            "and mode reduce-overhead, need none of it",
        )
    return ok("versions.compiler", "there is what mode max-autotune compiles with")


def release(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: ``2.13.0+cpu`` -> (2, 13, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(str(number) for number in numbers)


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""
