"""Eager, and torch's own ways: Inductor cold and with warm caches, Mega-Cache, ``aot_compile``.

Each is given its best case: the machine that compiled, with the same paths, and the C++ that it built there
(but for Mega-Cache, whose point is an empty cache directory).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.load_parts.decoder import Decoder
from benchmarks.load_parts.ways import FILL, Task

# Guards of these kinds cannot be serialised by torch 2.13; aot_compile asks its caller to leave them out.
_UNPICKLED = frozenset(
    ("MODULE_MATCH", "ID_MATCH", "FUNCTION_MATCH", "CLOSURE_MATCH", "BUILTIN_MATCH", "CLASS_MATCH")
)


class Eager:
    """The step as it stands."""

    def environment(self, task: Task) -> Mapping[str, str]:
        """See `Way.environment`."""
        del task
        return {}

    def imports(self, task: Task) -> None:
        """See `Way.imports`."""

    def ready(self, decoder: Decoder, task: Task) -> Callable[..., Any]:
        """See `Way.ready`."""
        del task
        return decoder.eager

    def evidence(self, task: Task) -> dict[str, Any]:
        """See `Way.evidence`."""
        del task
        return {}

    def bare(self) -> None:
        """See `Way.bare`."""


class Inductor(Eager):
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


class AotCompile(Eager):
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
            function = compiled.aot_compile((decoder.arguments, {}))  # type: ignore[attr-defined]
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
