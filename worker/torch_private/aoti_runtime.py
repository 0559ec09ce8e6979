"""Compiled libraries in this process: what a warm load needs of torch, without Inductor.

Facts relied upon (tested in ``tests/unit/test_aoti_engine.py``):

* ``torch._C._aoti.AOTIModelContainerRunnerCpu(path, 1)`` opens a library that Inductor compiled ahead of
  time; ``run`` takes a list of tensors and returns one.
* If ``<path without .so>.json`` is there, it is read: operators that the library calls by name.
* A library that was opened stays usable when its file is removed, because it is mapped.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from warmrank.worker.errors import ArtifactCorrupt

FACTS = {
    "torch._C._aoti:AOTIModelContainerRunnerCpu": "run",
}

Run = Callable[[list[torch.Tensor]], list[torch.Tensor]]


def open_library(library: Mapping[str, bytes], device: torch.device) -> Run:
    """What runs a library, which is a file ``graph.so`` and what lies beside it, on a device.

    The bytes pass through files of a private directory that is gone when this returns: nobody else can
    change them on the way, and nothing is left behind.

    Raises:
        ArtifactCorrupt: the system's linker, or torch, cannot open it here.
    """
    with tempfile.TemporaryDirectory(prefix="warmrank-aoti-") as directory:
        for name, data in library.items():
            (Path(directory) / name).write_bytes(data)
        try:
            run: Run = _runner(str(Path(directory) / "graph.so"), device).run
        except RuntimeError as error:
            reason = str(error).strip()
            msg = f"the compiled kernels cannot be opened on this machine: {reason}"
            raise ArtifactCorrupt(msg, where="compiled kernels", why=reason) from error
    return run


def _runner(path: str, device: torch.device) -> torch._C._aoti.AOTIModelContainerRunnerCpu:
    if device.type == "cpu":
        return torch._C._aoti.AOTIModelContainerRunnerCpu(path, 1)
    return torch._C._aoti.AOTIModelContainerRunnerCuda(path, 1, str(device))  # type: ignore[return-value]
