"""Checks on a machine: accelerators, limits, names and ports; Python, torch, Ray, CANN and the compiler.

A finding is plain data: it crosses Ray, and becomes JSON as it stands. Nothing is waited for longer than
`PATIENCE_S`: what does not answer is left in its thread, or ended. torch is imported by an interpreter of its
own, with the variables that a rank would have, and within `PROBE_S`. The ranges of versions are those of
``pyproject.toml``.
"""

from __future__ import annotations

import importlib.metadata
import ipaddress
import json
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from warmrank.cache_store.backends.deadline import all_within
from warmrank.cache_store.text import ended_text, size_text
from warmrank.orchestrator import import_root
from warmrank.worker.ascend import Installation, fit, installation, visible_devices
from warmrank.worker.engines.toolchain import check_cpp_compiler, check_cuda
from warmrank.worker.errors import DeviceUnavailable, ToolchainError

Level = Literal["ok", "note", "warning", "error"]
"""``note``: not checked; ``warning``: some launches fail; ``error``: a launch on this node fails."""

PATIENCE_S = 5.0
SMALLEST_SHM_BYTES = 256 * 2**20
"""128 MiB for the object store of a launch's own Ray, and some for collectives; Docker gives 64 MiB."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Outcome of one check, named ``topic.subject``; ``remedy`` is empty where there is nothing to do."""

    check: str
    level: Level
    what: str
    remedy: str = ""


