"""A process of its own: calls a cached function in mode max-autotune and prints what came of it as JSON."""

from __future__ import annotations

import hashlib
import json
import sys

import torch

from tests.support import autotune_models as models
from warmrank import CompilerConfig
from warmrank.inference import cache_compile


def main(cache_dir: str) -> None:
    """Call once; the digest is of the results' bytes."""
    module = models.mixed()
    config = CompilerConfig()
    config.mode = "max-autotune"
    function = cache_compile(module.forward, config=config, cache_dir=cache_dir)
    call = models.mixed_call()
    with torch.no_grad():
        results = function(*call)
    tensors = [value for value in results if isinstance(value, torch.Tensor)]
    raw = b"".join(
        bytes(value.contiguous().view(torch.uint8).flatten().tolist()) for value in tensors if value.dim()
    )
    imported = sorted(
        {
            name.split(".")[0] + "." + name.split(".")[1]
            for name in sys.modules
            if name.startswith("torch._") and "." in name
        }
    )
    heavy = [name for name in ("torch._dynamo", "torch._inductor") if name in imported]
    result = function.last_result
    assert result is not None
    sys.stdout.write(json.dumps({
        "outcome": result.outcome,
        "reason": result.reason,
        "digest": hashlib.sha256(raw).hexdigest(),
        "cache": call[1].tolist(),
        "heavy": heavy + ["sympy"] * ("sympy" in sys.modules),
    }) + "\n")  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
