"""A process of its own on an emulated NPU: the vendor's own ``cache_compile``, without this package's.

``python -m tests.support.npu_vendor torchair DIR`` runs every case once, and prints what each showed as JSON.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests import npu_emulator

Compile = Callable[..., Any]
SIZE = 16


class Model(torch.nn.Module):
    """Parameters, a cache that is written to, an RMS norm as transformers write it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(SIZE, SIZE)
        self.gamma = torch.nn.Parameter(torch.rand(SIZE) + 0.5)

    def normed(self, x: torch.Tensor) -> torch.Tensor:
        dtype = x.dtype
        wide = x.to(torch.float32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        normed: torch.Tensor = self.gamma * (wide * torch.rsqrt(variance + 1e-6)).to(dtype)
        return normed

    def decode(self, x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        cache.add_(x.sum(0))
        result: torch.Tensor = self.linear(self.normed(x) + cache).relu()
        return result

    def prefill(self, x: torch.Tensor, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cache.mul_(0.5).add_(x.mean(0))
        return self.linear(x) * 2, cache.sum()

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(x) * 3
        return result

    def quantized(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        normed, _, total = torch.ops.npu.npu_add_rms_norm(x, y, self.gamma)
        values, scale = torch.ops.npu.npu_dynamic_quant(normed)
        return values, scale, total


def equal(ours: Any, eager: Any) -> bool:
    """Whether all tensors are equal to the bit."""
    pairs = zip(_flat(ours), _flat(eager), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def _flat(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, tuple) else [value]


def dynamic(model: Model, compile_: Compile) -> dict[str, Any]:
    """Several sizes of one dynamic graph, back and forth; the cache changes exactly once a call."""
    compiled = compile_(model.decode, dynamic=True)
    ours, eager = torch.zeros(SIZE), torch.zeros(SIZE)
    same = []
    for rows in (3, 5, 3, 4, 5):
        x = torch.randn(rows, SIZE)
        same.append(equal(compiled(x, ours), model.decode(x, eager)) and torch.equal(ours, eager))
    return {"same": same}


def new_address(model: Model, compile_: Compile) -> dict[str, Any]:
    """A cache that lies elsewhere is captured anew."""
    compiled = compile_(model.prefill, dynamic=False)
    same = []
    for _ in range(3):
        x, ours = torch.randn(4, SIZE), torch.randn(SIZE)
        eager = ours.clone()
        same.append(equal(compiled(x, ours), model.prefill(x, eager)) and torch.equal(ours, eager))
    return {"same": same}


def static_parameters(model: Model, compile_: Compile) -> dict[str, Any]:
    """A parameter is read where it lies: what is written to it shows."""
    compiled = compile_(model.scaled, dynamic=False)
    x = torch.randn(2, SIZE)
    same = [equal(compiled(x), model.scaled(x))]
    with torch.no_grad():
        model.linear.weight.mul_(0.25)
    same.append(equal(compiled(x), model.scaled(x)))
    return {"same": same}


def two_pools(model: Model, compile_: Compile) -> dict[str, Any]:
    """An output survives replays in another pool, and not those in its own."""
    module = torch.get_device_module("npu")
    pools = [module.graph_pool_handle() for _ in range(2)]
    one = compile_(model.scaled, dynamic=False, pool=pools[0])
    other = compile_(model.scaled, dynamic=False, pool=pools[1])
    x = torch.randn(2, SIZE)
    kept = one(x)
    before = kept.clone()
    other(x * 2)
    apart = torch.equal(kept, before)
    one(x * 3)
    return {"same": [torch.equal(before, model.scaled(x)), apart, torch.equal(kept, model.scaled(x * 3))]}


def output_clone(model: Model, compile_: Compile) -> dict[str, Any]:
    """A cloned output survives a replay of its own graph."""
    compiled = compile_(model.scaled, dynamic=False, clone=True)
    x = torch.randn(2, SIZE)
    kept = compiled(x)
    before = kept.clone()
    compiled(x * 2)
    return {"same": [torch.equal(kept, before)]}


def fused(model: Model, compile_: Compile) -> dict[str, Any]:
    """Operators of the NPU, which the vendor's pass makes one; its name stands in what is stored."""
    compiled = compile_(model.quantized, dynamic=False)
    x, y = torch.randn(2, SIZE), torch.randn(2, SIZE)
    return {"same": [equal(compiled(x, y), model.quantized(x, y))]}


CASES = (dynamic, new_address, static_parameters, two_pools, output_clone, fused)


def compiler(vendor: str, folder: Path) -> Compile:
    """The vendor's ``cache_compile``, its options by one name."""

    def by_torchair(function: Any, *, dynamic: bool, pool: Any = None, clone: bool = False) -> Any:
        import torchair  # type: ignore[import-not-found]

        config = torchair.CompilerConfig()
        config.mode = "reduce-overhead"
        config.aclgraph_config.use_custom_pool = pool
        config.debug.aclgraph.enable_output_clone = clone
        return torchair.inference.cache_compile(
            function, config=config, dynamic=dynamic, cache_dir=str(folder)
        )

    def by_npugraph_ex(function: Any, *, dynamic: bool, pool: Any = None, clone: bool = False) -> Any:
        import npugraph_ex  # type: ignore[import-not-found]

        config = npugraph_ex.CompilerConfig()
        config.use_graph_pool = pool
        config.clone_output = clone
        return npugraph_ex.inference.cache_compile(
            function, config=config, dynamic=dynamic, cache_dir=str(folder)
        )

    return {"torchair": by_torchair, "npugraph_ex": by_npugraph_ex}[vendor]


def main(vendor: str, folder: Path) -> dict[str, Any]:
    """Every case, on a model and in a folder of its own."""
    from torch._dynamo.utils import counters

    found: dict[str, Any] = {}
    with torch.no_grad():
        for case in CASES:
            torch._dynamo.reset()
            compile_ = compiler(vendor, folder / case.__name__)
            counters.clear()
            found[case.__name__] = case(Model().eval(), compile_) | {
                "traced": counters["stats"]["unique_graphs"]
            }
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    npu_emulator.install()
    sys.stdout.write(json.dumps(main(sys.argv[1], Path(sys.argv[2]))) + "\n")
