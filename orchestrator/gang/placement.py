"""Places for ranks: the nodes that may have some, and the resources of all ranks, reserved as one group.

Nodes may have ranks that are named, not excluded, labelled so, and that answer. Ray says of a placement group
only that it is not there yet; what is lacking is said here, early on and in the end.

Whether the head and nodes answer is found out by connecting to them: Ray lists a node as alive for about a
minute after it went down, and would place ranks there. Raylets and head speak gRPC, which greets whoever
connects; the kernel takes connections even for a process that is stopped. With TLS gRPC waits for the other
side's word, so where nobody greets, a connection is all that can be had.
"""

from __future__ import annotations

import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from warmrank.cache_store.text import brief_names, count_text, grouped
from warmrank.orchestrator.config.models import RayConfig, WatchConfig
from warmrank.orchestrator.errors import BadArgument, CannotStart, LacksDevice, UnknownNode
from warmrank.orchestrator.gang.node_group import TICK_S, left_s
from warmrank.orchestrator.nodes import Node, choose, in_order, is_called

_NODE_ID = "ray.io/node-id"  # Ray's own label of each node
_SELECTED = re.compile(r"(!?)(?:in\((.*)\)|(.*))")
_SAY_AFTER_S = 5.0
_AT_ONCE = 256  # fewer than the files that a process may have open by default
_KNOCK_S = 2.0
_AGAIN_S = 0.2

