"""warmrank's ``cache_compile``, one way for each mode."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.load_parts.bare import Kernels
from benchmarks.load_parts.decoder import TRACERS, Decoder
from benchmarks.load_parts.ways import WARM, NotHere, Task


class Warmrank:
    """A cached function in one mode; ``ge_cache`` keeps what max-autotune compiled."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._function: Any = None
        self._kernels = Kernels()

    def environment(self, task: Task) -> Mapping[str, str]:
        """See `Way.environment`."""
        # Compiling at a path of its own, not to profit from what another way built.
        return {"TORCHINDUCTOR_CACHE_DIR": str(task.scratch / "inductor")}

    def imports(self, task: Task) -> None:
        """See `Way.imports`; counted, although building the model would import the same."""
        del task

    def ready(self, decoder: Decoder, task: Task) -> Callable[..., Any]:
        """See `Way.ready`."""
        from warmrank import CompilerConfig
        from warmrank.inference import cache_compile
        from warmrank.worker.errors import NotYet

        config = CompilerConfig()
        config.mode = self._mode
        try:
            self._function = cache_compile(
                decoder.eager,
                config=config,
                dynamic=task.dynamic,
                cache_dir=task.work / f"warmrank-{self._mode}",
                ge_cache=self._mode == "max-autotune",
            )
        except NotYet as error:
            raise NotHere(str(error)) from error
        self._kernels.watch(self._mode)
        function: Callable[..., Any] = self._function
        return function

    def evidence(self, task: Task) -> dict[str, Any]:
        """See `Way.evidence`."""
        result = self._function.last_result
        imported = [name for name in TRACERS if name in sys.modules]
        expected = "loaded" if task.stage == WARM else "compiled"
        if result.outcome != expected or (task.stage == WARM and imported):
            msg = f"{result.outcome}, expected {expected}; tracers imported: {imported}; {result.reason}"
            raise RuntimeError(msg)
        return {
            "outcome": result.outcome,
            "imported": imported,
            "load_s": result.seconds.load_s,
            "size_bytes": result.size_bytes,
        }

    def bare(self) -> Callable[[], Any] | None:
        """See `Way.bare`."""
        return self._kernels.last()
