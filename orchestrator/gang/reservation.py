"""The resources of all ranks, reserved on Ray as one placement group: all of them, or none.

Ray says of a group only that it is not there yet; what is lacking is said here, early on and in the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.errors import CannotStart, LacksDevice
from orchestrator.gang.ray_answers import TICK_S, left_s
from orchestrator.gang.ray_trouble import describe_shortage, in_a_line
from orchestrator.gang.supply import lacks_devices, supply_of_cluster

_SAY_AFTER_S = 5.0


class Reservation:
    """A bundle of resources for each rank, asked for at once, and there when `hold` has returned.

    Args:
        bundle: what each rank needs, by Ray's name of the resource.
        num_ranks: how many bundles.
        placement: Ray's strategy of placing them on nodes.
        is_own: whether the Ray is this process's own, which never grows.
    """

    def __init__(self, bundle: Mapping[str, float], num_ranks: int, *, placement: str, is_own: bool) -> None:
        from ray.util.placement_group import placement_group

        self._bundle = dict(bundle)
        self._num_ranks = num_ranks
        self._is_own = is_own
        self._group: Any = placement_group([self._bundle] * num_ranks, strategy=placement)

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
        import ray

        total = ray.cluster_resources()  # type: ignore[no-untyped-call]
        # An own Ray never grows, so there what is missing now is missing for ever.
        lacking = any(self._num_ranks * need > total.get(name, 0) for name, need in self._bundle.items())
        if not (self._is_own and lacking) and self._is_there(deadline, check, on_wait):
            return
        text = self._shortage()
        lacks_device = self._is_own and lacks_devices(self._bundle, self._num_ranks, total)
        self.release()
        raise (LacksDevice if lacks_device else CannotStart)(text)

    def node_ids(self) -> list[str]:
        """Ray's ids of the nodes that the bundles are on."""
        from ray.util.placement_group import placement_group_table

        return sorted(set(placement_group_table(self._group)["bundles_to_node_id"].values()))

    def place(self, index: int) -> Any:
        """The scheduling strategy of a process that is to have the bundle of that index."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)

    def release(self) -> None:
        """Free the resources, whether or not they are there yet; more than once does no harm."""
        import ray

        group, self._group = self._group, None
        if group is not None:
            ray.util.remove_placement_group(group)

    def _is_there(self, deadline: float, check: Callable[[], None], on_wait: Callable[[str], None]) -> bool:
        """Whether the resources are there in time; says early what is lacking, though a cluster may grow."""
        say_s = time.monotonic() + _SAY_AFTER_S
        while left_s(deadline) > 0:
            if self._group.wait(min(left_s(deadline), TICK_S)):
                return True
            check()
            is_due = time.monotonic() >= say_s
            on_wait(f"still waiting: {in_a_line(self._shortage())}" if is_due else "")
            say_s = float("inf") if is_due else say_s
        return False

    def _shortage(self) -> str:
        from ray.util.placement_group import placement_group_table

        state = placement_group_table(self._group)["stats"]["scheduling_state"]
        return describe_shortage(
            self._bundle, self._num_ranks, supply_of_cluster(), state=state, own=self._is_own
        )