Resources = Mapping[str, float]
Place = tuple[str, int]  # host and port
Heard = Literal["greets", "connects", "silent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """A node as Ray knows it: its names, the port of Ray there, resources and labels by Ray's names."""

    node: Node
    port: int = 0
    resources: Resources = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        """Address and port where Ray listens."""
        return self.node.address, self.port


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


def knock(place: Place) -> Heard:
    """Connect to a place, and tell whether it greets, only takes the connection, or neither."""
    deadline = time.monotonic() + _KNOCK_S
    try:
        connection = socket.create_connection(place, timeout=_KNOCK_S)
    except OSError:
        return "silent"
    with connection, suppress(OSError):
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        if connection.recv(1):
            return "greets"
    return "connects"


def _heard(places: list[Place]) -> dict[Place, Heard]:
    if len(places) == 1:  # the head's: a pool would hold up the end of this process
        return {places[0]: knock(places[0])}
    with ThreadPoolExecutor(min(len(places), _AT_ONCE)) as pool:
        return dict(zip(places, pool.map(knock, places), strict=True))


class Liveness:
    """Looks at places, all of one cluster; from `begin` on by itself, in a thread that holds up no end."""

    def __init__(self, places: Iterable[Place], settings: WatchConfig) -> None:
        self._settings = settings
        self._silent_s = dict.fromkeys(places, 0.0)
        self._looked_s = time.monotonic()
        self._greets = False  # that one ever did: without TLS they all do
        self._looking, self._over = threading.Lock(), threading.Event()

    def look(self) -> set[Place]:
        """The places that do not answer now."""
        if not self._silent_s:
            return set()
        with self._looking:
            heard = _heard(list(self._silent_s))
            self._greets = self._greets or "greets" in heard.values()
            fine = "greets" if self._greets else "connects"
            silent = {place for place, what in heard.items() if what != fine}
            # Only looks count: who was stopped for an hour has not been left without an answer for one.
            now_s, lost = time.monotonic(), self.lost
            looked_for_s = min(now_s - self._looked_s, self._settings.every_s + _KNOCK_S)
            self._looked_s = now_s
            for place, silent_s in self._silent_s.items():
                self._silent_s[place] = silent_s + looked_for_s if place in silent | lost else 0.0
            return silent

    @property
    def lost(self) -> set[Place]:
        """Those that were silent for ``watch.node_silent_s``; once lost, a place stays so."""
        limit_s = self._settings.node_silent_s
        return {place for place, silent_s in self._silent_s.items() if silent_s >= limit_s}

    def is_there(self) -> bool:
        """True if all answer, before one of them is lost; waits for that."""
        while not self.lost and self.look():
            time.sleep(_AGAIN_S)
        return not self.lost

    def begin(self) -> None:
        """Look every ``watch.every_s``, until `stop`."""
        threading.Thread(target=self._run, name="liveness", daemon=True).start()

    def stop(self) -> None:
        """Look no more."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._settings.every_s):
            self.look()


@dataclass(frozen=True, slots=True, kw_only=True)
class Eligible:
    """The nodes of a cluster that may have ranks, and why others may not."""

    nodes: tuple[RayNode, ...]  # by host
    silent: tuple[Node, ...] = ()  # alive for Ray, but do not answer
    unlabelled: tuple[Node, ...] = ()  # do not have the labels that the config asks for
    labels: Mapping[str, str]  # in Ray's syntax, what only the first meet

    def total(self, name: str) -> float:
        """Amount of a resource that the nodes have together."""
        return sum(known.resources.get(name, 0.0) for known in self.nodes)

    def free(self) -> list[Resources]:
        """Free resources of each node."""
        from ray._private import state  # Ray has no public name for it

        found = state.available_resources_per_node()  # type: ignore[no-untyped-call]
        return [found.get(known.node.node_id, {}) for known in self.nodes]


def eligible(
    config: RayConfig, known: Sequence[RayNode], silent: Collection[Place], *, strict: bool
) -> Eligible:
    """Choose among the nodes that Ray lists as alive, of which some are silent, by where Ray listens there.

    Unless ``strict``, the config may name nodes that are gone.

    Raises:
        UnknownNode: a name fits no node, or several.
        BadArgument: the config excludes every node.
        CannotStart: of the nodes that it names none is there any more, or answers.
    """
    nodes = [each.node for each in known]
    named = _called(nodes, config.nodes, strict=strict) if config.nodes else set(nodes)
    named -= _called(nodes, config.exclude_nodes, strict=strict)
    usable = [each for each in known if each.node in named and each.place not in silent]
    # What leaves no node, now or later: Ray has no word for that.
    if nodes and not named and strict:
        there = ", ".join(map(str, nodes))
        msg = f"ray.exclude_nodes (--exclude-node) leaves no node for ranks; alive nodes: {there}"
        raise BadArgument(msg)
    if config.nodes and not usable:
        gone = f"are not there any more: {', '.join(config.nodes)}"
        what = f"do not answer: {', '.join(str(node) for node in nodes if node in named)}" if named else gone
        msg = f"the nodes that ray.nodes (--node) names {what}; bring one back, or name others"
        raise CannotStart(msg, is_lost=True)
    labels, ids = dict(config.labels), {each.node.node_id: None for each in usable}
    if config.nodes:
        labels[_NODE_ID] = f"in({', '.join(ids)})"
    elif left_out := [node.node_id for node in nodes if node.node_id not in ids]:
        labels[_NODE_ID] = f"!in({', '.join(left_out)})"  # nodes that join later may have ranks
    fit = grouped((_is_labelled(each.labels, config.labels), each) for each in usable)
    return Eligible(
        nodes=tuple(fit.get(True, ())),
        silent=tuple(each.node for each in known if each.node in named and each.place in silent),
        unlabelled=tuple(each.node for each in fit.get(False, ())),
        labels=labels,
    )


def _called(known: Sequence[Node], names: Iterable[str], *, strict: bool) -> set[Node]:
    found: set[Node] = set()
    for name in names:
        try:
            found.update(choose(known, [name]))
        except UnknownNode:
            if strict:
                raise
            found.update(node for node in known if is_called(node, name))  # an earlier attempt lost it
    return found


def _is_labelled(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """See Ray's label selectors: ``value``, ``!value``, ``in(a, b)``, ``!in(a, b)``."""
    for name, text in wanted.items():
        if (matched := _SELECTED.fullmatch(text)) is None:
            return False
        negated, several, one = matched.groups()
        values = [value.strip() for value in several.split(",")] if several is not None else [one]
        if (labels.get(name) in values) is bool(negated):
            return False
    return True


def slots(resources: Resources, need: Resources, most: int = sys.maxsize) -> int:
    """Number of ranks that fit into resources, at ``most``."""
    # Ray counts in ten-thousandths.
    fits = [(resources.get(name, 0.0) + 1e-4) // amount for name, amount in need.items() if amount > 0]
    return int(min([*fits, most]))


def bundle_sizes(node_slots: Iterable[int], num_ranks: int, group_size: int) -> tuple[int, ...]:
    """The number of ranks in each bundle: whole groups as long as nodes have room for these, then one."""
    num_whole = min(num_ranks // group_size, sum(number // group_size for number in node_slots))
    return (group_size,) * num_whole + (1,) * (num_ranks - num_whole * group_size)


# How Ray finds devices, where it finds too few.
_FOUND_BY = {
    "NPU": (
        "it counts the files /dev/davinci<N>: a container needs them (huawei.com/Ascend910 in Kubernetes, "
        "ASCEND_VISIBLE_DEVICES in Docker), or say it: ray start --resources='{\"NPU\": 8}'"
    ),
    "GPU": "it asks the NVIDIA driver: a container needs its devices (nvidia.com/gpu, --gpus)",
}


def describe_shortage(
    need: Resources, num_ranks: int, supply: Eligible, free: Sequence[Resources], *, is_own: bool
) -> str:
    """Error text for ranks that do not fit on nodes with so much free, with the remedy.

    ``is_own``: the cluster is a Ray of this launch.
    """
    where = "this machine" if is_own else "the Ray cluster"
    lines = [f"{count_text(num_ranks, 'rank')} {'does' if num_ranks == 1 else 'do'} not fit on {where}:"]
    remedy = (
        "other work holds them: wait for it or end it (`ray status`, `ray list actors`); or no node is big "
        "enough for one rank, or ray.placement asks for more nodes than there are"
    )
    for name, each in need.items():
        wanted, has = num_ranks * each, supply.total(name)
        is_free = sum(node.get(name, 0.0) for node in free)
        missing = f", {wanted - has:g} too few" if wanted > has else ""
        lines.append(
            f"  {name}: {num_ranks} x {each:g} = {wanted:g} wanted, {has:g} there{missing}, {is_free:g} free"
        )
        if name != "CPU" and supply.nodes and not is_own:
            hosts = grouped((known.resources.get(name, 0.0), known.node.host) for known in supply.nodes)
            by_node = "; ".join(f"{num:g} on {brief_names(found)}" for num, found in sorted(hosts.items()))
            lines.append(f"  {name}s by node: {by_node}")
        if missing and name == "CPU":
            more = "set ray.num_cpus to pretend to more" if is_own else "add nodes"
            remedy = f"lower ranks or ray.num_cpus_per_rank (fractions are allowed), or {more}"
        elif missing:
            fewer = "lower ranks" if has else "set device: cpu"
            remedy = f"{fewer}, or add nodes with {name}s that Ray sees (`ray status`); {_FOUND_BY[name]}"
    labels = ", ".join(f"{name}={value}" for name, value in supply.labels.items() if name != _NODE_ID)
    for why, nodes in (
        ("Ray there does not answer; bring them back", supply.silent),
        (f"ray.labels asks for {labels} (ray start --labels=NAME=VALUE)", supply.unlabelled),
    ):
        if nodes:
            lines.append(f"  not counted, because {why}: {brief_names(map(str, nodes))}")
    return "\n".join([*lines, f"  remedy: {remedy}"])


class Bundles:
    """A placement group, and the bundle in it of each rank's process."""

    _group: Any = None
    _bundle_of: Sequence[int] = ()

    def node_ids(self) -> list[str]:
        """Ray's ids of the nodes that get ranks."""
        from ray.util.placement_group import placement_group_table

        node_of = placement_group_table(self._group)["bundles_to_node_id"]
        return sorted({node_of[bundle] for bundle in self._bundle_of})

    def place(self, index: int) -> Any:
        """The scheduling strategy of the process of that index; those of a group are next to each other."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = self._bundle_of[index]
        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)

    def release(self) -> None:
        """Free the resources, unless somebody else holds them; more than once does no harm."""


class Reservation(Bundles):
    """Bundles of resources for all ranks, asked for at once, and there when `hold` has returned.

    Each rank needs ``need``, by Ray's names of resources; ``group_size`` of them, next to each other, are to
    be on one node. ``placement`` is Ray's strategy; a Ray that ``is_own`` never grows.
    """

    def __init__(
        self,
        need: Resources,
        num_ranks: int,
        *,
        group_size: int = 1,
        placement: str,
        is_own: bool,
        eligible: Eligible,
    ) -> None:
        self._need, self._num_ranks, self._group_size = dict(need), num_ranks, group_size
        self._placement, self._is_own, self._eligible = placement, is_own, eligible
        self._ask([node.resources for node in eligible.nodes])

    def hold(self, deadline: float, *, check: Callable[[], None], on_wait: Callable[[str], None]) -> None:
        """Wait until all resources are there; without them nothing stays reserved.

        ``check`` raises once there is nothing to wait for any more; ``on_wait`` is `Launcher.on_wait`.

        Raises:
            CannotStart: resources are missing; names them and the remedy.
            LacksDevice: of these, accelerators that an own Ray never gets.
        """
        lacking = {
            name for name, each in self._need.items() if self._num_ranks * each > self._eligible.total(name)
        }
        # An own Ray never grows, so there what is missing now is missing for ever.
        if not (self._is_own and lacking) and self._is_there(deadline, check, on_wait):
            return
        text = self._shortage()
        self.release()
        if self._is_own and lacking - {"CPU"}:
            raise LacksDevice(text)
        if self._is_own and not lacking:  # nobody else takes anything of it
            raise CannotStart(
                "Ray on this machine did not reserve the ranks' resources in time, although they are there; "
                "raise timeouts.start_s if the machine is busy",
                budget="start",
            )
        raise CannotStart(text, is_lost=bool(self._eligible.silent))

    def release(self) -> None:
        """Free the resources, whether or not they are there yet; more than once does no harm."""
        import ray

        group, self._group = self._group, None
        if group is not None:
            ray.util.remove_placement_group(group)

    def _ask(self, on_nodes: Sequence[Resources]) -> None:
        """Ask Ray for as many whole groups as there is room for."""
        from ray.util.placement_group import placement_group

        room = [slots(resources, self._need, self._num_ranks) for resources in on_nodes]
        sizes = bundle_sizes(room, self._num_ranks, self._group_size)
        labels = dict(self._eligible.labels)
        # An older Ray does not know the argument.
        more: dict[str, Any] = {"bundle_label_selector": [labels] * len(sizes)} if labels else {}
        self._bundle_of = tuple(index for index, size in enumerate(sizes) for _ in range(size))
        bundles = [
            {name: round(amount * size, 4) for name, amount in self._need.items() if amount > 0}
            for size in sizes
        ]
        self._group = placement_group(bundles, strategy=self._placement, **more)

    def _is_there(self, deadline: float, check: Callable[[], None], on_wait: Callable[[str], None]) -> bool:
        """True if the resources are there in time; says early what is lacking, though a cluster may grow."""
        say_s = time.monotonic() + _SAY_AFTER_S
        while not self._group.wait(TICK_S):  # once at least: Ray's own start may have taken all the time
            if left_s(deadline) <= 0:
                return False
            check()
            lacking = ""
            if time.monotonic() >= say_s:
                say_s = float("inf")
                head, *rest = self._shortage().splitlines()
                lacking = f"still waiting: {head} {'; '.join(line.strip() for line in rest)}"
                self._loosen()
            on_wait(lacking)
        return True

    def _loosen(self) -> None:
        """Let groups straddle nodes where other work has taken the room for whole ones, but not for ranks."""
        free = self._eligible.free()
        room = [slots(resources, self._need, self._num_ranks) for resources in free]
        if self._group_size > 1 and sum(room) >= self._num_ranks:
            self.release()
            self._ask(free)

    def _shortage(self) -> str:
        supply = self._eligible
        return describe_shortage(self._need, self._num_ranks, supply, supply.free(), is_own=self._is_own)


class GivenGroup(Bundles):
    """A placement group, by id or name, that somebody else made, and keeps, with room for all ranks.

    Raises `CannotStart` if there is none of that name, several, or it has no room.
    """

    def __init__(self, name: str, need: Resources, num_ranks: int) -> None:
        from ray import PlacementGroupID
        from ray.util.placement_group import PlacementGroup, placement_group_table

        table = placement_group_table()
        known = {group_id: group for group_id, group in table.items() if group["state"] == "CREATED"}
        found = [group_id for group_id, group in known.items() if name in {group_id, group["name"]}]
        if len(found) != 1:
            names = ", ".join(f"{group_id} {group['name']}".strip() for group_id, group in known.items())
            what = "several placement groups are" if found else "no placement group that is there is"
            raise CannotStart(f"{what} called {name!r} (ray.placement_group); there are: {names or 'none'}")
        made = known[found[0]]
        node_of = made["bundles_to_node_id"]
        bundles = {index: slots(bundle, need, num_ranks) for index, bundle in made["bundles"].items()}
        by_node = sorted(bundles, key=lambda index: (node_of[index], index))
        self._bundle_of = [index for index in by_node for _ in range(bundles[index])][:num_ranks]
        if len(self._bundle_of) < num_ranks:
            wanted = ", ".join(f"{amount:g} {name}" for name, amount in need.items())
            raise CannotStart(
                f"placement group {name!r} has room for {len(self._bundle_of)} of {num_ranks} ranks with "
                f"{wanted} each; its bundles: {list(made['bundles'].values())}. Where they have no CPUs, "
                "set ray.num_cpus_per_rank to 0"
            )
        self._group = PlacementGroup(PlacementGroupID(bytes.fromhex(found[0])))
