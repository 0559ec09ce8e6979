"""Resources of all ranks, reserved on Ray as one placement group: all of them, or none.

Ray says of a group only that it is not there yet; what is lacking is said here, early on and in the end.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from warmrank.orchestrator.config.lint import RAY_OVERRIDE
from warmrank.orchestrator.config.models import RayConfig
from warmrank.orchestrator.errors import CannotStart, LacksDevice
from warmrank.orchestrator.gang.eligible import Eligible, RayNode, summed
from warmrank.orchestrator.gang.node_group import TICK_S, left_s
from warmrank.orchestrator.nodes import this_node
from warmrank.orchestrator.text import brief_names, count_text, grouped


def slots(resources: Mapping[str, float], need: Mapping[str, float], most: int = sys.maxsize) -> int:
    """Number of ranks that fit into resources, at ``most``."""
    # Ray counts in ten-thousandths.
    fits = [(resources.get(name, 0.0) + 1e-4) // amount for name, amount in need.items() if amount > 0]
    return int(min([*fits, most]))


def bundle_sizes(node_slots: Iterable[int], num_ranks: int, group_size: int) -> tuple[int, ...]:
    """The number of ranks in each bundle: whole groups as long as nodes have room for these, then one."""
    num_whole = min(num_ranks // group_size, sum(number // group_size for number in node_slots))
    return (group_size,) * num_whole + (1,) * (num_ranks - num_whole * group_size)


def times(need: Mapping[str, float], number: int) -> dict[str, float]:
    """Resources that so many ranks need."""
    return {name: round(amount * number, 4) for name, amount in need.items() if amount > 0}


# How Ray finds devices, where it finds too few.
_FOUND_BY = {
    "NPU": (
        "it counts the files /dev/davinci<N>: a container needs them (huawei.com/Ascend910 in Kubernetes, "
        "ASCEND_VISIBLE_DEVICES in Docker), or say it: ray start --resources='{\"NPU\": 8}'"
    ),
    "GPU": "it asks the NVIDIA driver: a container needs its devices (nvidia.com/gpu, --gpus)",
}


def describe_shortage(
    bundle: Mapping[str, float],
    num_ranks: int,
    supply: Eligible,
    free: Mapping[str, float],
    *,
    state: str,
    own: bool,
) -> str:
    """Error text for ranks whose bundles do not fit on nodes with so much free, with the remedy.

    ``state`` is Ray's scheduling state of the placement group; ``own``: the cluster is a Ray of this launch.
    """
    where = "this machine" if own else "the Ray cluster"
    ranks = f"{count_text(num_ranks, 'rank')} {'does' if num_ranks == 1 else 'do'}"
    lines = [f"{ranks} not fit on {where}:"]
    total = summed(known.resources for known in supply.nodes)
    lacking = [name for name, need in bundle.items() if num_ranks * need > total.get(name, 0.0)]
    for name, need in bundle.items():
        demand, has = num_ranks * need, total.get(name, 0.0)
        missing = f", {demand - has:g} too few" if demand > has else ""
        there = f"{has:g} there{missing}, {free.get(name, 0.0):g} free"
        lines.append(f"  {name}: {num_ranks} x {need:g} = {demand:g} wanted, {there}")
        if name != "CPU" and supply.nodes and not own:
            lines.append(f"  {name}s by node: {_by_node(name, supply.nodes)}")
    if supply.silent:
        silent = brief_names(map(str, supply.silent))
        lines.append(f"  not counted, because Ray there does not answer: {silent}")
    if supply.unlabelled:
        wanted = ", ".join(f"{name}={value}" for name, value in supply.wanted.items())
        others = brief_names(known.node.host for known in supply.unlabelled)
        lines.append(f"  not counted, because ray.labels asks for {wanted}: {others}")
    device = next((name for name in lacking if name != "CPU"), "")
    if lacking and supply.silent:
        remedy = "bring these nodes back or add others, or lower ranks"
    elif lacking and supply.unlabelled:
        remedy = "correct ray.labels, label more nodes (ray start --labels=NAME=VALUE), or lower ranks"
    elif device:
        remedy = f"lower ranks, or add nodes with {device}s that Ray sees (`ray status`); {_FOUND_BY[device]}"
    elif lacking:
        more = "set ray.num_cpus to pretend to more" if own else "add nodes"
        remedy = f"lower ranks or ray.num_cpus_per_rank (fractions are allowed), or {more}"
    elif state == "INFEASIBLE":
        remedy = "no node is big enough for one rank, or ray.placement asks for more nodes than there are"
    else:
        remedy = "other work holds them: wait for it or end it (`ray status`, `ray list actors`)"
    return "\n".join([*lines, f"  remedy: {remedy}"])


def _by_node(name: str, nodes: Iterable[RayNode]) -> str:
    """The hosts that have each number of a resource."""
    hosts = grouped((known.resources.get(name, 0.0), known.node.host) for known in nodes)
    return "; ".join(f"{number:g} on {brief_names(found)}" for number, found in sorted(hosts.items()))


def available_on(nodes: Iterable[RayNode]) -> list[Mapping[str, float]]:
    """Free resources of each node."""
    from ray._private import state  # Ray has no public name for it

    found = state.available_resources_per_node()  # type: ignore[no-untyped-call]
    return [found.get(known.node.node_id, {}) for known in nodes]


def lacks_devices(bundle: Mapping[str, float], num_ranks: int, total: Mapping[str, float]) -> bool:
    """True if there are too few accelerators, whatever there is of CPUs."""
    return any(num_ranks * need > total.get(name, 0.0) for name, need in bundle.items() if name != "CPU")


def refuse_missing_devices(bundle: Mapping[str, float], num_ranks: int, config: RayConfig) -> None:
    """Before an own Ray starts, which takes seconds, raise `LacksDevice` if it would find too few here."""
    devices = bundle.keys() - {"CPU"}
    if not devices or RAY_OVERRIDE in os.environ:
        return
    here = {"CPU": float(config.num_cpus or os.cpu_count() or 1)}
    try:
        from ray._private.accelerators import get_accelerator_manager_for_resource
    except ImportError:
        return  # a Ray that cannot be asked before it has started
    for name in devices:
        manager = get_accelerator_manager_for_resource(name)
        if manager is None:
            return
        here[name] = float(manager.get_current_node_num_accelerators())
    if lacks_devices(bundle, num_ranks, here):
        supply = Eligible(nodes=(RayNode(node=this_node(), resources=here),), labels={})
        raise LacksDevice(describe_shortage(bundle, num_ranks, supply, here, state="INFEASIBLE", own=True))


_SAY_AFTER_S = 5.0


class Reservation:
    """Bundles of resources for all ranks, asked for at once, and there when `hold` has returned.

    Each rank needs ``need``, by Ray's names of resources; ``group_size`` of them, next to each other, are to
    be on one node. ``placement`` is Ray's strategy; a Ray that ``is_own`` never grows.
    """

    def __init__(
        self,
        need: Mapping[str, float],
        num_ranks: int,
        *,
        group_size: int = 1,
        placement: str,
        is_own: bool,
        eligible: Eligible,
    ) -> None:
        self._need = dict(need)
        self._num_ranks = num_ranks
        self._group_size = group_size
        self._placement = placement
        self._is_own = is_own
        self._eligible = eligible
        self._group: Any = None
        self._bundle_of: tuple[int, ...] = ()
        self._ask([node.resources for node in eligible.nodes])

    def hold(self, deadline: float, *, check: Callable[[], None], on_wait: Callable[[str], None]) -> None:
        """Wait until all resources are there; without them nothing stays reserved.

        ``check`` raises once there is nothing to wait for any more; for ``on_wait`` see
        `gang.launcher.Waiting`.

        Raises:
            CannotStart: resources are missing; names them and the remedy.
            LacksDevice: of these, accelerators that an own Ray never gets.
        """
        total = summed(known.resources for known in self._eligible.nodes)
        # An own Ray never grows, so there what is missing now is missing for ever.
        lacking = any(self._num_ranks * need > total.get(name, 0) for name, need in self._need.items())
        if not (self._is_own and lacking) and self._is_there(deadline, check, on_wait):
            return
        text = self._shortage()
        lacks_device = self._is_own and lacks_devices(self._need, self._num_ranks, total)
        self.release()
        if lacks_device:
            raise LacksDevice(text)
        if self._is_own and not lacking:  # nobody else takes anything of it
            raise CannotStart(
                "Ray on this machine did not reserve the ranks' resources in time, although they are there; "
                "raise timeouts.start_s if the machine is busy",
                may_pass=True,
            )
        raise CannotStart(text, blames_cluster=bool(self._eligible.silent))

    def node_ids(self) -> list[str]:
        """Ray's ids of the nodes that the bundles are on."""
        from ray.util.placement_group import placement_group_table

        return sorted(set(placement_group_table(self._group)["bundles_to_node_id"].values()))

    def place(self, index: int) -> Any:
        """The scheduling strategy of the process of that index; those of a group are next to each other."""
        return _place(self._group, self._bundle_of[index])

    def release(self) -> None:
        """Free the resources, whether or not they are there yet; more than once does no harm."""
        import ray

        group, self._group = self._group, None
        if group is not None:
            ray.util.remove_placement_group(group)

    def _ask(self, on_nodes: Sequence[Mapping[str, float]]) -> None:
        """Ask Ray for as many whole groups as there is room for."""
        from ray.util.placement_group import placement_group

        room = [slots(resources, self._need, self._num_ranks) for resources in on_nodes]
        sizes = bundle_sizes(room, self._num_ranks, self._group_size)
        labels = dict(self._eligible.labels)
        # An older Ray does not know the argument.
        more: dict[str, Any] = {"bundle_label_selector": [labels] * len(sizes)} if labels else {}
        self._bundle_of = tuple(index for index, size in enumerate(sizes) for _ in range(size))
        bundles = [times(self._need, size) for size in sizes]
        self._group = placement_group(bundles, strategy=self._placement, **more)

    def _is_there(self, deadline: float, check: Callable[[], None], on_wait: Callable[[str], None]) -> bool:
        """True if the resources are there in time; says early what is lacking, though a cluster may grow."""
        say_s = time.monotonic() + _SAY_AFTER_S
        while not self._group.wait(TICK_S):  # once at least: Ray's own start may have taken all the time
            if left_s(deadline) <= 0:
                return False
            check()
            is_due = time.monotonic() >= say_s
            head, *rest = self._shortage().splitlines() if is_due else [""]
            on_wait(f"still waiting: {head} {'; '.join(line.strip() for line in rest)}" if is_due else "")
            if is_due:
                say_s = float("inf")
                self._loosen()
        return True

    def _loosen(self) -> None:
        """Let groups straddle nodes where other work has taken the room for whole ones, but not for ranks."""
        free = available_on(self._eligible.nodes)
        room = [slots(resources, self._need, self._num_ranks) for resources in free]
        if self._group_size > 1 and sum(room) >= self._num_ranks:
            self.release()
            self._ask(free)

    def _shortage(self) -> str:
        from ray.util.placement_group import placement_group_table

        state = placement_group_table(self._group)["stats"]["scheduling_state"]
        free = summed(available_on(self._eligible.nodes))
        nodes, own = self._eligible, self._is_own
        return describe_shortage(self._need, self._num_ranks, nodes, free, state=state, own=own)


