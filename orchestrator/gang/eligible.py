"""The nodes that may have ranks: those that are named, not excluded, labelled so, and that answer.

Ray lists a node as alive for about a minute after it went down, and would place ranks there; so each is
asked, and so is the cluster's head all along. Raylets and head speak gRPC, which greets whoever connects; the
kernel takes connections even for a process that is stopped. With TLS gRPC waits for the other side's word, so
where nobody greets, a connection is all that can be had.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from warmrank.orchestrator.config.models import RayConfig, WatchConfig
from warmrank.orchestrator.errors import BadArgument, CannotStart, UnknownNode
from warmrank.orchestrator.nodes import Node, choose, in_order, is_called

Place = tuple[str, int]
Heard = Literal["greets", "connects", "refuses", "silent"]

_AT_ONCE = 256  # fewer than the files that a process may have open by default


def knock(places: Iterable[Place], *, timeout_s: float) -> dict[Place, Heard]:
    """Connect to places; tell those that greet, only take a connection, refuse it, or do not answer."""
    wanted = list(dict.fromkeys(places))
    if not wanted:
        return {}
    with ThreadPoolExecutor(min(len(wanted), _AT_ONCE)) as pool:
        return dict(zip(wanted, pool.map(lambda place: _knock(place, timeout_s), wanted), strict=True))


def _knock(place: Place, timeout_s: float) -> Heard:
    deadline = time.monotonic() + timeout_s
    try:
        connection = socket.create_connection(place, timeout=timeout_s)
    except (TimeoutError, socket.gaierror):
        return "silent"
    except OSError:
        return "refuses"
    with connection, suppress(OSError):
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        if connection.recv(1):
            return "greets"
    return "connects"


_CONNECT_S = 2.0
_AGAIN_S = 0.2


class HeadWatch:
    """Tries to reach the cluster's head from a thread of its own; never stops the process from ending.

    One try may take ``connect_s``.
    """

    def __init__(self, address: str, settings: WatchConfig, *, connect_s: float = _CONNECT_S) -> None:
        self._connect_s = connect_s
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._settings = settings
        self._tried_s = time.monotonic()
        self._silent_s = 0.0
        self._is_lost = False
        self._greets: bool | None = None
        self._trying = threading.Lock()
        self._over = threading.Event()
        threading.Thread(target=self._run, name="head-watch", daemon=True).start()

    @property
    def loss(self) -> str:
        """Error text if the cluster has lost its head, else ``""``. Once lost, it stays so."""
        where, silent_s = f"{self._host}:{self._port}", self._settings.node_silent_s
        return f"the cluster's head at {where} has not answered for {silent_s:g} s" if self._is_lost else ""

    def is_there(self) -> bool:
        """True if the head answers, or is not lost yet; Ray would try for a minute, and end this process."""
        while not self._is_lost and not self._try():
            time.sleep(_AGAIN_S)
        return not self._is_lost

    def stop(self) -> None:
        """Look no more."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._settings.every_s):
            self._try()

    def _try(self) -> bool:
        with self._trying:
            is_reached, now_s = self._reaches(), time.monotonic()
            # Only tries count: who was stopped for an hour has not been left without an answer for one.
            tried_for_s = min(now_s - self._tried_s, self._settings.every_s + self._connect_s)
            self._tried_s = now_s
            self._silent_s = 0.0 if is_reached else self._silent_s + tried_for_s
            self._is_lost = self._is_lost or self._silent_s >= self._settings.node_silent_s
            return is_reached

    def _reaches(self) -> bool:
        heard = _knock((self._host.strip("[]"), self._port), self._connect_s)
        if heard in {"refuses", "silent"}:
            return False
        # With TLS nobody is greeted: a head that did not greet at first needs not to later.
        if self._greets is None:
            self._greets = heard == "greets"
        return heard == "greets" or not self._greets


KNOCK_S = 2.0  # seconds that a node is waited for

