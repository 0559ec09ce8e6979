"""Whether a launch that failed is tried again: pure, from the error and from what was spent before.

What ranks report themselves (a wrong workload, a failed check, a forbidden compile) would come again, and
ends the launch. What befell them (a death, a lost node, a hang, ranks that did not come up) is tried again as
often as the budget of its kind allows. Once a rank or node is lost, the errors of the others are collateral.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

from warmrank.orchestrator.causes import CLUSTER_LOST, DIED, NODE_LOST, STOPPED, TIMEOUT
from warmrank.orchestrator.config.models import Retries
from warmrank.orchestrator.errors import CannotStart, LaunchFailed, ranks_text

Budget = Literal["rank", "node", "hang", "start"]

_BUDGETS: tuple[tuple[frozenset[str], Budget], ...] = (
    (frozenset({NODE_LOST}), "node"),
    (frozenset({DIED}), "rank"),
    (frozenset({"PortInUse"}), "start"),  # the others wait for rank 0 in vain
    # torch's names for a peer that went away or is silent: no death was seen, so one hangs or is cut off.
    (frozenset({STOPPED, TIMEOUT, "DistBackendError", "DistNetworkError", "DistStoreError"}), "hang"),
)


def budget_of(error: Exception) -> Budget | None:
    """What the error is counted against; None for one that ends the launch."""
    if isinstance(error, CannotStart):
        if error.may_pass:
            return "node" if error.has_lost_node else "start"
        return None
    if not isinstance(error, LaunchFailed):
        return None
    kinds = {failure.kind for failure in error.failures}
    if CLUSTER_LOST in kinds:
        return None  # there is nothing left to start ranks on
    return next((budget for found, budget in _BUDGETS if kinds & found), None)


def is_lost(error: Exception) -> bool:
    """Whether the cluster is to blame, not the workload: another launch may end well."""
    if isinstance(error, LaunchFailed) and any(failure.kind == CLUSTER_LOST for failure in error.failures):
        return True
    return (isinstance(error, CannotStart) and error.blames_cluster) or budget_of(error) is not None


class Spent:
    """What was spent of the budgets."""

    def __init__(self, retries: Retries) -> None:
        self._retries = retries
        self._spent: Counter[Budget] = Counter()

    @property
    def has_lost_nodes(self) -> bool:
        """Whether an attempt ended because a node was lost."""
        return self._spent["node"] > 0

    def another(self, error: Exception) -> str:
        """Spend one attempt more; why there is one, or empty for none."""
        budget = budget_of(error)
        if budget is None:
            return ""
        allowed: int = getattr(self._retries, budget)
        if self._spent[budget] >= allowed:
            return ""
        self._spent[budget] += 1
        return f"{_in_short(error)} (retries.{budget}: {self._spent[budget]} of {allowed})"


def _in_short(error: Exception) -> str:
    """The first cause without its details, which stand in the error itself."""
    if isinstance(error, LaunchFailed):
        first = error.causes[0]
        return f"stage {error.stage}: {ranks_text(first.ranks)}: {first.kind}"
    return str(error).partition("\n")[0]
