"""Options of Ray for a task or an actor that belongs to one node, and to no other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def options_on(node_id: str, runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """What runs on that node or nowhere, and asks for no CPU: a launch may hold all that the node has.

    Args:
        node_id: Ray's id of the node.
        runtime_env: what Ray sets up before it runs.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {
        "num_cpus": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False),
        "runtime_env": dict(runtime_env),
    }
