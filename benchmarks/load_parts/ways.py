"""What is compared: ways from a new process to the first output of the decode step.

A way runs in two kinds of process: one that ``fill``s (compiles, and leaves on disk what it can), and later
ones that are warm. Not every way leaves something. torch's ways are given their best case: the machine that
compiled, with the same paths, and the C++ that it built there (but for Mega-Cache, whose point is an empty
cache directory). npugraph_ex runs on an emulated NPU, from a ``torch_npu`` wheel that ``pip download
--no-deps torch_npu`` and ``unzip`` give; it must not be installed: torch would try to load it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.load_parts.decoder import TRACERS, Decoder

FILL = "fill"
WARM = "warm"


class NotHere(Exception):
    """Why a way cannot be measured here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one process has to do.

    Attributes:
        stage: `FILL` or `WARM`.
        work: where the ways of this number of layers keep what they leave.
        scratch: an empty directory of this process's own.
        layers: layers of the model.
        dynamic: trace with symbolic sizes.
        rounds: timed rounds of later calls.
        npugraph_ex: directory of an unpacked ``torch_npu`` wheel, or empty.
    """

    stage: str
    work: Path
    scratch: Path
    layers: int
    dynamic: bool
    rounds: int
    npugraph_ex: str = ""


# Guards of these kinds cannot be serialised by torch 2.13; aot_compile asks its caller to leave them out.
_UNPICKLED = frozenset(
    ("MODULE_MATCH", "ID_MATCH", "FUNCTION_MATCH", "CLOSURE_MATCH", "BUILTIN_MATCH", "CLASS_MATCH")
)


class Way:
    """One way to a compiled decode step; by default the step as it stands."""

    def environment(self, task: Task) -> Mapping[str, str]:
        """Variables that its process needs from the start."""
        del task
        return {}

    def emulate(self, task: Task) -> None:
        """Before the clock starts: put there what is no part of what is measured; `NotHere` if it cannot."""

    def imports(self, task: Task) -> None:
        """Import what a script imports before its model stands; counted."""

    def ready(self, decoder: Decoder, task: Task) -> Callable[..., Any]:
        """The step, compiled or loaded, or to be so at its first call; counted; `NotHere` if it cannot be."""
        del task
        return decoder.eager

    def evidence(self, task: Task) -> dict[str, Any]:
        """After the first output: what shows that this way did what its name says.

        Raises:
            RuntimeError: it did not, so its figures would say nothing.
        """
        del task
        return {}

    def bare(self) -> Callable[[], Any] | None:
        """The kernel alone, on inputs that are ready; None where that is not looked at."""
        return None

    def without_kernel(self, decoder: Decoder) -> Callable[..., Any] | None:
        """The step, whose kernel gives what it gave last from now on, and computes nothing.

        None where that is not looked at. The last that is asked of a way.
        """
        del decoder
        return None

    @contextmanager
    def guards_timed(self) -> Iterator[list[float] | None]:
        """Seconds of each look, in a call, at whether what is loaded still fits; None where not known."""
        yield None


class Inductor(Way):
    """``torch.compile``: cold in an empty cache directory, then with FX-graph and AOTAutograd caches."""

    def environment(self, task: Task) -> Mapping[str, str]:
        """See `Way.environment`."""
        return {"TORCHINDUCTOR_CACHE_DIR": str(task.work / "inductor")}

    def ready(self, decoder: Decoder, task: Task) -> Callable[..., Any]:
        """See `Way.ready`."""
        return _compiled(decoder, task)

    def evidence(self, task: Task) -> dict[str, Any]:
        """See `Way.evidence`; a filling process saves its artifacts for Mega-Cache."""
        import torch

        counts = _counts()
        hit = _hit(counts)
        if hit == (task.stage == FILL):
            msg = f"torch.compile's caches: {counts} in a process that is to {task.stage}"
            raise RuntimeError(msg)
        if task.stage == FILL:
            saved = torch.compiler.save_cache_artifacts()
            if saved is None:
                msg = "torch.compiler.save_cache_artifacts() saved nothing"
                raise RuntimeError(msg)
            (task.work / "mega_cache").write_bytes(saved[0])
        return {"counters": counts}

    def without_kernel(self, decoder: Decoder) -> Callable[..., Any]:
        """See `Way.without_kernel`: Dynamo's guards and frame around nothing."""
        import torch

        def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
            outputs = graph(*inputs)
            return lambda *_: outputs

        torch.compiler.reset()
        return torch.compile(decoder.eager, fullgraph=True, dynamic=False, backend=backend)


class MegaCache(Inductor):
    """``torch.compiler.load_cache_artifacts`` into an empty cache directory, then ``torch.compile``."""

    def environment(self, task: Task) -> Mapping[str, str]:
        """See `Way.environment`."""
        return {"TORCHINDUCTOR_CACHE_DIR": str(task.scratch / "inductor")}

    def ready(self, decoder: Decoder, task: Task) -> Callable[..., Any]:
        """See `Way.ready`."""
        import torch

        torch.compiler.load_cache_artifacts((task.work / "mega_cache").read_bytes())
        return _compiled(decoder, task)


