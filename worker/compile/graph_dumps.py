"""Files about a graph, written while it is compiled: ``debug.graph_dump`` and ``debug.fx_summary``.

A load writes none of them: the artifact tells as much (`worker.inference.readable_cache`). Names are
TorchAir's: ``<name>_rank_<rank>_pid_<pid>_ts_<time>.<type>``.
"""

from __future__ import annotations

import csv
import logging
import os
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

    from warmrank.worker.configs.compiler_config import CompilerConfig

_log = logging.getLogger("torchair")
_SUMMARY_COLUMNS = ("operator", "kind", "calls", "inputs", "outputs")


def dump_graph(name: str, graph: GraphModule, config: CompilerConfig) -> None:
    """Write the graph in the form that ``debug.graph_dump.type`` asks for, if any."""
    asked = config.debug.graph_dump
    if asked.type in ("py", "txt"):
        # FX prints the class of a traced function under a name that Python does not accept.
        text = graph.print_readable(print_output=False).replace("class <lambda>(", "class graph(")
        text = text if asked.type == "py" else f"{graph.graph}\n"
        path = dump_path(asked.path, name, asked.type)
        path.write_text(text, encoding="utf-8")
        _log.info("graph written to %s", path)


def summarise(graph: GraphModule, config: CompilerConfig) -> None:
    """Write the table of operators that ``debug.fx_summary.type`` asks for, if any."""
    if config.debug.fx_summary.type is None:
        return
    path = dump_path(None, "summary", "csv")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(_SUMMARY_COLUMNS)
        writer.writerows(summary_rows(graph.graph.nodes))
    _log.info("summary of the graph written to %s", path)


def summary_rows(nodes: Iterable[Node]) -> list[tuple[str, str, int, str, str]]:
    """One row per operator, in the order of their first calls; see `_SUMMARY_COLUMNS`."""
    inputs: dict[str, Counter[str]] = {}
    outputs: dict[str, Counter[str]] = {}
    kinds: dict[str, str] = {}
    for node in nodes:
        if node.op != "call_function":
            continue
        operator = str(node.target)
        kinds.setdefault(operator, getattr(node.target, "namespace", "builtin"))
        arguments = ", ".join(
            [*map(_described, node.args), *(f"{key}={_described(item)}" for key, item in node.kwargs.items())]
        )
        inputs.setdefault(operator, Counter())[arguments] += 1
        outputs.setdefault(operator, Counter())[_described(node)] += 1
    return [
        (operator, kind, inputs[operator].total(), _counted(inputs[operator]), _counted(outputs[operator]))
        for operator, kind in kinds.items()
    ]


def dump_path(directory: str | None, name: str, kind: str) -> Path:
    """Where a dump of this process goes; its directory is made."""
    target = Path(directory or ".").resolve()
    target.mkdir(parents=True, exist_ok=True)
    moment = f"{datetime.now(tz=UTC):%Y%m%d%H%M%S%f}"
    return target / f"{name}_rank_{rank()}_pid_{os.getpid()}_ts_{moment}.{kind}"


def rank() -> int:
    """Rank of this process in ``torch.distributed``; 0 without it."""
    import torch.distributed as dist

    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def _described(value: Any) -> str:
    """An argument or result as in ``f32[s0, 4]``."""
    value = value.meta.get("val") if hasattr(value, "meta") else value
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_described, value))}]"
    return str(value)


def _counted(found: Counter[str]) -> str:
    return "\n".join(f"{count} x {text}" for text, count in found.most_common())