def judged(check: str, is_fine: bool, fine: str, fault: str, remedy: str, level: Level = "error") -> Finding:
    """A check that is ``fine``, or else its ``fault`` with the remedy."""
    return Finding(check, "ok", fine) if is_fine else Finding(check, level, fault, remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Signs of a device kind on a machine."""

    file: str  # in /dev, before the number of a device
    variable: str  # that hides devices
    needed: tuple[str, ...]  # files that every process needs besides the device's own
    group: str  # that may open them
    install: str


_KINDS = {
    "cuda": _Kind(
        file="nvidia",
        variable="CUDA_VISIBLE_DEVICES",
        needed=(),
        group="video",
        install="install the NVIDIA driver and look with `nvidia-smi`; in a container, --gpus all",
    ),
    "npu": _Kind(
        file="davinci",
        variable="ASCEND_RT_VISIBLE_DEVICES",
        needed=("dev/davinci_manager", "dev/devmm_svm", "dev/hisi_hdc", "usr/local/Ascend/driver/lib64"),
        group="HwHiAiUser",
        install="install the Ascend driver and look with `npu-smi info`; in a container, Ascend Docker "
        "Runtime, or --device for each /dev/davinciN and for /dev/davinci_manager, /dev/devmm_svm and "
        "/dev/hisi_hdc, and -v /usr/local/Ascend/driver:/usr/local/Ascend/driver:ro",
    ),
}


def device_files(device: str, root: Path = Path("/")) -> list[Path]:
    """One file for each accelerator, such as ``/dev/davinci0``."""
    found = (root / "dev").glob(f"{_KINDS[device].file}[0-9]*")
    return sorted(found, key=lambda path: (len(path.name), path.name))


def check_devices(
    device: str, environ: Mapping[str, str], probe: Probe, *, root: Path = Path("/")
) -> Iterator[Finding]:
    """Check that accelerators are there, open to this user, visible, and usable by torch."""
    kind, files = _KINDS[device], device_files(device, root)
    there = f"{len(files)} of kind {device}: {_names(files)}"
    yield judged("devices.present", bool(files), there, f"there is no /dev/{kind.file}[0-9]*", kind.install)
    if not files:
        return
    needed = [root / name for name in kind.needed]
    if missing := [path for path in needed if not path.exists()]:
        what = f"{_names(missing)} not there, without which no process can use an NPU"
        yield Finding("devices.driver", "error", what, kind.install)
    rights = {path: os.R_OK if path.is_dir() else os.R_OK | os.W_OK for path in (*files, *needed)}
    if closed := [path for path, right in rights.items() if path.exists() and not os.access(path, right)]:
        remedy = (
            f"usermod -a -G {kind.group} USER (see ls -l /dev) and log in anew; in a container, --group-add"
        )
        yield Finding("devices.access", "error", f"this user may not open {_names(closed)}", remedy)
    value, fault = environ.get(kind.variable), ""
    try:
        if value is not None and not (
            visible_devices(environ, len(files)) if device == "npu" else value.strip()
        ):
            fault = "it names none"
    except DeviceUnavailable as refused:
        fault = str(refused)
    if device == "cuda" and value and not re.search(r"[A-Za-z]", value):  # UUIDs are not compared
        # CUDA reads up to the first unknown one.
        numbers = [part.strip() for part in value.split(",")]
        unknown = [each for each in numbers if not each.isdecimal() or int(each) >= len(files)]
        fault = fault or (f"no device {unknown[0]}" if unknown else "")
    yield judged(
        "devices.visible",
        not fault,
        f"{kind.variable} is not set: all are visible" if value is None else f"{kind.variable}={value}",
        f"{kind.variable}={value!r} hides devices: {fault}",
        f"unset it before `ray start`, or name numbers from 0 to {len(files) - 1}, such as 0,1",
    )
    yield usable(device, probe)


def usable(device: str, probe: Probe) -> Finding:
    """Check that torch can use devices."""
    if probe.error:
        return Finding("devices.usable", "note", "not checked: torch does not import, see versions.import")
    return judged(
        "devices.usable",
        probe.num_devices > 0 and not probe.device_error,
        f"torch can use {probe.num_devices}",
        f"torch can use no device of kind {device}: {probe.device_error or 'it counts 0'}",
        "mend the other findings on devices and versions first; a torch without CUDA, without kernels for "
        "this GPU, or too new for its driver needs another build (https://pytorch.org/get-started/locally)",
    )


def check_limits() -> Iterator[Finding]:
    """Compare the shared memory that is free with what Ray and collectives need."""
    try:
        shm = os.statvfs("/dev/shm")  # noqa: S108 - a mount point
        shm_bytes = shm.f_frsize * shm.f_bavail
    except OSError:
        shm_bytes = 0
    there = f"{size_text(shm_bytes)} of shared memory free"
    yield judged(
        "limits.shared_memory",
        shm_bytes >= SMALLEST_SHM_BYTES,
        there,
        f"{there}, expected {size_text(SMALLEST_SHM_BYTES)}: collectives may fail",
        "--shm-size=8g of the container, or in Kubernetes an emptyDir of medium Memory at /dev/shm; "
        "files that dead processes left there can be removed",
        "warning",
    )


def check_network(
    device: str, environ: Mapping[str, str], *, spans_nodes: bool, ray_address: str
) -> Iterator[Finding]:
    """Names, interfaces and ports that ranks meet over, and whether a Ray listens at its address."""
    if spans_nodes and not environ.get("GLOO_SOCKET_IFNAME"):
        yield _host_name(socket.gethostname())
    interfaces = [name for _, name in socket.if_nameindex()]
    for name in ("GLOO_SOCKET_IFNAME", *(["HCCL_SOCKET_IFNAME"] if device == "npu" else [])):
        if value := environ.get(name, ""):
            # HCCL takes prefixes, and with = or ^ in front exact names or what to leave out.
            wanted = [part.lstrip("=^") for part in value.split(",")]
            missing = [part for part in wanted if not any(there.startswith(part) for there in interfaces)]
            yield judged(
                f"network.{name.partition('_')[0].lower()}_interface",
                not missing,
                f"{name}={value}",
                f"{name} names {', '.join(missing)}, which is not there",
                f"unset it, or name one of {', '.join(interfaces)}",
            )
    host, _, port = ray_address.rpartition(":")
    if host and "/" not in ray_address and port.isdecimal():
        problem = ""
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE_S).close()
        except (OSError, OverflowError) as refused:
            problem = str(refused) or type(refused).__name__
        yield judged(
            "network.ray",
            not problem,
            f"something listens at {ray_address}",
            f"nothing listens at {ray_address}, where the config's Ray cluster should be: {problem}",
            "start it there with `ray start --head --port=6379`, correct ray.address (or RAY_ADDRESS), or "
            "open the port between the nodes",
        )


def _host_name(host: str) -> Finding:
    """Check that other nodes reach the host by its name."""
    (found,) = all_within([partial(_addresses, host)], timeout_s=PATIENCE_S)
    there = ", ".join(found or ()) or ("not answered in time" if found is None else "unknown")
    return judged(
        "network.host_name",
        bool(found) and not any(ipaddress.ip_address(each).is_loopback for each in found or ()),
        f"the host's name {host} is {there}",
        f"the host's name, at whose address gloo listens for ranks on other nodes, is {there}",
        "correct its line in /etc/hosts, or export GLOO_SOCKET_IFNAME=INTERFACE before `ray start`",
        "warning",
    )


def _addresses(host: str) -> tuple[str, ...]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # the latter for a name that no host may have
        return ()
    return tuple(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))


def _names(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))


RANGES = {"python": ("3.11", "4"), "torch": ("2.11", "3"), "ray": ("2.50", "3"), "torch_npu": ("2.11", "3")}
"""The oldest release that is supported, and the first that is not any more."""

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
PROBE_S = 120.0  # A first import of torch from a cold network disk takes long; a rank would wait as long

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
    facts: Sequence[Sequence[str]] = ()  # that compiles rely on: module, fact, what is there instead


def probe_torch(device: str, environ: Mapping[str, str], *, timeout_s: float = PROBE_S) -> Probe:
    """Import torch in a fresh interpreter, with the variables that a rank would have."""
    path = os.pathsep.join(filter(None, (str(import_root()), environ.get("PYTHONPATH"))))
    child = {**environ, "PYTHONPATH": path}
    if device != "npu":
        child[AUTOLOAD] = "0"  # as for ranks, see `ray_session.rank_environ`
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter
            [sys.executable, "-c", _PROBE, device],
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
        return Probe(error=f"the interpreter {ended_text(done.returncode)}: {last[:500]}")
    return Probe(**said)


def check_software(device: str, probe: Probe) -> Iterator[Finding]:
    """All findings on software."""
    installed = {"python": platform.python_version()}
    for name in (*RANGES,)[1:]:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
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
        extra = "[npu]" if name == "torch_npu" else ""
        yield judged(
            f"versions.{name}",
            _release(oldest) <= _release(version) < _release(beyond),
            f"{name} {version}",
            f"{name} is {version or 'not installed'}, expected >= {oldest}, < {beyond}",
            f"make an environment with Python {oldest} or later"
            if name == "python"
            else f"pip install -e 'PATH_TO_CLONE{extra}' installs one that fits",
        )


def check_probe(probe: Probe) -> Iterator[Finding]:
    """Check that torch imports, and has what the modules of `worker.torch_private` rely on."""
    yield judged(
        "versions.import",
        not probe.error,
        f"torch {probe.torch} imports in a fresh interpreter",
        f"{'torch_npu' if probe.torch else 'torch'} does not import: {probe.error}",
        "install it anew; a missing libhccl.so or libascendcl.so is CANN's, whose set_env.sh must be "
        f"sourced before `ray start`; where torch_npu is installed without CANN, export {AUTOLOAD}=0",
    )
    if not probe.error:
        broken = [f"{module}: {text}: {instead}" for module, text, instead in probe.facts if instead]
        yield judged(
            "versions.facts",
            not broken,
            f"all {len(probe.facts)} facts that compiles rely on hold",
            f"nothing compiles, because torch {probe.torch} is not what is relied on: {'; '.join(broken)}",
            "install a torch that is tested (docs/status.md); artifacts load without these facts",
        )


def check_ascend(found: Installation, installed: Mapping[str, str]) -> Iterator[Finding]:
    """CANN and the driver, and what of them does not belong together; `worker.ascend` names the remedies."""
    yield judged(
        "ascend.cann",
        bool(found.cann),
        f"CANN {found.cann_detail or found.cann} in {found.home}",
        "CANN is neither in /usr/local/Ascend nor at ASCEND_HOME_PATH, and torch_npu needs it",
        "install CANN's toolkit and kernels of one release",
    )
    yield judged(
        "ascend.driver",
        bool(found.driver),
        f"driver {found.driver}{', ' if found.soc else ''}{found.soc}",
        "there is no version.info in /usr/local/Ascend/driver",
        "install the driver; in a container mount /usr/local/Ascend/driver read-only",
    )
    for problem in found.problems:
        yield Finding("ascend.problems", "warning", problem)
    for misfit in fit(installed.get("torch", ""), installed.get("torch_npu", ""), found.cann):
        yield Finding("ascend.fit", "warning", misfit)


def _compiler(device: str) -> Finding:
    fault = ""
    try:
        check_cpp_compiler()
        if device == "cuda":
            check_cuda()
    except ToolchainError as missing:
        fault = missing.message
    return judged(
        "versions.compiler",
        not fault,
        "there is what mode max-autotune compiles with",
        f"mode max-autotune cannot compile here: {fault}",
        "install a C++ compiler (on cuda Triton and the CUDA toolkit too) on nodes that compile; loads, "
        "and mode reduce-overhead, need none of it",
        "warning",
    )


def _release(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: ``2.13.0+cpu`` -> (2, 13, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
