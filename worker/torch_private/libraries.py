"""Libraries of compiled kernels, opened by a warm load: imports no Inductor.

Relied on: ``AOTIModelContainerRunnerCpu(path, 1)`` opens a library and ``<path without .so>.json`` beside it;
both stay usable when they are removed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from warmrank.worker.errors import ArtifactCorrupt, StateChanged

Run = Callable[[list[torch.Tensor]], list[torch.Tensor]]
LIBRARY, NODES = "graph.so", "graph.json"
# Where a library lay when it was opened first, by its digest. The linker knows libraries by their paths, and
# never lets go of one in C++: opened from elsewhere, each copy would stay in memory until the process ends.
_places: dict[bytes, Path] = {}
_WRONG_RESULT = re.compile(r"(?P<found>expected (size|dtype) .*)\n.*Error in op: (?P<operator>\S+)")


def open_library(library: Mapping[str, bytes], device: torch.device) -> Run:
    """Open a library, given as its files by name, on a device; return its runner.

    The bytes pass through files of a private directory that is gone when this returns: nobody else can
    change them on the way, and nothing is left behind.

    Raises:
        ArtifactCorrupt: the system's linker, or torch, cannot open it here.
    """
    with _private_directory(library[LIBRARY]) as directory:
        for name, data in library.items():
            (directory / name).write_bytes(data)
        path = str(directory / LIBRARY)
        try:
            runner: Any = (
                torch._C._aoti.AOTIModelContainerRunnerCpu(path, 1)
                if device.type == "cpu"
                else torch._C._aoti.AOTIModelContainerRunnerCuda(path, 1, str(device))
            )
        except RuntimeError as error:
            reason = str(error).strip()
            msg = f"the compiled kernels cannot be opened on this machine: {reason}"
            raise ArtifactCorrupt(msg, where="compiled kernels", why=reason) from error
    run: Run = runner.run
    return run


@contextmanager
def _private_directory(library: bytes) -> Iterator[Path]:
    """A directory that lasts for the block, and has the same path whenever it is for the same library."""
    import shutil
    import tempfile

    digest = hashlib.sha256(library).digest()
    try:
        place = _places[digest]
        place.mkdir(0o700)
    except (KeyError, OSError):  # the first time; or another thread, or a forked process, has it now
        place = _places[digest] = Path(tempfile.mkdtemp(prefix="warmrank-aoti-"))
    try:
        yield place
    finally:
        shutil.rmtree(place)


def changed_result(error: RuntimeError) -> StateChanged | None:
    """The error for a result that is not as in the trace; None for another failure."""
    found = _WRONG_RESULT.match(str(error))
    if found is None:
        return None
    where = f"the result of {found['operator']} in compiled kernels"
    return StateChanged(where, f"another ({found['found']})", while_running=True)
