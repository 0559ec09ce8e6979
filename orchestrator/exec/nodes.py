"""The nodes that run a command, as the driver talks to them: here in this process, or by Ray.

What a node raises is raised here; a node that does not answer in time, or is gone, is lost. When an actor
ends, by whatever, its command ends with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.errors import CannotStart
from warmrank.orchestrator.exec.node import ExecNode
from warmrank.orchestrator.exec.placement import choose_nodes, num_fitting
from warmrank.orchestrator.gang import ray_session
from warmrank.orchestrator.gang.node_group import Lost, NodeGroup
from warmrank.orchestrator.nodes import Node, alive, choose, this_node
from warmrank.orchestrator.signals import undisturbed

T = TypeVar("T")

_CLOSE_S = 60.0
_CALLS_AT_ONCE = 4
"""A poll, a signal and a publish go on side by side."""


class ExecNodes(Protocol):
    """Nodes by their position in ``nodes``; ``ports`` has a free port of each."""

    nodes: tuple[Node, ...]
    ports: tuple[int, ...]
    captured: bool
    """Whether the command's output comes through `ExecNode.poll`."""

    def ask(
        self, method: Callable[..., T], arguments: Mapping[int, Sequence[Any]], *, timeout_s: float | None
    ) -> dict[int, T | Lost]:
        """Call a method of `ExecNode` on nodes, all at once; raises what one of them does."""

    def close(self) -> None:
        """End what the nodes still run."""


class LocalNode:
    """This node alone, without Ray."""

    captured = False

    def __init__(self, config: Config) -> None:
        self.nodes: tuple[Node, ...] = (replace(this_node(), address="127.0.0.1"),)
        self._node = ExecNode(config)
        self.ports: tuple[int, ...] = (self._node.port("127.0.0.1"),)

    def ask(
        self, method: Callable[..., T], arguments: Mapping[int, Sequence[Any]], *, timeout_s: float | None
    ) -> dict[int, T | Lost]:
        """See `ExecNodes.ask`; nothing here needs the time-out."""
        del timeout_s
        return {index: method(self._node, *given) for index, given in arguments.items()}

    def close(self) -> None:
        """See `ExecNodes.close`."""
        self._node.close()


class RayNodes:
    """Nodes of the config's cluster: an actor on each holds what the ranks there would get.

    Args:
        config: the launch.
        wanted: names of nodes; none for as many as the ranks need.

    Raises:
        CannotStart: the cluster cannot be joined, or the ranks do not fit.
        UnknownNode: a name fits no alive node, or several.
    """

    captured = True

    def __init__(self, config: Config, wanted: Sequence[str]) -> None:
        self.nodes: tuple[Node, ...] = ()
        self.ports: tuple[int, ...] = ()
        self._group: NodeGroup | None = None
        self._session = ray_session.enter(config.ray, timeout_s=config.timeouts.start_s)
        try:
            self._start(config, wanted)
        except BaseException:
            self.close()
            raise

    def _start(self, config: Config, wanted: Sequence[str]) -> None:
        import ray

        each = ray_session.rank_resources(config.ray, config.device)
        known = ray.nodes()  # type: ignore[no-untyped-call]
        resources = {node["NodeID"]: node["Resources"] for node in known}
        rooms = {node: num_fitting(resources[node.node_id], each) for node in choose(alive(known), wanted)}
        self.nodes = choose_nodes(rooms, config.ranks, named=bool(wanted))
        needed = {name: amount * (config.ranks // len(self.nodes)) for name, amount in each.items()}
        environ = ray_session.rank_environ(config.ray, config.device, self._session.way_in)
        self._group = NodeGroup(ExecNode, {"env_vars": environ}, num_calls=_CALLS_AT_ONCE)
        for node in self.nodes:
            self._group.start(node.node_id, config, resources=needed)
        addresses = {index: (node.address,) for index, node in enumerate(self.nodes)}
        ports = self.ask(ExecNode.port, addresses, timeout_s=config.timeouts.start_s)
        for index, port in ports.items():
            if isinstance(port, Lost):
                amounts = ", ".join(f"{amount:g} {name}" for name, amount in needed.items())
                msg = (
                    f"{self.nodes[index]}: no place for the command: {port.reason} (it wants {amounts}); "
                    "wait until others end, or raise timeouts.start_s"
                )
                raise CannotStart(msg)
        self.ports = tuple(port for _, port in sorted(ports.items()) if not isinstance(port, Lost))

    def ask(
        self, method: Callable[..., T], arguments: Mapping[int, Sequence[Any]], *, timeout_s: float | None
    ) -> dict[int, T | Lost]:
        """See `ExecNodes.ask`."""
        assert self._group is not None  # noqa: S101 - `_start` made it
        asked = {self.nodes[index].node_id: given for index, given in arguments.items()}
        answers = self._group.ask(method, asked, timeout_s=timeout_s)
        return {index: answers[self.nodes[index].node_id] for index in arguments}

    def close(self) -> None:
        """See `ExecNodes.close`."""
        import ray

        with undisturbed():
            if self._group is not None:
                refs = [self._group.call(node.node_id, ExecNode.close) for node in self.nodes]
                ray.wait(refs, num_returns=len(refs), timeout=_CLOSE_S)
                self._group.stop_all()
                self._group = None
            ray_session.leave(self._session)
