"""Answers of actors on Ray: waited for some or all of them at a time, and Ray's exceptions as values."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from warmrank.orchestrator.gang.ray_trouble import failure_of_ray

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
