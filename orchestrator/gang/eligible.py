"""The nodes that may have ranks: those that are named, not excluded, labelled so, and that answer.

Ray lists a node as alive for about a minute after it went down, and would
place ranks there; so each is asked.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from warmrank.orchestrator.config.models import RayConfig, WatchConfig
from warmrank.orchestrator.errors import BadArgument, CannotStart, UnknownNode
from warmrank.orchestrator.gang.liveness import knock
from warmrank.orchestrator.nodes import Node, alive, choose, is_called

KNOCK_S = 2.0
"""Seconds that a node is waited for."""

_NODE_ID = "ray.io/node-id"  # Ray's own label of each node
_SELECTED = re.compile(r"(!?)(?:in\((.*)\)|(.*))")


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """A node as Ray knows it.

    Attributes:
        node: its names.
        port: of Ray there.
        resources: all that it has, by Ray's names.
        labels: by Ray's names of them.
    """

    node: Node
    port: int = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Eligible:
    """Nodes of a cluster.

    Attributes:
        nodes: those that may have ranks, by host.
        silent: those that Ray lists as alive, and that do not answer.
        unlabelled: those that do not meet ``wanted``.
        wanted: the config's label selectors.
        labels: what a node must be labelled with to be one of the first, in Ray's syntax.
    """

    nodes: tuple[RayNode, ...]
    silent: tuple[Node, ...] = ()
    unlabelled: tuple[RayNode, ...] = ()
    wanted: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str]

    def total(self) -> dict[str, float]:
        """All resources of the nodes."""
        found: dict[str, float] = {}
        for node in self.nodes:
            for name, amount in node.resources.items():
                found[name] = found.get(name, 0.0) + amount
        return found


def nodes_of_ray() -> tuple[RayNode, ...]:
    """The nodes that Ray lists as alive, by host."""
    import ray

    listed: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    by_id = {node["NodeID"]: node for node in listed}
    return tuple(
        RayNode(
            node=node,
            port=by_id[node.node_id]["NodeManagerPort"],
            resources=by_id[node.node_id]["Resources"],
            labels=by_id[node.node_id].get("Labels", {}),
        )
        for node in alive(listed)
    )


def silent_among(nodes: Sequence[RayNode], *, timeout_s: float = KNOCK_S) -> tuple[Node, ...]:
    """The nodes on which no Ray answers."""
    heard = knock(((known.node.address, known.port) for known in nodes), timeout_s=timeout_s)
    is_greeted = "greets" in heard.values()
    fine = {"greets"} if is_greeted else {"greets", "connects"}
    return tuple(known.node for known in nodes if heard[known.node.address, known.port] not in fine)


class NodesUp:
    """Looks whether nodes stay up while ranks start on them; their watches are starting as well.

    Args:
        nodes: that get ranks.
        settings: how often they are looked at, and how long they may be silent.
    """

    def __init__(self, nodes: Sequence[RayNode], settings: WatchConfig) -> None:
        self._nodes = tuple(nodes)
        self._settings = settings
        self._looked_s = self._heard_s = time.monotonic()

    def silent(self) -> tuple[Node, ...]:
        """The nodes that do not answer now."""
        return silent_among(self._nodes)

    def lost(self) -> tuple[Node, ...]:
        """The nodes that have been silent for too long; looks now and then."""
        now_s = time.monotonic()
        if now_s - self._looked_s < self._settings.every_s:
            return ()
        silent = self.silent()
        self._looked_s = time.monotonic()
        if not silent:
            self._heard_s = self._looked_s
        return silent if self._looked_s - self._heard_s >= self._settings.node_silent_s else ()


def eligible(
    config: RayConfig, known: Sequence[RayNode], silent: Iterable[Node], *, strict: bool
) -> Eligible:
    """Choose among nodes.

    Args:
        config: names nodes and labels.
        known: the nodes that Ray lists as alive.
        silent: those of them that do not answer.
        strict: whether a name must be that of a node.

    Raises:
        UnknownNode: a name fits no node, or several.
        BadArgument: the config excludes every node.
        CannotStart: of the nodes that it names none is there any more, or answers.
    """
    nodes = [each.node for each in known]
    named = set(_called(nodes, config.nodes, strict=strict)) if config.nodes else set(nodes)
    named -= set(_called(nodes, config.exclude_nodes, strict=strict))
    away = set(silent)
    _refuse_none(config, nodes, named, away, strict=strict)
    labels = dict(config.labels)
    if config.nodes:
        labels[_NODE_ID] = f"in({', '.join(node.node_id for node in nodes if node in named - away)})"
    elif left_out := [node.node_id for node in nodes if node not in named - away]:
        labels[_NODE_ID] = f"!in({', '.join(left_out)})"  # nodes that join later may have ranks
    there = [each for each in known if each.node in named - away]
    return Eligible(
        nodes=tuple(each for each in there if _is_labelled(each, config.labels)),
        silent=tuple(node for node in nodes if node in named & away),
        unlabelled=tuple(each for each in there if not _is_labelled(each, config.labels)),
        wanted=config.labels,
        labels=labels,
    )


def _refuse_none(
    config: RayConfig, known: Sequence[Node], named: Collection[Node], away: Collection[Node], *, strict: bool
) -> None:
    """Refuse what leaves no node, now or later: Ray has no word for that."""
    if known and not named and strict:
        msg = (
            "ray.exclude_nodes (--exclude-node) leaves no node for ranks; alive nodes: "
            f"{', '.join(map(str, known))}"
        )
        raise BadArgument(msg)
    if config.nodes and not set(named) - set(away):
        silent = ", ".join(str(node) for node in known if node in named)
        what = f"do not answer: {silent}" if silent else f"are not there any more: {', '.join(config.nodes)}"
        msg = f"the nodes that ray.nodes (--node) names {what}; bring one back, or name others"
        raise CannotStart(msg, blames_cluster=True)


def _called(known: Sequence[Node], names: Iterable[str], *, strict: bool) -> list[Node]:
    found: list[Node] = []
    for name in names:
        try:
            found += choose(known, [name])
        except UnknownNode:
            if strict:
                raise
            found += [node for node in known if is_called(node, name)]  # an earlier attempt lost it
    return found


def _is_labelled(node: RayNode, wanted: Mapping[str, str]) -> bool:
    return all(_is_selected(node.labels.get(name), value) for name, value in wanted.items())


def _is_selected(found: str | None, wanted: str) -> bool:
    """See Ray's label selectors: ``value``, ``!value``, ``in(a, b)``, ``!in(a, b)``."""
    matched = _SELECTED.fullmatch(wanted)
    if matched is None:
        return False
    negated, several, one = matched.groups()
    values = [value.strip() for value in several.split(",")] if several is not None else [one]
    return (found in values) is not bool(negated)
