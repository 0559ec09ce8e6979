"""`warmrank doctor`: looks at a node, judges what it saw, and never fails because of what it sees.

Looking (`doctor_look*`) is apart from judging (the other ``doctor_*``), which is pure. The same function runs
on this machine and, as a Ray task, on every node of a cluster. Invariant: a look that fails becomes a finding
that says so, and the others go on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.doctor import ascend as doctor_ascend
from warmrank.orchestrator.doctor import clocks as doctor_clocks
from warmrank.orchestrator.doctor import devices as doctor_devices
from warmrank.orchestrator.doctor import disk as doctor_disk
from warmrank.orchestrator.doctor import limits as doctor_limits
from warmrank.orchestrator.doctor import look as doctor_look
from warmrank.orchestrator.doctor import look_disk as doctor_look_disk
from warmrank.orchestrator.doctor import look_limits as doctor_look_limits
from warmrank.orchestrator.doctor import look_network as doctor_look_network
from warmrank.orchestrator.doctor import look_store as doctor_look_store
from warmrank.orchestrator.doctor import network as doctor_network
from warmrank.orchestrator.doctor import store as doctor_store
from warmrank.orchestrator.doctor import versions as doctor_versions
from warmrank.orchestrator.doctor.findings import Diagnosis, Finding, NodeFindings, diagnosis, unknown
from warmrank.orchestrator.gang import ray_session
from warmrank.orchestrator.nodes import Node, this_node
from warmrank.worker.devices.streams import Captures
from warmrank.worker.environment import environment

EXPANSION = "HCCL_OP_EXPANSION_MODE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a node is to be looked at for.

    Attributes:
        device: device kind.
        config: the launch that it should serve; None for the node by itself.
        in_cluster: the node belongs to a cluster that the config joins.
    """

    device: str
    config: Config | None
    in_cluster: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a node answered, and what its clock showed when it did."""

    findings: NodeFindings
    clock_s: float


def diagnose_here(config: Config | None, device: str | None) -> Diagnosis:
    """Look at this machine."""
    request = request_of(config, device)
    found = examine(request, this_node()).findings
    return diagnosis(request.device, config.name if config else "", [found])


def request_of(config: Config | None, device: str | None) -> Request:
    """What to look for: the device kind asked for, else the config's, else what there seems to be here."""
    way = ray_session.way_in(config.ray, os.environ, initialized=False) if config else "local"
    return Request(
        device=device or (config.device if config else _likely_device()),
        config=config,
        in_cluster=way != "local",
    )


def examine(request: Request, node: Node) -> Answer:
    """Look at the machine that this process runs on, and judge it."""
    started = time.monotonic()
    findings: list[Finding] = []
    for topic, look in _topics(request):
        findings += _tried(topic, look)
    found = NodeFindings(
        node=node,
        findings=tuple(findings),
        environment=dict(environment()),
        seconds=round(time.monotonic() - started, 3),
    )
    return Answer(findings=found, clock_s=time.time())


Look = Callable[[], Iterable[Finding]]


def _topics(request: Request) -> list[tuple[str, Look]]:
    """Names of topics, and what looks and judges; in the order in which people read them."""
    node = _Node(request, dict(os.environ))
    topics: list[tuple[str, Look]] = [("versions", node.versions)]
    if request.device == "npu":
        topics.append(("ascend", node.ascend))
    if request.device != "cpu":
        topics.append(("devices", node.devices))
    topics += [("limits", node.limits), ("network", node.network)]
    if request.config is not None:
        topics += [("store", node.store), ("disk", node.disk), ("clocks", node.clocks)]
    if request.config is not None and request.device == "npu":
        topics.append(("streams", node.streams))
    return topics


def _tried(topic: str, look: Look) -> list[Finding]:
    """The findings of a topic, or that it could not be looked at."""
    try:
        return list(look())
    except Exception as error:  # noqa: BLE001 - a node with one odd file must still hear of all else
        return [unknown(topic, f"this could not be looked at: {type(error).__name__}: {error}")]


