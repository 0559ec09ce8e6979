"""One fresh process: a way's first output, checked against eager, and its later calls."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any

from benchmarks.load_parts.clock import Clock, in_turns, median_difference
from benchmarks.load_parts.decoder import Decoder, build
from benchmarks.load_parts.npugraph_ex import NpuGraphEx
from benchmarks.load_parts.our_ways import Warmrank
from benchmarks.load_parts.torch_ways import AotCompile, Eager, Inductor, MegaCache
from benchmarks.load_parts.ways import NotHere, Task, Way

WAYS: dict[str, Callable[[], Way]] = {
    "eager": Eager,
    "inductor": Inductor,
    "mega_cache": MegaCache,
    "aot_compile": AotCompile,
    "npugraph_ex": NpuGraphEx,
    "warmrank_reduce_overhead": lambda: Warmrank("reduce-overhead"),
    "warmrank_max_autotune": lambda: Warmrank("max-autotune"),
}


def measure(name: str, task: Task) -> dict[str, Any]:
    """Figures of a way in this process, which has imported nothing yet; or why there are none."""
    import torch

    clock = Clock()
    way = WAYS[name]()
    torch.set_grad_enabled(False)
    try:
        if isinstance(way, NpuGraphEx):
            with clock.standing():
                way.emulate(task)
        way.imports(task)
        imports_s = clock.seconds()
        with clock.standing():
            decoder = build(task.layers)
            gc.collect()
            gc.freeze()  # or a full collection of torch's heap (0.13 s) falls into some way's time by chance
        function = way.ready(decoder, task)
        output = function(*decoder.arguments)
    except NotHere as error:
        return {"not_here": str(error)}
    figures: dict[str, Any] = {
        "first_output_s": clock.seconds(),
        "imports_s": imports_s,
        "num_parameters": decoder.num_parameters,
    }
    figures |= way.evidence(task)
    difference = (output - decoder.eager(*decoder.arguments)).abs().max().item()
    torch.testing.assert_close(output, decoder.eager(*decoder.arguments), rtol=1e-4, atol=1e-4)
    figures["largest_difference"] = difference
    started = perf_counter()
    function(*decoder.arguments)  # in mode reduce-overhead it captures, which later calls do not
    figures["second_call_s"] = perf_counter() - started
    figures |= later_calls(way, function, decoder, task.rounds)
    torch.testing.assert_close(
        function(*decoder.arguments), decoder.eager(*decoder.arguments), rtol=1e-4, atol=1e-4
    )
    return figures


def later_calls(way: Way, function: Callable[..., Any], decoder: Decoder, rounds: int) -> dict[str, Any]:
    """Median seconds of a call, of an eager one in the same rounds, and what the call adds to its kernel.

    The function ran twice before: what its second call captures is the kernel.
    """
    arguments = decoder.arguments
    calls = [lambda: function(*arguments), lambda: decoder.eager(*arguments)]
    kernel = way.bare()
    if kernel is not None:
        calls.append(kernel)
    seconds = in_turns(calls, rounds)
    figures = {"call_s": statistics.median(seconds[0]), "eager_call_s": statistics.median(seconds[1])}
    if kernel is not None:
        figures["kernel_s"] = statistics.median(seconds[2])
        figures["dispatch_s"] = median_difference(seconds[0], seconds[2])
    return figures
