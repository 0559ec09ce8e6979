"""npugraph_ex's ``cache_compile`` on an emulated NPU, from an unpacked ``torch_npu`` wheel.

Get one with ``pip download --no-deps torch_npu`` and ``unzip``. It must not
be installed: torch would try to load it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.load_parts.decoder import Decoder
from benchmarks.load_parts.ways import WARM, NotHere, Task


class NpuGraphEx:
    """The successor of TorchAir's reduce-overhead mode, of which it keeps ``cache_compile``."""

    def __init__(self) -> None:
        self._file_before: list[tuple[Path, int]] = []

    def environment(self, task: Task) -> Mapping[str, str]:
        """See `Way.environment`."""
        del task
        return {}

    def emulate(self, task: Task) -> None:
        """Put an NPU there, which is no part of what is measured.

        Raises:
            NotHere: no wheel was named.
        """
        home = Path(task.npugraph_ex)
        if not task.npugraph_ex or not (home / "torch_npu" / "dynamo" / "npugraph_ex").is_dir():
            raise NotHere("not installed: --npugraph-ex names no unpacked torch_npu wheel")
        from tests import npu_emulator

        sys.path.append(str(home))
        npu_emulator.install()

    def imports(self, task: Task) -> None:
        """See `Way.imports`."""
        del task
        import npugraph_ex  # noqa: F401

    def ready(self, decoder: Decoder, task: Task) -> Callable[..., Any]:
        """See `Way.ready`."""
        import npugraph_ex

        self._file_before = _artifacts(task)
        config = npugraph_ex.CompilerConfig()
        function: Callable[..., Any] = npugraph_ex.inference.cache_compile(
            decoder.eager, config=config, dynamic=task.dynamic, cache_dir=str(task.work / "npugraph_ex")
        )
        return function

    def evidence(self, task: Task) -> dict[str, Any]:
        """See `Way.evidence`; its package drops a cache that it cannot load, and writes another."""
        found = _artifacts(task)
        if len(found) != 1 or (found == self._file_before) != (task.stage == WARM):
            msg = f"{task.stage}: artifacts before: {self._file_before}, after: {found}"
            raise RuntimeError(msg)
        return {}

    def bare(self) -> None:
        """See `Way.bare`."""


def _artifacts(task: Task) -> list[tuple[Path, int]]:
    found = (task.work / "npugraph_ex").rglob("compiled_module")
    return [(path, path.stat().st_mtime_ns) for path in found]
