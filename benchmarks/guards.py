"""What do guards cost on each call, by the number of parameters?

A chain of small layers, run by captured graphs with one thread, in one process. Guards are what a call does
before its graph runs: the state of the process, the conditions, the comparison of the module's tensors with
those that the graph was made for. The target is 20 us and 0.15 us a parameter. What a later call costs in
all, and how that compares with eager, is timed beside it. Processor time of this thread counts, the least of
several runs, so that other programs on the machine matter less; a busy machine still empties the caches.

Run: ``python benchmarks/guards.py [--parameters 16,64,640] [--json FILE]``; it takes a minute.
"""

from __future__ import annotations

import sys
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path
from time import thread_time
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

import torch  # noqa: E402 - also where nothing is installed

from benchmarks.running import arguments, machine, write  # noqa: E402 - likewise
from warmrank.inference import cache_compile  # noqa: E402 - likewise
from warmrank.worker.runtime.function import CachedFunction  # noqa: E402 - likewise
from warmrank.worker.runtime.variant import Variant  # noqa: E402 - likewise
from warmrank.worker.torch_private.warm import ambient  # noqa: E402 - likewise

MODES = ("always", "once", "skip")
X = torch.ones(2, 4)


class Chain(torch.nn.Module):
    """Layers of two parameters each."""

    def __init__(self, num_parameters: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(num_parameters // 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All layers, one after the other."""
        for layer in self.layers:
            x = layer(x)
        return x


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__)
    parser.add_argument("--parameters", default="16,64,640", help="numbers of parameters, with commas")
    options = parser.parse_args()
    torch.set_num_threads(1)
    place = machine("torch")
    print(place)
    print(
        f"{'parameters':>10}{'guards':>8}{'us':>8}{'limit':>8}{'call':>8}{'/ eager':>9}{'full check ms':>14}"
    )
    rows = []
    for number in map(int, options.parameters.split(",")):
        for row in measured(number):
            rows.append(row)
            print(
                f"{number:>10}{row['guards']:>8}{row['guards_us']:>8.1f}{row['limit_us']:>8.1f}"
                f"{row['call_us']:>8.1f}{row['call_us'] / row['eager_us']:>9.2f}"
                f"{row['full_check_ms']:>14.1f}",
                flush=True,
            )
    write(options, {"place": place, "rows": rows})


@torch.no_grad()
def measured(num_parameters: int) -> list[dict[str, Any]]:
    """One row for each mode of guards."""
    model = Chain(num_parameters)
    eager_us = least_us(lambda: model.forward(X), 20)
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        for mode in MODES:
            function = cache_compile(model.forward, cache_dir=cache, guards=mode)
            for _ in range(9):
                function(X)
            (variant,) = function.variants
            rows.append({"num_parameters": num_parameters, "guards": mode, **of_call(function, variant)})
    return [{**row, "limit_us": 20 + 0.15 * num_parameters, "eager_us": eager_us} for row in rows]


def of_call(function: CachedFunction, variant: Variant) -> dict[str, float]:
    """What a call and its parts take."""
    inputs = variant.inputs_of((X,), {})
    settled = variant.runner.settled
    state = ambient("cpu")
    parts: tuple[Callable[[], Any], ...] = (
        lambda: ambient("cpu"),
        lambda: variant.guards.accept(state, (X,), {}),
        lambda: settled.check(inputs),
    )
    return {
        "guards_us": sum(least_us(part, 200) for part in parts),
        "call_us": least_us(lambda: function(X), 20),
        "full_check_ms": least_us(lambda: variant.guards.check((X,), {}), 2) / 1e3,
    }


def least_us(function: Callable[[], Any], number: int) -> float:
    """Microseconds of this thread's processor time, the least of 15 runs of ``number`` calls."""
    return min(timeit.repeat(function, number=number, repeat=15, timer=thread_time)) / number * 1e6


if __name__ == "__main__":
    main()
