"""The resources of all ranks, reserved on Ray as one placement group: all of them, or none.

Ray says of a group only that it is not there yet; what is lacking is said here, early on and in the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from warmrank.orchestrator.errors import CannotStart, LacksDevice
from warmrank.orchestrator.gang.bundles import bundle_sizes, index_in, slots, times
from warmrank.orchestrator.gang.eligible import Eligible
from warmrank.orchestrator.gang.ray_answers import TICK_S, left_s
from warmrank.orchestrator.gang.ray_trouble import describe_shortage, in_a_line
from warmrank.orchestrator.gang.supply import available_on, lacks_devices, supply_of

_SAY_AFTER_S = 5.0


class Reservation:
    """Bundles of resources for all ranks, asked for at once, and there when `hold` has returned.

    Args:
        need: what each rank needs, by Ray's name of the resource.
        num_ranks: how many there are.
        group_size: how many of them, next to each other, are to be on one node.
        placement: Ray's strategy of placing bundles on nodes.
        is_own: whether the Ray is this process's own, which never grows.
        eligible: the nodes that may have ranks.
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

        Args:
            deadline: as `time.monotonic` counts.
            check: raises once there is nothing to wait for any more.
            on_wait: see `orchestrator.gang.launcher.Waiting`.

        Raises:
            CannotStart: resources are missing; names them and the remedy.
            LacksDevice: of these, accelerators that an own Ray never gets.
        """
        total = self._eligible.total()
        # An own Ray never grows, so there what is missing now is missing for ever.
        lacking = any(self._num_ranks * need > total.get(name, 0) for name, need in self._need.items())
        if not (self._is_own and lacking) and self._is_there(deadline, check, on_wait):
            return
        text = self._shortage()
        lacks_device = self._is_own and lacks_devices(self._need, self._num_ranks, total)
        self.release()
        if lacks_device:
            raise LacksDevice(text)
        raise CannotStart(text, blames_cluster=bool(self._eligible.silent))

    def node_ids(self) -> list[str]:
        """Ray's ids of the nodes that the bundles are on."""
        from ray.util.placement_group import placement_group_table

        return sorted(set(placement_group_table(self._group)["bundles_to_node_id"].values()))

    def place(self, index: int) -> Any:
        """The scheduling strategy of the process of that index; those of a group are next to each other."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(
            self._group, placement_group_bundle_index=self._bundle_of[index]
        )

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
        self._bundle_of = index_in(sizes)
        self._group = placement_group(
            [times(self._need, size) for size in sizes], strategy=self._placement, **more
        )

    def _is_there(self, deadline: float, check: Callable[[], None], on_wait: Callable[[str], None]) -> bool:
        """Whether the resources are there in time; says early what is lacking, though a cluster may grow."""
        say_s = time.monotonic() + _SAY_AFTER_S
        while left_s(deadline) > 0:
            if self._group.wait(min(left_s(deadline), TICK_S)):
                return True
            check()
            is_due = time.monotonic() >= say_s
            on_wait(f"still waiting: {in_a_line(self._shortage())}" if is_due else "")
            if is_due:
                say_s = float("inf")
                self._loosen()
        return False

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
        supply = supply_of(self._eligible)
        return describe_shortage(self._need, self._num_ranks, supply, state=state, own=self._is_own)


class GivenGroup:
    """A placement group that somebody else made, and keeps, with room for all ranks.

    Args:
        name: its id or name; the group may be in any namespace.
        need: what each rank needs, by Ray's name of the resource.
        num_ranks: how many there are.

    Raises:
        CannotStart: there is none of that name, several, or it has no room.
    """

    def __init__(self, name: str, need: Mapping[str, float], num_ranks: int) -> None:
        from ray import PlacementGroupID
        from ray.util.placement_group import PlacementGroup, placement_group_table

        known = {group_id: group for group_id, group in placement_group_table().items() if _is_made(group)}
        found = [group_id for group_id, group in known.items() if name in {group_id, group["name"]}]
        if len(found) != 1:
            names = ", ".join(f"{group_id} {group['name']}".strip() for group_id, group in known.items())
            what = "several placement groups are" if found else "no placement group that is there is"
            raise CannotStart(f"{what} called {name!r} (ray.placement_group); there are: {names or 'none'}")
        table = known[found[0]]
        self._node_of: dict[int, str] = table["bundles_to_node_id"]
        bundles = {index: slots(bundle, need, num_ranks) for index, bundle in table["bundles"].items()}
        by_node = sorted(bundles, key=lambda index: (self._node_of[index], index))
        self._bundle_of = [index for index in by_node for _ in range(bundles[index])][:num_ranks]
        if len(self._bundle_of) < num_ranks:
            wanted = ", ".join(f"{amount:g} {name}" for name, amount in need.items())
            raise CannotStart(
                f"placement group {name!r} has room for {len(self._bundle_of)} of {num_ranks} ranks with "
                f"{wanted} each; its bundles: {list(table['bundles'].values())}. Where they have no CPUs, "
                "set ray.num_cpus_per_rank to 0"
            )
        self._group = PlacementGroup(PlacementGroupID(bytes.fromhex(found[0])))

    def node_ids(self) -> list[str]:
        """Ray's ids of the nodes that get ranks."""
        return sorted({self._node_of[index] for index in self._bundle_of})

    def place(self, index: int) -> Any:
        """The scheduling strategy of the process of that index."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(
            self._group, placement_group_bundle_index=self._bundle_of[index]
        )

    def release(self) -> None:
        """Leave the group to whoever made it."""


def _is_made(group: Mapping[str, Any]) -> bool:
    return bool(group["state"] == "CREATED")
