"""The streams that a rank's captures will take, said before they are taken."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from warmrank.worker.keys.environment import environment

from warmrank.worker.devices.failures import Captures, problem
from warmrank.worker.settings import settings

if TYPE_CHECKING:
    from warmrank.worker.rank.captures import Unit

    from warmrank.worker.results import CaptureProposal
    from warmrank.worker.runtime.artifact import Artifact


def stream_problem(units: Sequence[Unit], proposals: Sequence[CaptureProposal]) -> str:
    """What to say of the streams of an NPU, before the first capture; empty where they suffice."""
    return problem(
        graphs_of(units, proposals),
        soc=environment()["accelerator"],
        expansion=settings().ascend.get("HCCL_OP_EXPANSION_MODE", ""),
    )


def graphs_of(units: Sequence[Unit], proposals: Sequence[CaptureProposal]) -> tuple[Captures, ...]:
    """The graphs that these proposals make, by artifact: calls of equal shapes share one."""
    by_name = {unit.name: unit for unit in units}
    owners: dict[str, str] = {}
    graphs: dict[str, set[str]] = {}
    artifacts: dict[str, Artifact] = {}
    for item in proposals:
        unit = by_name[item.function]
        if unit.variant is None:
            continue
        stored = unit.variant.stored
        owners.setdefault(stored.sha256, unit.name)
        graphs.setdefault(stored.sha256, set()).update((item.signature,) if item.planned else unit.signatures)
        artifacts[stored.sha256] = stored.artifact
    return tuple(
        Captures(
            name=owners[digest],
            num_graphs=len(own),
            roles=frozenset(artifacts[digest].roles),
            num_side_streams=_num_side_streams(artifacts[digest].sections),
        )
        for digest, own in graphs.items()
    )


def _num_side_streams(sections: Mapping[str, bytes]) -> int:
    """Streams that the model switches to (``npu_stream_switch``), which TorchAir lists in its code.

    Each joins the capture of each graph, where the runtime makes a stream for it.
    """
    code = sections.get("torchair.py", b"").decode()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.keyword) and node.arg == "user_stream_label":
            return len(node.value.elts) if isinstance(node.value, ast.Set | ast.List | ast.Tuple) else 0
    return 0
