"""The kernel under a cached function, found without a hook in warmrank: what a call would cost without it.

* mode reduce-overhead: `CapturedGraph.replay` of the graph that the second call captured;
* mode max-autotune: ``run`` of the compiled library, on the very inputs of the last call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Kernels:
    """Remembers what was captured, or run."""

    def __init__(self) -> None:
        self._kernel: Callable[[], Any] | None = None

    def watch(self, mode: str) -> None:
        """See what is captured, or opened, from now on."""
        if mode == "max-autotune":
            self._watch_libraries()
        else:
            self._watch_captures()

    def last(self) -> Callable[[], Any] | None:
        """The kernel of the last capture or call; None if there was none."""
        return self._kernel

    def _watch_captures(self) -> None:
        from warmrank.worker.devices import backend_for

        backend = type(backend_for("cpu"))
        capture = backend.capture

        def remembered(*arguments: Any, **options: Any) -> Any:
            captured = capture(*arguments, **options)
            self._kernel = captured.replay
            return captured

        backend.capture = remembered  # type: ignore[method-assign]

    def _watch_libraries(self) -> None:
        from warmrank.worker.torch_private import libraries

        open_library = libraries.open_library

        def remembered(library: Any, device: Any) -> Any:
            run = open_library(library, device)

            def run_and_remember(inputs: list[Any]) -> Any:
                self._inputs = inputs  # a tenth of a microsecond, which counts against warmrank
                return run(inputs)

            self._kernel = lambda: run(self._inputs)
            return run_and_remember

        libraries.open_library = remembered
