"""Run the checks: on this machine, or by a Ray task on every node of the cluster that a config joins.

A check that fails becomes a note, and the others go on. No node is waited for longer than `NODE_S`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.errors import BadArgument, first_line
from warmrank.orchestrator.gang import ray_session
from warmrank.orchestrator.gang.node_group import options_on
from warmrank.orchestrator.inspect import machine, software, storage
from warmrank.orchestrator.inspect.findings import (
    Diagnosis,
    Finding,
    NodeFindings,
    diagnosis,
    error,
    note,
    ok,
    warning,
)
from warmrank.orchestrator.nodes import Node, alive, this_node
from warmrank.orchestrator.text import brief_names, count_text
from warmrank.worker.keys.environment import environment

NODE_S = 180.0
"""Longest wait for a node: a first import of torch, and every place of the store silent, in one."""

SKEW_S = 900.0
"""Object stores refuse signed requests whose time is 15 minutes off (S3: RequestTimeTooSkewed)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Requirements that a node is checked for."""

    device: str  # device kind
    config: Config | None  # the launch that it should serve; None for the node by itself
    in_cluster: bool  # the node belongs to a cluster that the config joins


def request_of(config: Config | None, device: str | None) -> Request:
    """The request for the device kind asked for, else the config's, else what there seems to be here."""
    way = ray_session.way_in(config.ray, os.environ, initialized=False) if config else "local"
    there = next((kind for kind in ("npu", "cuda") if machine.device_files(kind)), "cpu")
    wanted = device or (config.device if config else there)
    return Request(device=wanted, config=config, in_cluster=way != "local")


def diagnose_here(config: Config | None, device: str | None) -> Diagnosis:
    """Check this machine."""
    request = request_of(config, device)
    found, _ = examine(request, this_node())
    return diagnosis(request.device, config.name if config else "", [found])


def examine(request: Request, node: Node) -> tuple[NodeFindings, float]:
    """Check the machine that this process runs on; what its clock shows at the end comes along."""
    findings: list[Finding] = []
    for topic, check in _checks(request, os.environ):
        try:
            findings += check()
        except Exception as fault:  # noqa: BLE001 - a node with one odd file must still hear of all else
            findings.append(note(topic, f"{type(fault).__name__}: {fault}"))
    found = NodeFindings(node=node, findings=tuple(findings), environment=dict(environment()))
    return found, time.time()


def _checks(
    request: Request, environ: Mapping[str, str]
) -> Iterator[tuple[str, Callable[[], Iterable[Finding]]]]:
    """Topics and their checks, in the order in which people read them."""
    device, config = request.device, request.config
    probe = software.probe_torch(device, environ)
    yield "versions", lambda: software.check_software(device, probe)
    if device != "cpu":
        yield "devices", lambda: machine.check_devices(device, environ, probe)
    num_ranks = config.ranks if config and not request.in_cluster else 0
    yield "limits", lambda: machine.check_limits(num_ranks)
    address = (config.ray.address or environ.get("RAY_ADDRESS", "")) if config and request.in_cluster else ""
    yield (
        "network",
        lambda: machine.check_network(device, environ, spans_nodes=request.in_cluster, ray_address=address),
    )
    if config is not None:
        store = config.store
        if store is not None:
            yield "store", lambda: storage.check_store(store)
        yield "disk", lambda: storage.check_disk(config.cache_dir)


def diagnose_nodes(config: Config, device: str | None) -> Diagnosis:
    """Check every node of the cluster that the config joins; raises `BadArgument`, or `CannotStart`."""
    request = request_of(config, device)
    if not request.in_cluster:
        raise BadArgument(
            f"--all-nodes: expected a cluster, and config {config.name} starts a Ray of its own here; "
            "set ray.address (or RAY_ADDRESS), or leave --all-nodes out"
        )
    session = ray_session.enter(config.ray, timeout_s=config.timeouts.start_s)
    try:
        import ray

        listed: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        environ = ray_session.rank_environ(config.ray, request.device, session.way_in)
        found = _ask(alive(listed), request, environ)
    finally:
        ray_session.leave(session)
    resources = [node["Resources"] for node in listed if node["Alive"]]
    bundle = ray_session.rank_resources(config.ray, request.device)
    together = [*check_resources(resources, bundle, config.ranks), *check_environments(found)]
    return diagnosis(request.device, config.name, found, together)


