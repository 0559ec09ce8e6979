"""The nodes of a Ray cluster: one actor on each holds what the ranks there would get, and runs the command.

Invariants: what a node raises comes back as a value and is raised here; a node that does not answer in time
counts as lost. When an actor ends, by whatever, its command ends with it (`orchestrator.serve.keeper`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.errors import CannotStart, first_line
from warmrank.orchestrator.gang import ray_session
from warmrank.orchestrator.gang.on_node import options_on
from warmrank.orchestrator.nodes import alive, choose
from warmrank.orchestrator.serve.crew import Lost
from warmrank.orchestrator.serve.node import ServingNode
from warmrank.orchestrator.serve.places import Host, choose_hosts
from warmrank.orchestrator.signals import undisturbed

logger = logging.getLogger(__name__)

_CLOSE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """What a node raised."""

    error: Exception


class NodeActor:
    """The thin shell around a `ServingNode` in a process of Ray."""

    def __init__(self, config: Config) -> None:
        self._node = ServingNode(config)

    def call(self, method: str, arguments: Sequence[Any]) -> Any:
        """Call a method; what it raises is a value."""
        try:
            return getattr(self._node, method)(*arguments)
        except Exception as error:  # the actor's edge
            logger.exception("%s failed", method)
            return Raised(error=error)


class RayCrew:
    """Nodes of the config's cluster.

    Args:
        config: the launch.
        wanted: names of nodes; none for as many as the ranks need.
        replicate: each node runs a world of its own.

    Raises:
        CannotStart: the cluster cannot be joined, or the ranks do not fit.
        UnknownNode: a name fits no alive node, or several.
    """

    captured = True

    def __init__(self, config: Config, wanted: Sequence[str], *, replicate: bool) -> None:
        self._actors: list[Any] = []
        self.hosts: tuple[Host, ...] = ()
        self._session = ray_session.enter(config.ray, timeout_s=config.timeouts.start_s)
        try:
            self.hosts = _hosts(config, wanted, replicate=replicate)
            self._start(config, replicate=replicate)
        except BaseException:
            self.close()
            raise

    def _start(self, config: Config, *, replicate: bool) -> None:
        environ = ray_session.rank_environ(config.ray, config.device, self._session.way_in)
        num_here = config.ranks if replicate else config.ranks // len(self.hosts)
        each = ray_session.rank_resources(config.ray, config.device)
        needed = {name: amount * num_here for name, amount in each.items()}
        self._actors = [_actor(config, host, needed, environ) for host in self.hosts]
        everyone: dict[int, Sequence[Any]] = dict.fromkeys(range(len(self.hosts)), ("127.0.0.1",))
        answers = self.ask("port", everyone, timeout_s=config.timeouts.start_s)
        silent = [
            str(self.hosts[index].host) for index, answer in answers.items() if isinstance(answer, Lost)
        ]
        if silent:
            msg = (
                f"{', '.join(silent)}: the command's place was not free in {config.timeouts.start_s:g} s "
                f"(wanted on each node: {_text(needed)}). Wait until others end, or raise timeouts.start_s"
            )
            raise CannotStart(msg)

    def ask(self, method: str, arguments: Mapping[int, Sequence[Any]], *, timeout_s: float) -> dict[int, Any]:
        """See `Crew.ask`."""
        import ray

        refs = {
            self._actors[index].call.remote(method, tuple(given)): index for index, given in arguments.items()
        }
        ready, _ = ray.wait(list(refs), num_returns=len(refs), timeout=timeout_s)
        answers: dict[int, Any] = {}
        for ref, index in refs.items():
            if ref not in ready:
                answers[index] = Lost(reason=f"no answer in {timeout_s:g} s")
                continue
            try:
                answers[index] = ray.get(ref)
            except ray.exceptions.RayError as error:
                answers[index] = Lost(reason=first_line(error))
        for answer in answers.values():
            if isinstance(answer, Raised):
                raise answer.error
        return answers

    def close(self) -> None:
        """See `Crew.close`."""
        import ray

        with undisturbed():
            refs = [actor.call.remote("close", ()) for actor in self._actors]
            if refs:
                ray.wait(refs, num_returns=len(refs), timeout=_CLOSE_S)
            for actor in self._actors:
                ray.kill(actor)
            self._actors = []
            ray_session.leave(self._session)


def _hosts(config: Config, wanted: Sequence[str], *, replicate: bool) -> tuple[Host, ...]:
    import ray

    known = ray.nodes()  # type: ignore[no-untyped-call]
    resources = {node["NodeID"]: node["Resources"] for node in known}
    chosen = choose(alive(known), wanted)
    hosts = [
        Host(node_id=node.node_id, address=node.address, host=node.host, resources=resources[node.node_id])
        for node in chosen
    ]
    each = ray_session.rank_resources(config.ray, config.device)
    return choose_hosts(hosts, num_ranks=config.ranks, each=each, replicate=replicate, named=bool(wanted))


def _actor(config: Config, host: Host, needed: Mapping[str, float], environ: Mapping[str, str]) -> Any:
    import ray

    others = {name: amount for name, amount in needed.items() if name not in ("CPU", "GPU")}
    options = {
        **options_on(host.node_id, {"env_vars": dict(environ)}),
        "num_cpus": needed.get("CPU", 0),
        "num_gpus": needed.get("GPU", 0),
        "resources": others or None,
        "max_restarts": 0,
        "max_task_retries": 0,
    }
    return ray.remote(NodeActor).options(**options).remote(config)


def _text(needed: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in needed.items())
