"""Looks at names, interfaces, the links of NPUs, and whether a Ray listens. Input only.

What does not answer within `PATIENCE_S` is left in its thread, or ended.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from warmrank.orchestrator.bounded import all_within
from warmrank.orchestrator.doctor.network import GLOO, HCCL, HcclLink, Network

PATIENCE_S = 5.0

_CONNECT_S = 5.0
_FIRST_HCCL_PORT, _NUM_HCCL_PORTS = 60000, 16
_CURRENT_CLUSTER = "ray_current_cluster"  # ray/_private/ray_constants.py, 2.60


def look_at_network(
    device: str, environ: Mapping[str, str], *, spans_nodes: bool, ray_address: str
) -> Network:
    """Names, interfaces, the links of NPUs, and whether a Ray listens at ``ray_address``."""
    host = socket.gethostname()
    started = time.monotonic()
    (addresses,) = all_within([partial(_addresses, host)], timeout_s=PATIENCE_S)
    resolve_s = time.monotonic() - started if addresses is not None else float("inf")
    links, hccn_problem = _hccl_links() if device == "npu" else ((), "")
    ports = _hccl_ports(environ)
    address = _found_address(environ) if ray_address == "auto" else ray_address
    return Network(
        device=device,
        host=host,
        addresses=addresses or (),
        resolve_s=resolve_s,
        gloo_interface=environ.get(GLOO, ""),
        hccl_interface=environ.get(HCCL, ""),
        interfaces=tuple(name for _, name in socket.if_nameindex()),
        spans_nodes=spans_nodes,
        has_hccn_conf=Path("/etc/hccn.conf").is_file(),
        links=links,
        hccn_problem=hccn_problem,
        hccl_ports=(ports.start, ports.stop - 1),
        busy_hccl_ports=tuple(port for port in ports if not _is_free(port)) if device == "npu" else (),
        ray_address=address,
        ray_problem=_connect(address),
    )


def _addresses(host: str) -> tuple[str, ...]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # the latter for a name that no host may have
        return ()
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def _hccl_ports(environ: Mapping[str, str]) -> range:
    """Ports that HCCL takes on a node: by default 60000 to 60015, see `worker.ascend.hccl`."""
    text = environ.get("HCCL_IF_BASE_PORT", "")
    first = int(text) if text.isdecimal() and int(text) < 2**16 - _NUM_HCCL_PORTS else _FIRST_HCCL_PORT
    return range(first, first + _NUM_HCCL_PORTS)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def _found_address(environ: Mapping[str, str]) -> str:
    """Where Ray would find a cluster of this machine; empty if that is not known."""
    path = Path(environ.get("RAY_TMPDIR", "/tmp")) / "ray" / _CURRENT_CLUSTER  # noqa: S108 - Ray's own place
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _connect(address: str) -> str:
    """Why nothing listens at an address such as host:port; empty if something does, or it is no such form."""
    host, _, port = address.rpartition(":")
    if not host or "/" in address or not port.isdecimal():
        return ""
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        return str(error) or type(error).__name__
    return ""


def _hccl_links() -> tuple[tuple[HcclLink, ...], str]:
    """The links of all NPUs, or why they are not known."""
    tool = shutil.which("hccn_tool")
    if tool is None:
        return (), "hccn_tool is not on PATH, so the NPUs' links are not known"
    ids = sorted(
        int(match[1])
        for path in Path("/dev").iterdir()
        if (match := re.fullmatch(r"davinci(\d+)", path.name))
    )
    calls = [partial(_link, (tool, "-i", str(number), "-link", "-g")) for number in ids]
    states = all_within(calls, timeout_s=PATIENCE_S)
    if ids and not any(states):
        return (), "hccn_tool tells no state of a link to this user"
    return tuple(
        HcclLink(device=number, state=state or "") for number, state in zip(ids, states, strict=True)
    ), ""


def _link(command: Sequence[str]) -> str:
    """What ``hccn_tool`` says, such as ``link status: UP``."""
    try:
        done = subprocess.run(  # noqa: S603 - the driver's own tool
            command, capture_output=True, text=True, errors="replace", timeout=PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r"link status:\s*(\w+)", done.stdout)
    return match[1].upper() if match else ""
