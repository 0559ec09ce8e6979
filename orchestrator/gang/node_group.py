"""One actor on each of some nodes of a Ray cluster: started, called and ended by the node's id.

What watches, warms or inspects nodes, or runs a command there, differs in its actor only. An actor that
belongs to a node runs there or nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from warmrank.orchestrator.errors import first_line

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The answer of a node that gives none any more."""

    reason: str


class NodeGroup:
    """Actors of one class, at most one on a node.

    Args:
        actor: their class.
        runtime_env: what Ray sets up before their processes run.
        num_calls: how many calls of one actor go on side by side.
    """

    def __init__(self, actor: type, runtime_env: Mapping[str, Any], *, num_calls: int) -> None:
        import ray

        self._exported: Any = ray.remote(actor)  # once for all: each time costs 8 ms
        self._runtime_env = dict(runtime_env)
        self._num_calls = num_calls
        self.actors: dict[str, Any] = {}

    def start(
        self, node_id: str, *arguments: Any, resources: Mapping[str, float] | None = None, **options: Any
    ) -> Any:
        """Start the actor of a node in place of an earlier one; returns its handle.

        Args:
            node_id: Ray's id of the node.
            arguments: of the actor's class.
            options: its keyword arguments.
            resources: what it reserves, by Ray's names; nothing by default, for a launch may hold all of it.
        """
        self.stop(node_id)
        self.actors[node_id] = self._exported.options(
            **options_on(node_id, self._runtime_env, resources or {}),
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=self._num_calls,
        ).remote(*arguments, **options)
        return self.actors[node_id]

    def call(self, node_id: str, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the actor's class on one node; returns Ray's reference to the answer."""
        return getattr(self.actors[node_id], method.__name__).remote(*arguments)

    def ask(
        self, method: Callable[..., T], arguments: Mapping[str, Sequence[Any]], *, timeout_s: float | None
    ) -> dict[str, T | Lost]:
        """Call a method on nodes, all at once, and wait; raises what one of them does."""
        import ray

        refs = {node_id: self.call(node_id, method, *given) for node_id, given in arguments.items()}
        late = ray.wait(list(refs.values()), num_returns=len(refs), timeout=timeout_s)[1] if refs else []
        answers: dict[str, T | Lost] = {}
        for node_id, ref in refs.items():
            try:
                answers[node_id] = (
                    Lost(reason=f"no answer in {timeout_s:g} s") if ref in late else ray.get(ref)
                )
            except ray.exceptions.RayTaskError as error:
                raise error.cause or error from error
            except ray.exceptions.RayError as error:
                answers[node_id] = Lost(reason=first_line(error))
        return answers

    def stop(self, node_id: str) -> None:
        """Kill the actor of a node, if it has one."""
        import ray

        if (actor := self.actors.pop(node_id, None)) is not None:
            ray.kill(actor, no_restart=True)

    def stop_all(self) -> None:
        """Kill all actors."""
        for node_id in tuple(self.actors):
            self.stop(node_id)


def options_on(
    node_id: str, runtime_env: Mapping[str, Any], resources: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Ray's options for a task or an actor that belongs to one node, and to no other."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    needed = dict(resources or {})
    options = {"num_cpus": needed.pop("CPU", 0), "num_gpus": needed.pop("GPU", 0), "resources": needed}
    return {
        **{name: value for name, value in options.items() if value or name == "num_cpus"},
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False),
        "runtime_env": dict(runtime_env),
    }
