"""Ray's ways of failing, in this project's words: pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from warmrank.orchestrator.causes import DIED, NODE_LOST, WorkerFailure

_EXIT_DETAIL = re.compile(
    # The first sentence: the others guess at causes, such as the OOM killer, that need not be so.
    r"Worker exit type: (\w+) Worker exit detail: (.*?)(?:(?<=\.) |\n|$)"
)
_NO_STATUS = "connection error code 2"  # Ray's words for a process that left its socket without a word
_LOST_NODE = re.compile(r"(?i)node (?:was terminated|is dead|has died|died|failure)|NODE_DIED")
_OWN = "ray.io/"  # labels that Ray itself gives nodes
_MISSING_MODULE = re.compile(r"(?:ModuleNotFoundError|ImportError): (.*)")


# How Ray finds devices, where it finds too few.
_FOUND_BY = {
    "NPU": (
        "it counts the files /dev/davinci<N>: a container needs them (huawei.com/Ascend910 in Kubernetes, "
        "ASCEND_VISIBLE_DEVICES in Docker), or say it: ray start --resources='{\"NPU\": 8}'"
    ),
    "GPU": "it asks the NVIDIA driver: a container needs its devices (nvidia.com/gpu, --gpus)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """What a cluster has.

    Attributes:
        total: its resources.
        available: those that are free.
        nodes: host name and resources of each node; several may be on one host.
        silent: nodes that Ray lists as alive and that do not answer, for people; they are not counted.
        wanted_labels: label selectors that nodes must meet.
        unlabelled: host name and labels of each node that does not meet them; they are not counted.
    """

    total: Mapping[str, float]
    available: Mapping[str, float]
    nodes: tuple[tuple[str, Mapping[str, float]], ...] = ()
    silent: tuple[str, ...] = ()
    wanted_labels: Mapping[str, str] = field(default_factory=dict)
    unlabelled: tuple[tuple[str, Mapping[str, str]], ...] = ()


def describe_shortage(
    bundle: Mapping[str, float], num_ranks: int, supply: Supply, *, state: str, own: bool
) -> str:
    """Why ranks cannot be placed, and what to do.

    Args:
        bundle: resources that each rank asks for.
        num_ranks: number of ranks.
        supply: what the cluster has.
        state: Ray's scheduling state of the placement group.
        own: the cluster is a local Ray of this launch.
    """
    where = "this machine" if own else "the Ray cluster"
    lines = [f"{num_ranks} ranks do not fit on {where}:"]
    total, short_in_all = supply.total, False
    for name, need in bundle.items():
        demand, has, free = num_ranks * need, total.get(name, 0.0), supply.available.get(name, 0.0)
        short_in_all = short_in_all or demand > has
        missing = f", {demand - has:g} too few" if demand > has else ""
        lines.append(
            f"  {name}: {num_ranks} x {need:g} = {demand:g} wanted, {has:g} there{missing}, {free:g} free"
        )
        if name != "CPU" and supply.nodes:
            lines.append(f"  {name}s by node: {_by_node(name, supply.nodes)}")
    if supply.silent:
        lines.append(f"  not counted, because Ray there does not answer: {', '.join(supply.silent)}")
    if supply.unlabelled:
        wanted = ", ".join(f"{name}={value}" for name, value in supply.wanted_labels.items())
        lines.append(f"  not counted, because ray.labels asks for {wanted}: {_by_labels(supply)}")
    short_of_devices = [name for name in bundle if name != "CPU" and total.get(name, 0.0) < num_ranks]
    if supply.silent and short_in_all:
        remedy = "bring these nodes back or add others, or lower ranks"
    elif supply.unlabelled and short_in_all:
        remedy = "correct ray.labels, label more nodes (ray start --labels=NAME=VALUE), or lower ranks"
    elif short_of_devices:
        device = short_of_devices[0]
        remedy = f"lower ranks, or add nodes with {device}s that Ray sees (`ray status`); {_FOUND_BY[device]}"
    elif short_in_all:
        lower = "ray.num_cpus_per_rank (fractions are allowed)"
        more = "set ray.num_cpus to pretend to more" if own else "add nodes"
        remedy = f"lower ranks or {lower}, or {more}"
    elif state == "INFEASIBLE":
        remedy = "no node is big enough for one rank, or ray.placement asks for more nodes than there are"
    else:
        remedy = "other work holds them: wait for it or end it (`ray status`, `ray list actors`)"
    return "\n".join([*lines, f"  remedy: {remedy}"])


def in_a_line(shortage: str) -> str:
    """What `describe_shortage` gave, where one line is all that is shown."""
    head, *rest = shortage.splitlines()
    return f"{head} {'; '.join(line.strip() for line in rest)}"


def _by_node(name: str, nodes: Iterable[tuple[str, Mapping[str, float]]]) -> str:
    """``a and 2 more: 8, d: 0``: how many each node has; nodes with equally many share an entry."""
    alike: dict[float, list[str]] = {}
    for host, resources in nodes:
        alike.setdefault(resources.get(name, 0.0), []).append(host)
    entries = []
    for number, hosts in sorted(alike.items(), reverse=True):
        more = f" and {len(hosts) - 1} more" if len(hosts) > 1 else ""
        entries.append(f"{min(hosts)}{more}: {number:g}")
    return ", ".join(entries)


def _by_labels(supply: Supply) -> str:
    """``a and 2 more have zone=x, d has no labels``: those that Ray gives each node only where asked for."""
    alike: dict[str, list[str]] = {}
    for host, labels in supply.unlabelled:
        shown = sorted(name for name in labels if name in supply.wanted_labels or not name.startswith(_OWN))
        text = ", ".join(f"{name}={labels[name]}" for name in shown)
        alike.setdefault(text or "no labels", []).append(host)
    return "; ".join(
        f"{min(hosts)} and {len(hosts) - 1} more have {text}" if len(hosts) > 1 else f"{hosts[0]} has {text}"
        for text, hosts in sorted(alike.items())
    )


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
