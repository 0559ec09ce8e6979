"""``debug.data_dump``: the result of every operator of a graph, on every call, as files for numpy.

The engine writes a call of `Dump` behind every operator into the graph that it compiles, because the option
is part of the key; where the files go is no part of it, and is told when the graph is loaded (`into`)::

    <path>/worldsize<N>_global_rank<R>/<function>/<step>/<line>-<name>-<operator>.OUTPUT.<i>.npy
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker.torch_private.warm import rank_and_world

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from warmrank.worker.configs.compiler_config import CompilerConfig

MARK = "warmrank_data_dump"

_directory: ContextVar[Path] = ContextVar("data_dump_directory", default=Path())
_NOT_IN_FILE_NAMES = r"[^A-Za-z0-9_.-]"


def mark(graph: GraphModule, config: CompilerConfig) -> None:
    """Mark the operators whose data are asked for: all, or those that the user's filter lets through."""
    wanted = config.debug.data_dump
    if wanted.type is None:
        return
    for node in graph.graph.nodes:
        chosen = wanted.filter is None or wanted.filter(node) is not None
        node.meta[MARK] = chosen and node.op == "call_function"


@contextlib.contextmanager
def into(config: CompilerConfig, function: str) -> Iterator[None]:
    """Graphs that are loaded within write their data where a configuration says."""
    path = Path(config.debug.data_dump.path or ".").resolve()
    rank, world_size = rank_and_world()
    of_rank = path / f"worldsize{world_size}_global_rank{rank}"
    token = _directory.set(of_rank / re.sub(_NOT_IN_FILE_NAMES, "_", function))
    try:
        yield
    finally:
        _directory.reset(token)


class Dump:
    """Writes the data of one loaded graph; each call of the graph is a step."""

    def __init__(self) -> None:
        self._directory = _directory.get()
        self._step = -1
        self._line = 0

    def step(self) -> None:
        """A call of the graph begins."""
        self._step += 1
        self._line = 0

    def __call__(self, name: str, operator: str, result: Any) -> None:
        """Write what an operator returned."""
        import numpy as np

        directory = self._directory / str(self._step)
        directory.mkdir(parents=True, exist_ok=True)
        operator = re.sub(_NOT_IN_FILE_NAMES, "_", operator)
        for index, value in enumerate(result if isinstance(result, tuple | list) else (result,)):
            np.save(directory / f"{self._line:05}-{name}-{operator}.OUTPUT.{index}.npy", _as_numpy(value))
        self._line += 1


def _as_numpy(value: Any) -> Any:
    import numpy as np

    if not isinstance(value, torch.Tensor):
        return np.array(value)
    value = value.detach().cpu()
    # numpy has no bfloat16 and no 8-bit floats; float32 holds all their values.
    if value.dtype.is_floating_point and value.dtype not in (torch.float16, torch.float32, torch.float64):
        value = value.to(torch.float32)
    return value.resolve_conj().resolve_neg().numpy()
