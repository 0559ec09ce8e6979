"""One fresh process: a way's first output, checked against eager, and its later calls."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any

from benchmarks.load_parts.decoder import Decoder, build
from benchmarks.load_parts.ways import WAYS, NotHere, Task, Way


class Clock:
    """Runs from its making, and stands while what is equal for all ways is done."""

    def __init__(self) -> None:
        self._started = perf_counter()
        self._stood_s = 0.0

    @contextmanager
    def standing(self) -> Iterator[None]:
        """What happens in here is not counted."""
        stopped = perf_counter()
        yield
        self._stood_s += perf_counter() - stopped

    def seconds(self) -> float:
        """Seconds counted so far."""
        return perf_counter() - self._started - self._stood_s


def in_turns(calls: Sequence[Callable[[], Any]], rounds: int) -> list[list[float]]:
    """Seconds of every call, round by round, so that noise falls on all alike."""
    seconds: list[list[float]] = [[] for _ in calls]
    for number in range(rounds + 1):
        for call, taken in zip(calls, seconds, strict=True):
            started = perf_counter()
            call()
            ended = perf_counter()
            if number:  # the first round only warms up
                taken.append(ended - started)
    return seconds


def measure(name: str, task: Task) -> dict[str, Any]:
    """Figures of a way in this process, which has imported nothing yet; or why there are none."""
    import torch

    clock = Clock()
    way = WAYS[name]()
    torch.set_grad_enabled(False)
    try:
        with clock.standing():
            way.emulate(task)
        way.imports(task)
        imports_s = clock.seconds()
        with clock.standing():
            decoder = build(task.layers)
            gc.collect()
            # Or a full collection of torch's heap (0.13 s) falls into some way's time by chance. Not frozen:
            # who asks for the number of frozen objects waits until they are counted.
            gc.disable()
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
    gc.enable()
    gc.freeze()
    figures |= later_calls(way, function, decoder, task.rounds)
    torch.testing.assert_close(
        function(*decoder.arguments), decoder.eager(*decoder.arguments), rtol=1e-4, atol=1e-4
    )
    return figures | own_cost(way, decoder, task.rounds)


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
        figures["dispatch_s"] = statistics.median(
            one - other for one, other in zip(seconds[0], seconds[2], strict=True)
        )
    with way.guards_timed() as spent:
        if spent is not None:
            in_guards = []
            for _ in range(rounds):
                spent.clear()
                function(*arguments)
                in_guards.append(sum(spent))
                decoder.eager(*arguments)
            figures["guards_s"] = statistics.median(in_guards)
    return figures


def own_cost(way: Way, decoder: Decoder, rounds: int) -> dict[str, float]:
    """Median seconds of a call whose kernel is replaced by nothing.

    Again and again, and after each eager call, whose weights and code put its own out of the CPU's caches.
    """
    own = way.without_kernel(decoder)
    if own is None:
        return {}
    call, eager = partial(own, *decoder.arguments), partial(decoder.eager, *decoder.arguments)
    call()
    return {
        "own_alone_s": statistics.median(in_turns([call], rounds)[0]),
        "own_after_eager_s": statistics.median(in_turns([call, eager], rounds)[0]),
    }
