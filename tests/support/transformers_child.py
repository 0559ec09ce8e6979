"""Serves models of transformers: ``transformers_child CACHE_DIR MODEL[@OPTIONS]...``; prints JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from tests.support import transformers_models as models
from warmrank.inference import cache_compile
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.errors import WorkerError
from warmrank.worker.runtime.function import CachedFunction

TRACERS = ("torch._dynamo", "torch._inductor", "sympy", "torch.fx")
CALLS = ((2, 5), (3, 7), (2, 5))  # a prompt's shape that comes again is captured


def options_named(name: str) -> dict[str, Any]:
    """Options of `cache_compile` by the name that follows a model's; ``always`` shares the model's cache."""
    if name == "max-autotune":
        config = CompilerConfig()
        config.mode = name
        return {"config": config, "ge_cache": True}
    return {"": {}, "always": {"guards": "always"}}[name]


def served(name: str, cache: Path) -> dict[str, Any]:
    """What one model's cached functions did, and how far they are from eager."""
    if name in models.ENCODERS:
        encoder = models.Encoder(models.ENCODERS[name].build(), str(cache))
        functions = [encoder.cached_encode]
        got = [models.encoded(encoder.cached_encode, batch=b, length=n) for b, n in CALLS]
        wanted = [models.encoded(encoder.encode, batch=b, length=n) for b, n in CALLS]
        return _result(functions, wanted, got)
    family, _, options = name.partition("@")
    model = models.DECODERS[family].build()
    causal = models.Served(model, str(cache), **options_named(options))
    functions = [causal.cached_prefill, causal.cached_decode]
    got = [models.generated(model, *functions, batch=b, length=n) for b, n in CALLS]
    wanted = [models.generated(model, causal.prefill, causal.decode, batch=b, length=n) for b, n in CALLS]
    result = _result(functions, wanted, got)
    if name == "llama-sdpa" and result["outcomes"] == ["compiled", "compiled"]:
        traced = [torch.compile(f, backend="eager", dynamic=True) for f in (causal.prefill, causal.decode)]
        theirs = [models.generated(model, *traced, batch=b, length=n) for b, n in CALLS]
        result["from torch.compile"] = _furthest(theirs, got)
    return result


def _result(functions: list[CachedFunction], wanted: list[Any], got: list[Any]) -> dict[str, Any]:
    results = [function.last_result for function in functions]
    return {
        "outcomes": [result.outcome for result in results if result],
        "load_ms": [1e3 * result.seconds.load_s for result in results if result],
        "variants": [len(function.variants) for function in functions],
        "far": _furthest(wanted, got),
    }


def _furthest(wanted: list[list[torch.Tensor]], got: list[list[torch.Tensor]]) -> float:
    """Largest absolute difference; that of other shapes or types is infinite."""
    pairs = [pair for one, other in zip(wanted, got, strict=True) for pair in zip(one, other, strict=True)]
    if any((one.shape, one.dtype) != (other.shape, other.dtype) for one, other in pairs):
        return float("inf")
    return max(float((one - other).abs().max()) for one, other in pairs)


def refused(cache: Path) -> dict[str, Any]:
    """The error for experts that are chosen in a loop over data."""
    model = models.mixtral("sdpa", "eager").build()
    causal = models.Served(model, str(cache))
    try:
        models.generated(model, causal.cached_prefill, causal.cached_decode, batch=2, length=5)
    except WorkerError as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {"error": "", "message": ""}


def decorated(cache: Path) -> dict[str, Any]:
    """The error for a model's own ``forward``."""
    model = models.DECODERS["llama-eager"].build()
    try:
        cache_compile(model.forward, cache_dir=cache)
    except WorkerError as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {"error": "", "message": ""}


ERRORS = {"refused": refused, "decorated": decorated}


def main() -> None:
    root = Path(sys.argv[1])
    tracers = {name for name in sys.modules if name.startswith(TRACERS)}
    found = {}
    with torch.no_grad():
        for name in sys.argv[2:]:
            found[name] = (
                ERRORS[name](root / name)
                if name in ERRORS
                else served(name, root / name.removesuffix("@always"))
            )
    imported = sorted({name for name in sys.modules if name.startswith(TRACERS)} - tracers)
    sys.stdout.write(json.dumps({"imported": imported, "found": found}))


if __name__ == "__main__":
    main()
