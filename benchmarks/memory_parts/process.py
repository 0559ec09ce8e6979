"""One fresh process: capture every gear under one set of memory options, and say what the pools hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of the model and of its calls."""

    gears: int = 16
    layers: int = 2
    dim: int = 256
    positions: int = 128


SMALL = Shape(gears=4, layers=2, dim=64, positions=16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Modes:
    """Which memory reuse modes are on, how many functions are called, and in which order gears come.

    Attributes:
        one: one pool for all functions (``aclgraph_config.use_custom_pool``).
        two: one pool for all shapes of a function.
        three: user inputs are copied into the pool (``debug.aclgraph.clone_input``).
        functions: 1 or 2.
        rising: the smallest gear is captured first.
    """

    one: bool = False
    two: bool = True
    three: bool = True
    functions: int = 1
    rising: bool = False

    def compiled_as(self) -> tuple[object, ...]:
        """Lines for which this is equal use the same artifacts."""
        return (self.one, self.two, self.three, self.functions)

    def order(self, gears: int) -> Sequence[int]:
        """Gears in the order of their capture."""
        rising = range(1, gears + 1)
        return rising if self.rising else rising[::-1]


def measure(modes: Modes, shape: Shape, cache_dir: str) -> dict[str, Any]:
    """Bytes of all pools, and by how much the process grew while they were captured and used."""
    from warmrank.worker.capture.statistics import total

    functions = _functions(modes, shape, cache_dir)
    # Without mode three a graph reads its input where it lies, so inputs stay, as they would in a framework.
    inputs = [_input(batch, shape) for batch in modes.order(shape.gears)]
    variants = [cached.ensure((inputs[0],), {}) for cached, _ in functions]  # loads; captures nothing
    before = resident_bytes()
    difference = 0.0
    for x in inputs:
        for variant, (cached, eager) in zip(variants, functions, strict=True):
            capture(variant, x)
            difference = max(difference, (cached(x) - eager(x)).abs().max().item())
    taken = [variant.runner for cached, _ in functions for variant in cached.variants]
    whole = total(taken)  # a pool that both functions share counts once
    return {
        "captures": whole.captures,
        "recaptures": whole.recaptures,
        "num_pools": len(whole.pools),
        "pool_bytes": whole.pool_bytes,
        "resident_bytes": resident_bytes() - before,
        "largest_difference": difference,
        "outcomes": [cached.last_result.outcome for cached, _ in functions],
    }


def capture(variant: Any, x: Any) -> None:
    """Capture the gear of this input and no other, as a step of a launch's capture plan does."""
    variant.runner.prepare(*variant.inputs_of((x,), {}))


def alone(modes: Modes, shape: Shape, cache_dir: str) -> list[int]:
    """Bytes of each gear's pool where no other gear is captured; the smallest gear first."""
    sizes = []
    for gear in range(1, shape.gears + 1):
        [(cached, _)] = _functions(modes, shape, cache_dir)
        x = _input(gear, shape)
        capture(cached.ensure((x,), {}), x)
        sizes.append(cached.statistics.pool_bytes)
    return sizes


def _functions(modes: Modes, shape: Shape, cache_dir: str) -> list[tuple[Any, Any]]:
    """Each cached function of a new model, and the method that it stands for."""
    import torch

    import warmrank
    from benchmarks.memory_parts.model import TwoFunctions

    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    config = warmrank.CompilerConfig()
    if modes.one:
        config.aclgraph_config.use_custom_pool = warmrank.graph_pool_handle("cpu")
    config.debug.aclgraph.disable_mempool_reuse_in_same_fx = not modes.two
    config.debug.aclgraph.clone_input = modes.three
    model = TwoFunctions(config, cache_dir, layers=shape.layers, dim=shape.dim)
    return [(model.cached_first, model.first), (model.cached_second, model.second)][: modes.functions]


def _input(batch: int, shape: Shape) -> Any:
    import torch

    from warmrank.inference import set_dim_gears

    x = torch.randn(batch, shape.positions, shape.dim)
    set_dim_gears(x, {0: list(range(1, shape.gears + 1))})
    return x


def resident_bytes() -> int:
    """Memory of this process that is resident now."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    msg = "/proc/self/status has no VmRSS; this benchmark needs Linux"
    raise RuntimeError(msg)
