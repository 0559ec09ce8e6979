"""Checks on a machine: accelerators, limits of the system, names and ports that ranks meet over.

Nothing is waited for longer than `PATIENCE_S`: what does not answer is left in its thread, or ended.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
import resource
import socket
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from warmrank.orchestrator.bounded import all_within
from warmrank.orchestrator.inspect.findings import Finding, error, note, ok, warning
from warmrank.orchestrator.inspect.software import Probe
from warmrank.orchestrator.text import size_text
from warmrank.worker.ascend.chips import visible_devices
from warmrank.worker.errors import DeviceUnavailable

PATIENCE_S = 5.0

FEWEST_FILES = 4096
"""Ray warns below it (ray/_private/worker.py, 2.60): its daemons hold sockets to every worker."""

FILES_PER_RANK = 256
"""Roughly what the processes of one rank hold open: libraries, logs, sockets, Ray's channels."""

SMALLEST_SHM_BYTES = 256 * 2**20
"""128 MiB for the object store of a launch's own Ray, and some for collectives; Docker gives 64 MiB."""

VARIABLES = {"cuda": "CUDA_VISIBLE_DEVICES", "npu": "ASCEND_RT_VISIBLE_DEVICES"}
_FILES = {"cuda": "nvidia", "npu": "davinci"}
_NEEDED: dict[str, tuple[str, ...]] = {
    "cuda": (),
    "npu": ("dev/davinci_manager", "dev/devmm_svm", "dev/hisi_hdc", "usr/local/Ascend/driver/lib64"),
}
"""Files that every process needs besides the device's own."""

_DRIVERS = {
    "cuda": "install the NVIDIA driver and look with `nvidia-smi`; in a container, --gpus all",
    "npu": "install the Ascend driver and look with `npu-smi info`; in a container, Ascend Docker Runtime, "
    "or --device for each /dev/davinciN and for /dev/davinci_manager, /dev/devmm_svm and /dev/hisi_hdc, and "
    "-v /usr/local/Ascend/driver:/usr/local/Ascend/driver:ro",
}

_FIRST_HCCL_PORT, _NUM_HCCL_PORTS = 60000, 16


def device_files(device: str, root: Path = Path("/")) -> list[Path]:
    """One file for each accelerator, such as ``/dev/davinci0``."""
    return sorted(
        (root / "dev").glob(f"{_FILES[device]}[0-9]*"), key=lambda path: (len(path.name), path.name)
    )


def check_devices(
    device: str, environ: Mapping[str, str], probe: Probe, *, root: Path = Path("/")
) -> Iterator[Finding]:
    """Check that accelerators are there, open to this user, visible, and usable by torch."""
    files = device_files(device, root)
    if not files:
        yield error("devices.present", f"there is no /dev/{_FILES[device]}[0-9]*", _DRIVERS[device])
        return
    yield ok("devices.present", f"{len(files)} of kind {device}: {_names(files)}")
    needed = [root / name for name in _NEEDED[device]]
    if missing := [path for path in needed if not path.exists()]:
        what = f"{_names(missing)} not there, without which no process can use an NPU"
        yield error("devices.driver", what, _DRIVERS[device])
    rights = {path: os.R_OK if path.is_dir() else os.R_OK | os.W_OK for path in (*files, *needed)}
    if closed := [path for path, right in rights.items() if path.exists() and not os.access(path, right)]:
        group = "HwHiAiUser" if device == "npu" else "video"
        remedy = f"usermod -a -G {group} USER (see ls -l /dev) and log in anew; in a container, --group-add"
        yield error("devices.access", f"this user may not open {_names(closed)}", remedy)
    yield _visible(device, environ, len(files))
    yield usable(device, probe)


def _visible(device: str, environ: Mapping[str, str], num_devices: int) -> Finding:
    name = VARIABLES[device]
    value = environ.get(name)
    if value is None:
        return ok("devices.visible", f"{name} is not set: all are visible; Ray sets it for each rank")
    fault = "" if value.strip() else "it names none"
    if device == "npu":
        try:
            fault = "" if visible_devices(environ, num_devices) else "it names none"
        except DeviceUnavailable as refused:
            fault = str(refused)
    elif not re.search(r"[A-Za-z]", value):  # UUIDs are not compared
        # CUDA reads up to the first unknown one.
        parts = [part.strip() for part in value.split(",")] if value.strip() else []
        fault = next((f"no device {p}" for p in parts if not p.isdecimal() or int(p) >= num_devices), fault)
    if not fault:
        return ok("devices.visible", f"{name}={value}")
    remedy = f"unset it before `ray start`, or name numbers from 0 to {num_devices - 1}, such as 0,1"
    return error("devices.visible", f"{name}={value!r} hides devices: {fault}", remedy)


def usable(device: str, probe: Probe) -> Finding:
    """Check that torch can use devices."""
    if probe.error:
        return note("devices.usable", "torch does not import, see versions.import")
    if probe.num_devices and not probe.device_error:
        return ok("devices.usable", f"torch can use {probe.num_devices}")
    return error(
        "devices.usable",
        f"torch can use no device of kind {device}: {probe.device_error or 'it counts 0'}",
        "mend the other findings on devices and versions first; a torch without CUDA, without kernels for "
        "this GPU, or too new for its driver needs another build (https://pytorch.org/get-started/locally)",
    )