_NODE_ID = "ray.io/node-id"  # Ray's own label of each node
_SELECTED = re.compile(r"(!?)(?:in\((.*)\)|(.*))")


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """A node as Ray knows it: its names, the port of Ray there, resources and labels by Ray's names."""

    node: Node
    port: int = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Eligible:
    """The nodes of a cluster that may have ranks, and why others may not."""

    nodes: tuple[RayNode, ...]  # by host
    silent: tuple[Node, ...] = ()  # alive for Ray, but do not answer
    unlabelled: tuple[RayNode, ...] = ()  # do not meet `wanted`
    wanted: Mapping[str, str] = field(default_factory=dict)  # the config's label selectors
    labels: Mapping[str, str]  # in Ray's syntax, what only the first meet


def summed(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Resources together."""
    found: dict[str, float] = {}
    for resources in parts:
        for name, amount in resources.items():
            found[name] = found.get(name, 0.0) + amount
    return found


def nodes_of_ray() -> tuple[RayNode, ...]:
    """The nodes that Ray lists as alive, by host."""
    import ray

    found = []
    for each in ray.nodes():  # type: ignore[no-untyped-call]
        if each["Alive"]:
            address, host = each["NodeManagerAddress"], each["NodeManagerHostname"]
            node = Node(node_id=each["NodeID"], address=address, host=host)
            port, labels = each["NodeManagerPort"], each.get("Labels", {})
            found.append(RayNode(node=node, port=port, resources=each["Resources"], labels=labels))
    return tuple(sorted(found, key=lambda known: (in_order(known.node.host), known.node.node_id)))


def silent_among(nodes: Sequence[RayNode], *, timeout_s: float = KNOCK_S) -> tuple[Node, ...]:
    """The nodes on which no Ray answers."""
    heard = knock(((known.node.address, known.port) for known in nodes), timeout_s=timeout_s)
    is_greeted = "greets" in heard.values()
    fine = {"greets"} if is_greeted else {"greets", "connects"}
    return tuple(known.node for known in nodes if heard[known.node.address, known.port] not in fine)


class NodesUp:
    """Looks whether nodes stay up while ranks start on them; their watches are starting as well."""

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
    """Choose among the nodes that Ray lists as alive, of which some are silent.

    Unless ``strict``, the config may name nodes that are gone.

    Raises:
        UnknownNode: a name fits no node, or several.
        BadArgument: the config excludes every node.
        CannotStart: of the nodes that it names none is there any more, or answers.
    """
    nodes = [each.node for each in known]
    named = set(_called(nodes, config.nodes, strict=strict)) if config.nodes else set(nodes)
    named -= set(_called(nodes, config.exclude_nodes, strict=strict))
    away = set(silent)
    # What leaves no node, now or later: Ray has no word for that.
    if nodes and not named and strict:
        there = ", ".join(map(str, nodes))
        msg = f"ray.exclude_nodes (--exclude-node) leaves no node for ranks; alive nodes: {there}"
        raise BadArgument(msg)
    if config.nodes and not named - away:
        gone = f"are not there any more: {', '.join(config.nodes)}"
        silent_ones = ", ".join(str(node) for node in nodes if node in named)
        what = f"do not answer: {silent_ones}" if named else gone
        msg = f"the nodes that ray.nodes (--node) names {what}; bring one back, or name others"
        raise CannotStart(msg, blames_cluster=True)
    labels = dict(config.labels)
    if config.nodes:
        labels[_NODE_ID] = f"in({', '.join(node.node_id for node in nodes if node in named - away)})"
    elif left_out := [node.node_id for node in nodes if node not in named - away]:
        labels[_NODE_ID] = f"!in({', '.join(left_out)})"  # nodes that join later may have ranks
    usable = [each for each in known if each.node in named - away]
    return Eligible(
        nodes=tuple(each for each in usable if _is_labelled(each, config.labels)),
        silent=tuple(node for node in nodes if node in named & away),
        unlabelled=tuple(each for each in usable if not _is_labelled(each, config.labels)),
        wanted=config.labels,
        labels=labels,
    )


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
