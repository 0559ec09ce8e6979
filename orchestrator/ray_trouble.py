"""Ray's ways of failing, in this project's words: pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping

from orchestrator.errors import WorkerFailure

_EXIT_DETAIL = re.compile(
    r"Worker exit type: (\w+) Worker exit detail: (.*?)(?: There are some potential|\n|$)"
)
_MISSING_MODULE = re.compile(r"(?:ModuleNotFoundError|ImportError): (.*)")


def describe_shortage(
    bundle: Mapping[str, float],
    num_ranks: int,
    *,
    total: Mapping[str, float],
    available: Mapping[str, float],
    state: str,
    own: bool,
) -> str:
    """Why ranks cannot be placed, and what to do.

    Args:
        bundle: resources that each rank asks for.
        num_ranks: number of ranks.
        total: resources of the cluster.
        available: those that are free.
        state: Ray's scheduling state of the placement group.
        own: the cluster is a local Ray of this launch.
    """
    where = "this machine" if own else "the Ray cluster"
    lines = [f"{num_ranks} ranks do not fit on {where}:"]
    short_in_all = False
    for name, need in bundle.items():
        demand, has, free = num_ranks * need, total.get(name, 0.0), available.get(name, 0.0)
        short_in_all = short_in_all or demand > has
        missing = f", {demand - has:g} too few" if demand > has else ""
        lines.append(
            f"  {name}: {num_ranks} x {need:g} = {demand:g} wanted, {has:g} there{missing}, {free:g} free"
        )
    short_of_devices = [name for name in bundle if name != "CPU" and total.get(name, 0.0) < num_ranks]
    if short_of_devices:
        remedy = f"lower ranks, or add nodes with {short_of_devices[0]}s that Ray sees (`ray status`)"
    elif short_in_all:
        lower = "ray.num_cpus_per_rank (fractions are allowed)"
        more = "set ray.num_cpus to pretend to more" if own else "add nodes"
        remedy = f"lower ranks or {lower}, or {more}"
    elif state == "INFEASIBLE":
        remedy = "no node is big enough for one rank, or ray.placement asks for more nodes than there are"
    else:
        remedy = "other work holds them: wait for it or end it (`ray status`, `ray list actors`)"
    return "\n".join([*lines, f"  remedy: {remedy}"])


def failure_of_ray(error: Exception, *, rank: int, stage: str) -> WorkerFailure:
    """The value that stands for one of Ray's exceptions."""
    from ray import exceptions

    text = str(error)
    kind, remedy = "died", ""
    if isinstance(error, exceptions.OutOfMemoryError):
        message, remedy = "killed by Ray, because its node ran out of memory", "fewer ranks for each node"
    elif isinstance(error, exceptions.RuntimeEnvSetupError):
        kind, message = "environment", _first_line(text)
    elif missing := _MISSING_MODULE.search(text):
        kind, message = "import", missing.group(1)
        remedy = "start the launch in the directory that holds the module, or install it on the nodes"
    elif detail := _EXIT_DETAIL.search(text):
        message = f"its process ended ({detail.group(1)}: {detail.group(2).strip()})"
        remedy = "its log holds the last words; a kill by the system leaves none (see dmesg)"
    elif isinstance(error, exceptions.RayActorError | exceptions.NodeDiedError):
        message = f"its process ended, or its node is lost: {_first_line(text)}"
    else:
        kind, message = type(error).__name__, _first_line(text)
    return WorkerFailure(rank=rank, stage=stage, kind=kind, message=message, remedy=remedy, traceback=text)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