class _Node:
    """Looks at this machine topic by topic; keeps what a later topic needs of an earlier one."""

    def __init__(self, request: Request, environ: Mapping[str, str]) -> None:
        self._request = request
        self._environ = environ
        self._probe = doctor_versions.Probe(error="it was not tried")
        self._installed: doctor_versions.Versions | None = None
        self._clocks: list[doctor_clocks.Clock] = []
        self._launches = doctor_look_store.Launches()

    def versions(self) -> Iterable[Finding]:
        request = self._request
        self._probe = doctor_look.probe_torch(request.device, self._environ)
        self._installed = doctor_look.look_at_versions(request.device, self._environ, self._probe)
        return doctor_versions.check(self._installed)

    def ascend(self) -> Iterable[Finding]:
        if self._installed is None:
            return [unknown("ascend", "the versions could not be looked at")]
        return doctor_ascend.check(doctor_look.look_at_ascend(self._installed))

    def devices(self) -> Iterable[Finding]:
        request = self._request
        local_ranks = request.config.ranks if request.config and not request.in_cluster else 0
        return doctor_devices.check(
            doctor_look.look_at_devices(
                request.device,
                self._environ,
                self._probe,
                num_ranks=local_ranks,
            )
        )

    def limits(self) -> Iterable[Finding]:
        request = self._request
        is_local = request.config is not None and not request.in_cluster
        return doctor_limits.check(
            doctor_look_limits.look_at_limits(request.device, request.config, is_local=is_local)
        )

    def network(self) -> Iterable[Finding]:
        request = self._request
        address = ""
        if request.config is not None and request.in_cluster:
            address = request.config.ray.address or self._environ.get("RAY_ADDRESS", "")
        return doctor_network.check(
            doctor_look_network.look_at_network(
                request.device, self._environ, spans_nodes=request.in_cluster, ray_address=address
            )
        )

    def store(self) -> Iterable[Finding]:
        config = self._config()
        if config.store is None:
            return [
                unknown("store.reachable", "the config names no store, so nothing is kept between clusters")
            ]
        places, clocks = doctor_look_store.look_at_places(config.store)
        self._clocks += clocks
        keys = doctor_look_store.look_at_keys(config.store)
        if any(place.state == "open" for place in places):
            self._launches = doctor_look_store.look_at_launches(config)
        return [*doctor_store.check_places(places), *doctor_store.check_keys(keys)]

    def disk(self) -> Iterable[Finding]:
        path = self._config().cache_dir
        found = doctor_look_disk.look_at_disk(path, self._launches.needed_bytes)
        if found is None:
            return [_silent_disk(str(path))]
        disk, clocks = found
        self._clocks += clocks
        directories = doctor_look_disk.look_at_node_caches(self._config())
        return [*doctor_disk.check(disk), *doctor_disk.check_node_caches(directories)]

    def clocks(self) -> Iterable[Finding]:
        return doctor_clocks.check(self._clocks, self._launches.newest_ahead_s)

    def streams(self) -> Iterable[Finding]:
        sizes = self._config().parallel.sizes()
        roles = frozenset(name for name, size in sizes.items() if size > 1)
        captures = tuple(
            Captures(name=name, num_graphs=count, roles=roles)
            for name, count in self._launches.num_captures.items()
        )
        soc = environment()["accelerator"]
        return [doctor_ascend.check_streams(soc, captures, self._environ.get(EXPANSION, ""))]

    def _config(self) -> Config:
        assert self._request.config is not None  # noqa: S101 - these topics come with a config only
        return self._request.config


def _silent_disk(path: str) -> Finding:
    return Finding(
        check="disk.cache_dir",
        level="error",
        what=f"{path} does not answer",
        expected=f"an answer within {doctor_look_disk.PATIENCE_S:g} s",
        actual="none",
        remedy="the file system is dead or overloaded: mount it anew, or name another cache_dir",
    )


def _likely_device() -> str:
    """By the device files of this machine."""
    from warmrank.worker.ascend.chips import installation

    if installation().devices:
        return "npu"
    return "cuda" if doctor_look.has_nvidia_files() else "cpu"