def check_limits(num_ranks: int) -> Iterator[Finding]:
    """Check that the system allows what ranks need; ``num_ranks`` is 0 where that is not known."""
    try:
        shm = os.statvfs("/dev/shm")  # noqa: S108 - a mount point
        shm_bytes = shm.f_frsize * shm.f_bavail
    except OSError:
        shm_bytes = 0
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # Ray raises the soft limit by itself
    num_files = math.inf if hard == resource.RLIM_INFINITY else hard
    yield from judge_limits(num_files=num_files, shm_bytes=shm_bytes, num_ranks=num_ranks)


def judge_limits(*, num_files: float, shm_bytes: int, num_ranks: int) -> Iterator[Finding]:
    """Compare limits with what Ray and the ranks need; no threshold is exact, so none is an error."""
    wanted = max(FEWEST_FILES, FILES_PER_RANK * num_ranks)
    if num_files >= wanted:
        yield ok("limits.files", f"{wanted} open files or more are allowed")
    else:
        yield warning(
            "limits.files",
            f"at most {num_files:g} open files are allowed, expected {wanted} or more",
            "raise the hard limit as root: /etc/security/limits.conf, LimitNOFILE of the service that starts "
            "Ray, or --ulimit nofile=65536:65536 of the container",
        )
    there = f"{size_text(shm_bytes)} of shared memory free"
    if shm_bytes >= SMALLEST_SHM_BYTES:
        yield ok("limits.shared_memory", there)
    else:
        yield warning(
            "limits.shared_memory",
            f"{there}, expected {size_text(SMALLEST_SHM_BYTES)}: collectives may fail",
            "--shm-size=8g of the container, or in Kubernetes an emptyDir of medium Memory at /dev/shm; "
            "files that dead processes left there can be removed",
        )


def check_network(
    device: str, environ: Mapping[str, str], *, spans_nodes: bool, ray_address: str
) -> Iterator[Finding]:
    """Names, interfaces and ports that ranks meet over, and whether a Ray listens at its address."""
    if spans_nodes and not environ.get("GLOO_SOCKET_IFNAME"):
        host = socket.gethostname()
        (addresses,) = all_within([partial(_addresses, host)], timeout_s=PATIENCE_S)
        yield host_name(host, addresses)
    interfaces = [name for _, name in socket.if_nameindex()]
    for name in ("GLOO_SOCKET_IFNAME", *(["HCCL_SOCKET_IFNAME"] if device == "npu" else [])):
        if value := environ.get(name, ""):
            yield interface(name, value, interfaces)
    if device == "npu":
        yield _hccl_ports(environ)
    if problem := _connect(ray_address):
        yield error(
            "network.ray",
            f"nothing listens at {ray_address}, where the config's Ray cluster should be: {problem}",
            "start it there with `ray start --head --port=6379`, correct ray.address (or RAY_ADDRESS), or "
            "open the port between the nodes",
        )
    elif problem is not None:
        yield ok("network.ray", f"something listens at {ray_address}")


def host_name(host: str, addresses: Sequence[str] | None) -> Finding:
    """Check that other nodes reach the host by its name; ``addresses`` is None without an answer."""
    if addresses and not any(ipaddress.ip_address(address).is_loopback for address in addresses):
        return ok("network.host_name", f"the host's name {host} is {', '.join(addresses)}")
    found = ", ".join(addresses or ()) or ("not answered in time" if addresses is None else "unknown")
    return warning(
        "network.host_name",
        f"the host's name, at whose address gloo listens for ranks on other nodes, is {found}",
        "correct its line in /etc/hosts, or export GLOO_SOCKET_IFNAME=INTERFACE before `ray start`",
    )


def _addresses(host: str) -> tuple[str, ...]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # the latter for a name that no host may have
        return ()
    return tuple(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))


def interface(name: str, value: str, interfaces: Sequence[str]) -> Finding:
    """Check that a variable names interfaces that are there; one that is not ends every process group."""
    check = f"network.{name.partition('_')[0].lower()}_interface"
    # HCCL takes prefixes, and with = or ^ in front exact names or what to leave out.
    wanted = [part.lstrip("=^") for part in value.split(",")]
    missing = [part for part in wanted if not any(there.startswith(part) for there in interfaces)]
    if not missing:
        return ok(check, f"{name}={value}")
    what = f"{name} names {', '.join(missing)}, which is not there"
    return error(check, what, f"unset it, or name one of {', '.join(interfaces)}")


def _hccl_ports(environ: Mapping[str, str]) -> Finding:
    """Ports that HCCL takes on a node: by default 60000 to 60015, see `worker.ascend.hccl`."""
    text = environ.get("HCCL_IF_BASE_PORT", "")
    first = int(text) if text.isdecimal() and int(text) < 2**16 - _NUM_HCCL_PORTS else _FIRST_HCCL_PORT
    ports = range(first, first + _NUM_HCCL_PORTS)
    busy = [str(port) for port in ports if not _is_free(port)]
    if not busy:
        return ok("network.hccl_ports", f"ports {ports[0]}-{ports[-1]} are free for HCCL")
    return warning(
        "network.hccl_ports",
        f"others hold {', '.join(busy)} of HCCL's ports {ports[0]}-{ports[-1]}, another launch for example",
        "end it, or give this launch a range with HCCL_IF_BASE_PORT, outside of net.ipv4.ip_local_port_range",
    )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def _connect(address: str) -> str | None:
    """Error text if nothing listens at a host:port, else ``""``; None for an address of another form."""
    host, _, port = address.rpartition(":")
    if not host or "/" in address or not port.isdecimal():
        return None
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE_S).close()
    except (OSError, OverflowError) as refused:
        return str(refused) or type(refused).__name__
    return ""


def _names(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))
