"""Checks on what the nodes of a cluster have in common: resources, environment, clocks. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from warmrank.orchestrator.doctor.clocks import Clock
from warmrank.orchestrator.doctor.clocks import check as check_clocks
from warmrank.orchestrator.doctor.findings import Finding, NodeFindings, ok
from warmrank.orchestrator.nodes import Node
from warmrank.orchestrator.text import count_text

MAX_HOSTS_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A node of a cluster, and the resources that Ray gives to it."""

    node: Node
    resources: Mapping[str, float]


def no_answer(node: Node, why: str) -> NodeFindings:
    """What is said of a node that could not be looked at."""
    finding = Finding(
        check="cluster.answer",
        level="error",
        what="the node belongs to the cluster and gave no findings",
        expected="an answer in time",
        actual=why,
        remedy="look into Ray's logs on that node (/tmp/ray/session_latest/logs), or run `warmrank doctor` "
        "there",
    )
    return NodeFindings(node=node, findings=(finding,))


def with_clock(found: NodeFindings, ahead_s: float) -> NodeFindings:
    """A node's findings, with that on its clock against the driver's."""
    # A node's own check says "this node's"; here it is the other way round.
    clock = Clock(check="clocks.driver", name="the driver", ahead_s=-ahead_s)
    return replace(found, findings=(*found.findings, *check_clocks([clock])))


def ahead_of_driver(clock_s: float, *, seconds: float, sent_s: float, received_s: float) -> float:
    """How far a node's clock is ahead of the driver's, at the least; negative if behind.

    Args:
        clock_s: what it showed when the node had finished.
        seconds: how long the node was at work, so it finished no earlier after ``sent_s``.
        sent_s: the driver's clock when it asked.
        received_s: the driver's clock when it had the answer.
    """
    earliest = min(sent_s + seconds, received_s)
    if clock_s > received_s:
        return clock_s - received_s
    return min(0.0, clock_s - earliest)


def check_resources(
    members: Sequence[Member], bundle: Mapping[str, float], num_ranks: int
) -> Iterator[Finding]:
    """Whether the cluster has room for the ranks, by what Ray believes to have."""
    nodes, ranks = count_text(len(members), "node"), count_text(num_ranks, "rank")
    for name, need in bundle.items():
        total = sum(member.resources.get(name, 0.0) for member in members)
        most = sum(int(member.resources.get(name, 0.0) // need) for member in members)
        if most >= num_ranks:
            yield ok("cluster.resources", f"{total:g} {name} on {nodes} for {ranks}")
            continue
        yield Finding(
            check="cluster.resources",
            level="error",
            what=f"the cluster has no room for {ranks} of {need:g} {name}",
            expected=f"{num_ranks} x {need:g} = {num_ranks * need:g} {name}, each rank's on one node",
            actual=f"{total:g} on {nodes}, room for {count_text(most, 'rank')}",
            remedy="lower ranks, or start nodes with more: `ray start --resources='{\"NPU\": 8}'` where Ray "
            "does not see the devices by itself"
            if name == "NPU"
            else "lower ranks or ray.num_cpus_per_rank, or add nodes",
        )
    for name in bundle:
        without = [member.node.host for member in members if not member.resources.get(name)]
        if name != "CPU" and without and len(without) < len(members):
            yield Finding(
                check="cluster.devices",
                level="note",
                what=f"Ray sees no {name} on some nodes, so no rank comes there",
                expected=f"{name} on each, if they should take ranks",
                actual=hosts_text(without),
                remedy="run `warmrank doctor --device K` there, and start their Ray anew once devices are "
                "seen",
            )


def check_environments(nodes: Iterable[NodeFindings]) -> Iterator[Finding]:
    """Whether what one node compiles can be loaded on the others."""
    answered = [node for node in nodes if node.environment]
    if len(answered) < 2:
        return
    differing = False
    for name in sorted({name for node in answered for name in node.environment}):
        hosts: dict[str, list[str]] = {}
        for node in answered:
            hosts.setdefault(node.environment.get(name, ""), []).append(node.node.host)
        if len(hosts) > 1:
            differing = True
            yield _differs(name, hosts)
    if not differing:
        yield ok(
            "cluster.environment", f"{len(answered)} nodes have one environment, so they share artifacts"
        )


def _differs(name: str, hosts: Mapping[str, Sequence[str]]) -> Finding:
    most = max(hosts, key=lambda value: len(hosts[value]))
    others = "; ".join(f"{value!r} on {hosts_text(names)}" for value, names in hosts.items() if value != most)
    return Finding(
        check="cluster.environment",
        level="warning",
        what=f"nodes differ in {name}, which is part of every key: they do not share artifacts",
        expected=f"{most!r} on all, as on {hosts_text(hosts[most])}",
        actual=others,
        remedy="install the same versions on all nodes, or make a cluster of each kind",
    )


def hosts_text(hosts: Sequence[str]) -> str:
    """Names of hosts, of which many are cut short."""
    shown = ", ".join(hosts[:MAX_HOSTS_SHOWN])
    return f"{shown} and {len(hosts) - MAX_HOSTS_SHOWN} more" if len(hosts) > MAX_HOSTS_SHOWN else shown
