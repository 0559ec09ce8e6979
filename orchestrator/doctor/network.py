"""Checks on names, addresses and links that ranks meet over. Pure functions.

gloo listens on the address that the host's name resolves to: where that is 127.0.0.1 other nodes cannot reach
it, and a name server that gives no answer costs each rank seconds (20 s were measured).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass

from warmrank.orchestrator.doctor.findings import Finding, ok, unknown

SLOW_NAME_S = 1.0
GLOO = "GLOO_SOCKET_IFNAME"
HCCL = "HCCL_SOCKET_IFNAME"


@dataclass(frozen=True, slots=True, kw_only=True)
class HcclLink:
    """The network of one NPU: ``state`` is what ``hccn_tool -i N -link -g`` said, such as ``UP``."""

    device: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What a node shows of its network.

    Attributes:
        device: device kind that the node is checked for.
        host: its name.
        addresses: what the name resolves to; empty if it does not.
        resolve_s: how long that took; infinity where no answer came in time.
        gloo_interface: value of ``GLOO_SOCKET_IFNAME``; empty where it is not set.
        hccl_interface: value of ``HCCL_SOCKET_IFNAME``; empty where it is not set.
        interfaces: names of the network interfaces.
        spans_nodes: the ranks may lie on several nodes.
        has_hccn_conf: ``/etc/hccn.conf`` is there, where the addresses of NPUs stand.
        links: of the NPUs, where ``hccn_tool`` answered.
        hccn_problem: why it gave no answer; empty if it did, or was not asked.
        hccl_ports: first and last port that HCCL takes on a node.
        busy_hccl_ports: of these, those that others hold.
        ray_address: where the config's cluster listens; empty for a Ray of this machine, or one that Ray
            finds.
        ray_problem: why nothing listens there; empty if something does.
    """

    device: str
    host: str
    addresses: tuple[str, ...]
    resolve_s: float
    gloo_interface: str
    hccl_interface: str
    interfaces: tuple[str, ...]
    spans_nodes: bool
    has_hccn_conf: bool = False
    links: tuple[HcclLink, ...] = ()
    hccn_problem: str = ""
    hccl_ports: tuple[int, int] = (0, 0)
    busy_hccl_ports: tuple[int, ...] = ()
    ray_address: str = ""
    ray_problem: str = ""


def check(facts: Network) -> Iterator[Finding]:
    """All findings on the network."""
    yield _host_name(facts)
    yield from _interfaces(facts)
    if facts.device == "npu":
        yield from _hccl(facts)
    if facts.ray_address:
        yield _ray(facts)


def _host_name(facts: Network) -> Finding:
    if not facts.addresses or facts.resolve_s > SLOW_NAME_S:
        return _unresolved(facts)
    shown = ", ".join(facts.addresses)
    if facts.gloo_interface or not any(_is_loopback(address) for address in facts.addresses):
        return ok("network.host_name", f"the host's name {facts.host} is {shown}")
    # Without the host's name, so that nodes with the same trouble have the same finding.
    return Finding(
        check="network.host_name",
        level="warning" if facts.spans_nodes else "note",
        what="the host's name is a loopback address"
        + (", which ranks on other nodes cannot reach" if facts.spans_nodes else "; good for one node only"),
        expected="an address of this node in the cluster's network",
        actual=shown,
        remedy=f"correct the name's line in /etc/hosts, or export {GLOO}=INTERFACE before `ray start`",
    )


def _unresolved(facts: Network) -> Finding:
    slow = facts.resolve_s > SLOW_NAME_S
    seconds = "no answer in time" if facts.resolve_s == float("inf") else f"{facts.resolve_s:.1f} s"
    return Finding(
        check="network.host_name",
        level="warning",
        what="the host's name is resolved slowly, which every rank waits for"
        if slow
        else "the host's name has no address",
        expected=f"an address within {SLOW_NAME_S:g} s",
        actual=seconds if slow else "unknown name",
        remedy="write the node's address and name into /etc/hosts, or correct the name servers in "
        "/etc/resolv.conf",
    )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _interfaces(facts: Network) -> Iterator[Finding]:
    """A variable that names an interface which is not there ends every process group."""
    for name, value in ((GLOO, facts.gloo_interface), (HCCL, facts.hccl_interface)):
        if not value or (name == HCCL and facts.device != "npu"):
            continue
        # HCCL takes prefixes, and with = or ^ in front exact names or what to leave out.
        wanted = [part.lstrip("=^") for part in value.split(",")]
        missing = [part for part in wanted if not any(there.startswith(part) for there in facts.interfaces)]
        check_name = f"network.{name.partition('_')[0].lower()}_interface"
        if not missing:
            yield ok(check_name, f"{name}={value}")
            continue
        yield Finding(
            check=check_name,
            level="error",
            what=f"{name} names an interface that is not there: {', '.join(missing)}",
            expected=", ".join(facts.interfaces),
            actual=value,
            remedy=f"export {name} with one of these, or unset it",
        )


def _hccl(facts: Network) -> Iterator[Finding]:
    if facts.spans_nodes and not facts.has_hccn_conf:
        yield Finding(
            check="network.hccn_conf",
            level="warning",
            what="/etc/hccn.conf is not there, so the NPUs may have no addresses for collectives between "
            "nodes",
            expected="an address for each NPU, as hccn_tool -i N -ip -s writes it",
            actual="no such file",
            remedy="configure the NPUs' network on the host; in a container mount /etc/hccn.conf read-only. "
            "Nodes of a supernode with its own fabric may need none",
        )
    yield _hccl_ports(facts)
    if facts.hccn_problem:
        yield unknown("network.hccl_links", facts.hccn_problem)
    if not facts.links:
        return
    down = [link for link in facts.links if link.state != "UP"]
    if not down:
        yield ok("network.hccl_links", f"the links of {len(facts.links)} NPUs are up")
        return
    yield Finding(
        check="network.hccl_links",
        level="error" if facts.spans_nodes else "note",
        what="links of NPUs are not up, so collectives between nodes wait until they time out",
        expected="UP for each",
        actual=", ".join(f"NPU {link.device} {link.state or 'unknown'}" for link in down),
        remedy="check cable, switch and address: hccn_tool -i N -link -g, -ip -g, -net_health -g",
    )


def _hccl_ports(facts: Network) -> Finding:
    first, last = facts.hccl_ports
    if not facts.busy_hccl_ports:
        return ok("network.hccl_ports", f"ports {first}-{last} are free for HCCL")
    return Finding(
        check="network.hccl_ports",
        level="warning",
        what="others hold ports that HCCL takes, another launch for example",
        expected=f"ports {first}-{last} free",
        actual=", ".join(str(port) for port in facts.busy_hccl_ports),
        remedy="end the other launch, or give this one a range with HCCL_IF_BASE_PORT; keep the range "
        "out of net.ipv4.ip_local_port_range (net.ipv4.ip_local_reserved_ports)",
    )


def _ray(facts: Network) -> Finding:
    if not facts.ray_problem:
        return ok("network.ray", f"something listens at {facts.ray_address}")
    return Finding(
        check="network.ray",
        level="error",
        what="nothing listens where the config's Ray cluster should be",
        expected=f"the head of a Ray cluster at {facts.ray_address}",
        actual=facts.ray_problem,
        remedy="start it there with `ray start --head --port=6379`, correct ray.address (or RAY_ADDRESS), "
        "or open the port between the nodes",
    )