def _ask(nodes: Sequence[Node], request: Request, environ: Mapping[str, str]) -> list[NodeFindings]:
    """Run the checks on all nodes at once; the findings in the nodes' order."""
    import ray

    sent_s, deadline = time.time(), time.monotonic() + NODE_S
    pending: dict[Any, Node] = {}
    for node in nodes:
        # No device is asked for: all that the node has are to be seen.
        task = ray.remote(examine).options(**options_on(node.node_id, {"env_vars": environ}), max_retries=0)
        pending[task.remote(request, node)] = node
    found: dict[Node, NodeFindings] = {}
    while pending:
        ready, _ = ray.wait(list(pending), timeout=max(0.0, deadline - time.monotonic()))
        for ref in ready:
            node = pending.pop(ref)
            try:
                answer, clock_s = ray.get(ref)
            except ray.exceptions.RayError as fault:
                found[node] = no_answer(node, first_line(fault))
                continue
            clock = check_clock(clock_s, sent_s=sent_s, received_s=time.time())
            found[node] = NodeFindings(
                node=node, findings=(*answer.findings, clock), environment=answer.environment
            )
        if not ready:
            for ref in pending:
                ray.cancel(ref, force=True)
            break
    return [found.get(node) or no_answer(node, f"no answer within {NODE_S:g} s") for node in nodes]


def no_answer(node: Node, why: str) -> NodeFindings:
    """The finding on a node that could not be checked."""
    remedy = "look into Ray's logs there (/tmp/ray/session_latest/logs), or run `warmrank doctor` there"
    finding = error("cluster.answer", f"the node belongs to the cluster and gave no findings: {why}", remedy)
    return NodeFindings(node=node, findings=(finding,))


def check_clock(clock_s: float, *, sent_s: float, received_s: float) -> Finding:
    """Compare a node's clock with the driver's between question and answer."""
    off_s = max(clock_s - received_s, sent_s - clock_s, 0.0)
    if off_s < SKEW_S:
        return ok("clocks.driver", f"the node's clock is within {SKEW_S / 60:g} minutes of the driver's")
    what = "object stores refuse this node's requests, or the driver's: their clocks are about "
    what += f"{off_s / 60:.0f} minutes apart"
    return error("clocks.driver", what, "synchronise both (chronyc tracking, timedatectl)")


def check_resources(
    nodes: Sequence[Mapping[str, float]], bundle: Mapping[str, float], num_ranks: int
) -> Iterator[Finding]:
    """Check that the cluster has room for the ranks, by Ray's count."""
    where, ranks = count_text(len(nodes), "node"), count_text(num_ranks, "rank")
    for name, need in bundle.items():
        total = sum(node.get(name, 0.0) for node in nodes)
        most = sum(int(node.get(name, 0.0) // need) for node in nodes)
        if most >= num_ranks:
            yield ok("cluster.resources", f"{total:g} {name} on {where} for {ranks}")
            continue
        yield error(
            "cluster.resources",
            f"{ranks} of {need:g} {name} each, but {total:g} on {where} have room for {most}",
            "lower ranks or what each asks for, or start nodes with more: "
            f"`ray start --resources='{{\"{name}\": 8}}'` where Ray does not see devices by itself",
        )


def check_environments(nodes: Iterable[NodeFindings]) -> Iterator[Finding]:
    """Check that artifacts of one node can be loaded on the others."""
    answered = [node for node in nodes if node.environment]
    names = sorted({name for node in answered for name in node.environment})
    differing = False
    for name in names:
        hosts: dict[str, list[str]] = {}
        for node in answered:
            hosts.setdefault(node.environment.get(name, ""), []).append(node.node.host)
        if len(hosts) == 1:
            continue
        differing = True
        values = "; ".join(f"{value!r} on {brief_names(who, max_names=8)}" for value, who in hosts.items())
        yield warning(
            "cluster.environment",
            f"nodes differ in {name}, so they do not share artifacts: {values}",
            "install the same versions on all nodes, or make a cluster of each kind",
        )
    if len(answered) > 1 and not differing:
        yield ok(
            "cluster.environment", f"{len(answered)} nodes have one environment, so they share artifacts"
        )
