"""Actors on Ray: one on each of some nodes, waiting for answers, and Ray's exceptions as values.

What watches, warms or inspects nodes, or runs a command there, differs in its actor only. An actor that
belongs to a node runs there or nowhere.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from warmrank.orchestrator.errors import (
    DIED,
    ENDED_AT_ONCE,
    NODE_LOST,
    FailureKind,
    WorkerFailure,
    first_line,
)

T = TypeVar("T")

TICK_S = 0.5  # the longest wait after which a caller looks at what else there is

_PAUSE_S = 0.05
_GATHER_S = 0.25
_REFS_A_SECOND = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The answer of a node that gives none any more."""

    reason: str


class NodeGroup:
    """Actors of one class, at most one on a node, each with ``num_calls`` calls side by side."""

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

        It reserves ``resources``, by Ray's names; nothing by default, for a launch may hold all of it.
        """
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.stop(node_id)
        needed = dict(resources or {})
        self.actors[node_id] = self._exported.options(
            num_cpus=needed.pop("CPU", 0),
            num_gpus=needed.pop("GPU", 0),
            resources=needed,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
            runtime_env=self._runtime_env,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=self._num_calls,
            enable_task_events=False,  # nobody looks them up, and a driver of thousands pays for them
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
            if ref in late:
                answers[node_id] = Lost(reason=f"no answer in {timeout_s:g} s")
                continue
            try:
                answers[node_id] = ray.get(ref)
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

    def end(self, method: Callable[..., Any], *, timeout_s: float, without: Collection[str] = ()) -> int:
        """Call a method on all nodes but some, wait, and kill all actors; how many nodes did not answer."""
        import ray

        refs = [self.call(node_id, method) for node_id in self.actors if node_id not in without]
        late = ray.wait(refs, num_returns=len(refs), timeout=timeout_s)[1] if refs else []
        num_silent = len(self.actors) - len(refs) + len(late)
        for node_id in tuple(self.actors):
            self.stop(node_id)
        return num_silent


# What Ray has no type for is in its words.
_NO_IMPORT = re.compile(r"(?:ModuleNotFoundError|ImportError): .*")
_NODE_GONE = re.compile(r"(?i)node (?:was terminated|is dead|has died|died|failure)|NODE_DIED")
# The first sentence: the others guess at causes, such as the OOM killer, that need not be so.
_EXIT = re.compile(r"Worker exit type: (\w+) Worker exit detail: (.*?)\s*(?:(?<=\.) |\n|$)")
_ALL_AT_ONCE = "connection error code 2"  # of a process that left its socket without a word


def failure_of_ray(error: Exception, *, rank: int, stage: str) -> WorkerFailure:
    """The value that stands for one of Ray's exceptions."""
    from ray import exceptions

    text, message, remedy = str(error), first_line(error), ""
    kind: str = DIED  # whose policy has the remedy
    if isinstance(error, exceptions.OutOfMemoryError):
        message, remedy = "killed by Ray, because its node ran out of memory", "fewer ranks for each node"
    elif isinstance(error, exceptions.RuntimeEnvSetupError):
        kind = FailureKind.ENVIRONMENT
    # What watches a node cannot be placed elsewhere: one that is unschedulable had a node a moment ago.
    elif isinstance(error, exceptions.NodeDiedError | exceptions.ActorUnschedulableError):
        kind, message = NODE_LOST, f"Ray lost its node: {message}"
    elif found := _NO_IMPORT.search(text):
        kind, message = FailureKind.IMPORT, found[0]
    elif _NODE_GONE.search(text):
        kind, message = NODE_LOST, f"Ray lost its node: {message}"
    elif _ALL_AT_ONCE in text:
        message = ENDED_AT_ONCE
    elif found := _EXIT.search(text):
        message = f"its process ended ({found[1]}: {found[2]})"
    elif isinstance(error, exceptions.RayActorError):
        message = f"its process ended, or its node is lost: {message}"
    else:
        kind = type(error).__name__
    # Ray's own text tells of logs in a session's directory, which goes with a Ray of the launch's own.
    is_raised = isinstance(error, exceptions.RuntimeEnvSetupError | exceptions.RayTaskError)
    traceback = text if is_raised or kind == FailureKind.IMPORT else ""
    return WorkerFailure(
        rank=rank, stage=stage, kind=kind, message=message, remedy=remedy, traceback=traceback
    )


def left_s(deadline: float) -> float:
    """Seconds until a moment of `time.monotonic`; 0 once it has passed."""
    return max(0.0, deadline - time.monotonic())


def await_some(refs: list[Any], *, timeout_s: float) -> list[Any]:
    """References ready soon after the first one: taken singly, nodes would cost the square of their number.

    Each look goes over all that is waited for, so with many references more is left to gather between two.
    """
    import ray

    if not refs:
        time.sleep(min(timeout_s, _PAUSE_S))  # until nodes are looked at again
        return []
    ready, _ = ray.wait(refs, timeout=timeout_s)
    gather_s = min(_GATHER_S, len(refs) / _REFS_A_SECOND)
    return ray.wait(refs, num_returns=len(refs), timeout=gather_s)[0] if ready else []


def answer_of(ref: Any, rank: int, stage: str) -> Any:
    """A rank's answer; a `WorkerFailure` where Ray says that something happened to it."""
    import ray

    try:
        return ray.get(ref)
    except ray.exceptions.RayError as error:
        return failure_of_ray(error, rank=rank, stage=stage)
