"""`warmrank doctor --all-nodes`: one Ray task on each node of the config's cluster.

No node is waited for longer than `NODE_S`.

`Cluster` is the port between the driver's side and Ray; tests put nodes of their own behind it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.doctor import cluster as doctor_cluster
from warmrank.orchestrator.doctor.cluster import Member
from warmrank.orchestrator.doctor.examine import Answer, Request, examine, request_of
from warmrank.orchestrator.doctor.findings import Diagnosis, Finding, NodeFindings, diagnosis
from warmrank.orchestrator.errors import first_line
from warmrank.orchestrator.gang import ray_session
from warmrank.orchestrator.gang.on_node import options_on
from warmrank.orchestrator.nodes import Node

NODE_S = 180.0
"""Longest wait for a node: a first import of torch, and every place of the store silent, in one."""


class Cluster(Protocol):
    """The nodes that can be asked."""

    def members(self) -> tuple[Member, ...]:
        """All nodes that are alive."""
        ...

    def examine(
        self, nodes: Sequence[Node], request: Request, *, timeout_s: float
    ) -> Iterator[tuple[Node, Answer | str]]:
        """Ask all nodes at once; each answer as it comes, or why there is none; silent ones are left out."""
        ...


def diagnose_nodes(config: Config, device: str | None) -> Diagnosis:
    """Look at every node of the cluster that the config joins; this machine alone where it joins none.

    Raises:
        CannotStart: the cluster cannot be joined.
    """
    request = request_of(config, device)
    if not request.in_cluster:
        from warmrank.orchestrator.doctor.examine import diagnose_here

        return diagnose_here(config, device)
    session = ray_session.enter(config.ray, timeout_s=config.timeouts.start_s)
    try:
        return diagnose_cluster(_RayCluster(config, session), request, config)
    finally:
        ray_session.leave(session)


def diagnose_cluster(
    cluster: Cluster, request: Request, config: Config, *, timeout_s: float = NODE_S
) -> Diagnosis:
    """Ask every node, and judge what they answer together."""
    members = cluster.members()
    found = _ask(cluster, [member.node for member in members], request, timeout_s)
    bundle = ray_session.rank_resources(config.ray, request.device)
    together: list[Finding] = [
        *doctor_cluster.check_resources(members, bundle, config.ranks),
        *doctor_cluster.check_environments(found),
    ]
    return diagnosis(request.device, config.name, found, together)


def _ask(cluster: Cluster, nodes: Sequence[Node], request: Request, timeout_s: float) -> list[NodeFindings]:
    found: dict[Node, NodeFindings] = {}
    sent_s = time.time()
    for node, answer in cluster.examine(nodes, request, timeout_s=timeout_s):
        if isinstance(answer, str):
            found[node] = doctor_cluster.no_answer(node, answer)
            continue
        ahead_s = doctor_cluster.ahead_of_driver(
            answer.clock_s, seconds=answer.findings.seconds, sent_s=sent_s, received_s=time.time()
        )
        found[node] = doctor_cluster.with_clock(answer.findings, ahead_s)
    silent = f"no answer within {timeout_s:g} s"
    return [found.get(node) or doctor_cluster.no_answer(node, silent) for node in nodes]


class _RayCluster:
    """See `Cluster`."""

    def __init__(self, config: Config, session: ray_session.Session) -> None:
        self._config = config
        self._session = session

    def members(self) -> tuple[Member, ...]:
        import ray

        alive = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        found = [
            Member(
                node=Node(
                    node_id=node["NodeID"],
                    address=node["NodeManagerAddress"],
                    host=node["NodeManagerHostname"],
                ),
                resources=dict(node["Resources"]),
            )
            for node in alive
        ]
        return tuple(sorted(found, key=lambda member: (member.node.host, member.node.node_id)))

    def examine(
        self, nodes: Sequence[Node], request: Request, *, timeout_s: float
    ) -> Iterator[tuple[Node, Answer | str]]:
        import ray

        deadline = time.monotonic() + timeout_s
        pending = {self._task(node, request.device).remote(request, node): node for node in nodes}
        while pending:
            ready, _ = ray.wait(list(pending), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                for ref in pending:
                    ray.cancel(ref, force=True)
                return
            for ref in ready:
                yield pending.pop(ref), _answer(ref)

    def _task(self, node: Node, device: str) -> Any:
        import ray

        environ = ray_session.rank_environ(self._config.ray, device, self._session.way_in)
        # No device is asked for: all that the node has are to be seen.
        return ray.remote(examine).options(**options_on(node.node_id, {"env_vars": environ}), max_retries=0)


def _answer(ref: Any) -> Answer | str:
    import ray

    try:
        answer: Answer = ray.get(ref)
    except ray.exceptions.RayError as error:
        return first_line(error)
    return answer