class GivenGroup:
    """A placement group, by id or name, that somebody else made, and keeps, with room for all ranks.

    Raises `CannotStart` if there is none of that name, several, or it has no room.
    """

    def __init__(self, name: str, need: Mapping[str, float], num_ranks: int) -> None:
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
        self._node_of: dict[int, str] = made["bundles_to_node_id"]
        bundles = {index: slots(bundle, need, num_ranks) for index, bundle in made["bundles"].items()}
        by_node = sorted(bundles, key=lambda index: (self._node_of[index], index))
        self._bundle_of = [index for index in by_node for _ in range(bundles[index])][:num_ranks]
        if len(self._bundle_of) < num_ranks:
            wanted = ", ".join(f"{amount:g} {name}" for name, amount in need.items())
            raise CannotStart(
                f"placement group {name!r} has room for {len(self._bundle_of)} of {num_ranks} ranks with "
                f"{wanted} each; its bundles: {list(made['bundles'].values())}. Where they have no CPUs, "
                "set ray.num_cpus_per_rank to 0"
            )
        self._group = PlacementGroup(PlacementGroupID(bytes.fromhex(found[0])))

    def node_ids(self) -> list[str]:
        """Ray's ids of the nodes that get ranks."""
        return sorted({self._node_of[index] for index in self._bundle_of})

    def place(self, index: int) -> Any:
        """The scheduling strategy of the process of that index."""
        return _place(self._group, self._bundle_of[index])

    def release(self) -> None:
        """Leave the group to whoever made it."""


def _place(group: Any, bundle: int) -> Any:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