class AotCompile(Way):
    """``torch.compile(...).aot_compile(...)``, saved; in a new process ``load_compiled_function``."""

    def environment(self, task: Task) -> Mapping[str, str]:
        """See `Way.environment`."""
        return {"TORCHINDUCTOR_CACHE_DIR": str(task.work / "aot_inductor")}

    def ready(self, decoder: Decoder, task: Task) -> Callable[..., Any]:
        """See `Way.ready`."""
        import torch

        file = task.work / "aot_compile"
        if task.stage == FILL:
            compiled = _compiled(decoder, task, options={"guard_filter_fn": _picklable})
            function = compiled.aot_compile((decoder.arguments, {}))  # type: ignore[attr-defined]  # not in its types
            function.save_compiled_function(str(file))
        else:
            with file.open("rb") as stream:
                function = torch.compiler.load_compiled_function(stream)
        model = decoder.model
        return lambda *arguments: function(model, *arguments)


def _compiled(decoder: Decoder, task: Task, **options: Any) -> Callable[..., Any]:
    import torch

    if task.dynamic:
        import torch._dynamo

        torch._dynamo.config.specialize_float = True  # noqa: SLF001 - else aot_compile fails on float attributes
    return torch.compile(decoder.eager, fullgraph=True, dynamic=task.dynamic, **options)


def _picklable(guards: Any) -> list[bool]:
    return [guard.guard_type not in _UNPICKLED for guard in guards]


def _counts() -> dict[str, dict[str, int]]:
    from torch._dynamo.utils import counters

    return {name: dict(counters[name]) for name in ("inductor", "aot_autograd")}


def _hit(counts: dict[str, dict[str, int]]) -> bool:
    """Whether both caches were hit; AOTAutograd's look-up of a first, abandoned trace may miss."""
    return bool(
        counts["inductor"].get("fxgraph_cache_hit") and counts["aot_autograd"].get("autograd_cache_hit")
    )


class NpuGraphEx(Way):
    """The successor of TorchAir's reduce-overhead mode, of which it keeps ``cache_compile``."""

    def __init__(self) -> None:
        self._file_before: list[tuple[Path, int]] = []

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
        import npugraph_ex  # noqa: F401 - the import is what counts

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


def _timed(look: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def timed(*arguments: Any) -> Any:
        started = perf_counter()
        found = look(*arguments)
        spent.append(perf_counter() - started)
        return found

    return timed


def _artifacts(task: Task) -> list[tuple[Path, int]]:
    found = (task.work / "npugraph_ex").rglob("compiled_module")
    return [(path, path.stat().st_mtime_ns) for path in found]


class Warmrank(Way):
    """``cache_compile`` in one mode; ``ge_cache`` keeps what max-autotune compiled.

    The kernel under it is found without a hook in warmrank: ``CapturedGraph.replay`` of the graph that the
    second call captured, or ``run`` of the compiled library on the very inputs of the last call.
    """

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._function: Any = None
        self._kernel: Callable[[], Any] | None = None  # of the last capture or call

    def environment(self, task: Task) -> Mapping[str, str]:
        """See `Way.environment`."""
        # Compiling at a path of its own, not to profit from what another way built.
        return {"TORCHINDUCTOR_CACHE_DIR": str(task.scratch / "inductor")}

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
        watch = self._watch_libraries if self._mode == "max-autotune" else self._watch_captures
        watch()
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
        return self._kernel

    def without_kernel(self, decoder: Decoder) -> Callable[..., Any]:
        """See `Way.without_kernel`."""
        from warmrank.worker.values import replace

        del decoder
        runner = self._function.variants[0].runner
        if self._mode == "max-autotune" and self._kernel is not None:
            outputs = self._kernel()
            runner.graph._run = lambda _: outputs  # noqa: SLF001 - nothing runs in place of the kernel
        else:
            entry = runner._captures._last  # noqa: SLF001 - nothing runs in place of the kernel
            entry.captured = replace(entry.captured, replay=lambda: None)
        function: Callable[..., Any] = self._function
        return function

    @contextmanager
    def guards_timed(self) -> Iterator[list[float]]:
        """See `Way.guards_timed`: the process's state, arguments and other objects, the module's tensors."""
        from warmrank.worker.runtime import function
        from warmrank.worker.runtime.call_guards import CallGuards
        from warmrank.worker.runtime.runner import GraphRunner

        spent: list[float] = []
        before: list[tuple[Any, str, Any]] = []
        for owner, name in ((function, "ambient"), (CallGuards, "accept"), (GraphRunner, "_check")):
            before.append((owner, name, getattr(owner, name)))
            setattr(owner, name, _timed(before[-1][2], spent))
        try:
            yield spent
        finally:
            for owner, name, look in before:
                setattr(owner, name, look)

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


WAYS: dict[str, Callable[[], Way]] = {
    "eager": Way,
    "inductor": Inductor,
    "mega_cache": MegaCache,
    "aot_compile": AotCompile,
    "npugraph_ex": NpuGraphEx,
    "warmrank_reduce_overhead": lambda: Warmrank("reduce-overhead"),
    "warmrank_max_autotune": lambda: Warmrank("max-autotune"),
}
