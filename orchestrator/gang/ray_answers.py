"""Answers of actors on Ray: waiting for them, and Ray's exceptions as values."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from warmrank.orchestrator.causes import DIED, NODE_LOST, WorkerFailure

_EXIT_DETAIL = re.compile(
    # The first sentence: the others guess at causes, such as the OOM killer, that need not be so.
    r"Worker exit type: (\w+) Worker exit detail: (.*?)(?:(?<=\.) |\n|$)"
)
_NO_STATUS = "connection error code 2"  # Ray's words for a process that left its socket without a word
_LOST_NODE = re.compile(r"(?i)node (?:was terminated|is dead|has died|died|failure)|NODE_DIED")
_MISSING_MODULE = re.compile(r"(?:ModuleNotFoundError|ImportError): (.*)")


def failure_of_ray(error: Exception, *, rank: int, stage: str) -> WorkerFailure:
    """The value that stands for one of Ray's exceptions."""
    from ray import exceptions

    text = str(error)
    kind, remedy = DIED, ""
    # What watches a node cannot be placed elsewhere: one that is unschedulable had a node a moment ago.
    of_lost_nodes = exceptions.NodeDiedError, exceptions.ActorUnschedulableError
    if isinstance(error, exceptions.OutOfMemoryError):
        message, remedy = "killed by Ray, because its node ran out of memory", "fewer ranks for each node"
    elif isinstance(error, exceptions.RuntimeEnvSetupError):
        kind, message = "environment", _first_line(text)
    elif missing := _MISSING_MODULE.search(text):
        kind, message = "import", missing.group(1)
        remedy = "start the launch in the directory that holds the module, or install it on the nodes"
    elif isinstance(error, of_lost_nodes) or _LOST_NODE.search(text):
        kind, message = NODE_LOST, f"Ray lost its node: {_first_line(text)}"
    elif _NO_STATUS in text:
        message = "its process ended all at once: it was killed, or crashed in native code"
        remedy = "its log holds the last words; a kill by the system leaves none (see dmesg)"
    elif detail := _EXIT_DETAIL.search(text):
        message = f"its process ended ({detail.group(1)}: {detail.group(2).strip()})"
        remedy = "its log holds the last words; a kill by the system leaves none (see dmesg)"
    elif isinstance(error, exceptions.RayActorError):
        message = f"its process ended, or its node is lost: {_first_line(text)}"
    else:
        kind, message = type(error).__name__, _first_line(text)
    # Ray's own text tells of logs in a session's directory, which goes with a Ray of the launch's own.
    raised = text if isinstance(error, exceptions.RuntimeEnvSetupError | exceptions.RayTaskError) else ""
    return WorkerFailure(rank=rank, stage=stage, kind=kind, message=message, remedy=remedy, traceback=raised)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


TICK_S = 0.5
"""The longest wait after which a caller looks at what else there is."""

_PAUSE_S = 0.05
_GATHER_S = 0.25
_REFS_A_SECOND = 10_000


def left_s(deadline: float) -> float:
    """Seconds until a moment of `time.monotonic`; 0 once it has passed."""
    return max(0.0, deadline - time.monotonic())


def await_some(refs: list[Any], *, timeout_s: float) -> list[Any]:
    """All that is ready soon after something is: one by one, nodes would cost the square of their number.

    Each look goes over all that is waited for, so with many references more is left to gather between two.
    """
    import ray

    if not refs:
        time.sleep(min(timeout_s, _PAUSE_S))  # until nodes are looked at again
        return []
    ready, _ = ray.wait(refs, timeout=timeout_s)
    gather_s = min(_GATHER_S, len(refs) / _REFS_A_SECOND)
    return ray.wait(refs, num_returns=len(refs), timeout=gather_s)[0] if ready else []


def await_all(
    refs: Sequence[Any], deadline: float, *, on_tick: Callable[[], None]
) -> tuple[list[Any], list[Any]]:
    """Wait until everything is ready, or the deadline passes.

    Args:
        refs: to be waited for.
        deadline: as `time.monotonic` counts.
        on_tick: called after each `TICK_S` in vain; may raise to end the wait.

    Returns:
        What is ready, and what is late.
    """
    import ray

    ready, late = ray.wait(list(refs), num_returns=len(refs), timeout=TICK_S)
    while late and left_s(deadline) > 0:
        on_tick()
        ready, late = ray.wait(list(refs), num_returns=len(refs), timeout=min(left_s(deadline), TICK_S))
    return ready, late


def answers_of(ref: Any) -> Any:
    """What a node says; None where Ray says that something happened to it, which its watch tells of."""
    import ray

    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError:
        raise  # a defect: of ranks, failures come as values
    except ray.exceptions.RayError:
        return None


def answer_of(ref: Any, rank: int, stage: str) -> Any:
    """What a rank answered; a `WorkerFailure` where Ray says that something happened to it."""
    import ray

    try:
        return ray.get(ref)
    except ray.exceptions.RayError as error:
        return failure_of_ray(error, rank=rank, stage=stage)
