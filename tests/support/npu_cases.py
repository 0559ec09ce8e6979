"""What TorchAir's documents say a cached function can be: one function per case, the same cold and warm.

A case builds its model anew, calls the cached function, and compares each result with eager, at once. It
returns what was seen. Weights come from a seed, so a later process has the same.

Usage: python -m tests.support.npu_cases emulated|npu MODE CACHE_DIR [CASE ...]
prints as JSON what it saw.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from tests import npu_emulator
from tests.support.checkout import printed_by
from warmrank.inference import cache_compile, set_dim_gears
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.devices import backend_for


@dataclasses.dataclass
class InputMeta:
    data: torch.Tensor
    is_prompt: bool


@dataclasses.dataclass
class Seen:
    """What one case did.

    Attributes:
        outcomes: how each artifact was come by: compiled, loaded.
        captures: captured graphs that TorchAir holds at the end, per cached function.
        wrong: differences from eager, in words.
        notes: what the case wants to say besides.
    """

    outcomes: list[str] = dataclasses.field(default_factory=list)
    captures: list[int] = dataclasses.field(default_factory=list)
    wrong: list[str] = dataclasses.field(default_factory=list)
    notes: dict[str, Any] = dataclasses.field(default_factory=dict)


class Bench:
    """Runs calls of one case."""

    def __init__(self, mode: str, cache_dir: str) -> None:
        self.mode, self.cache_dir = mode, cache_dir
        self.seen = Seen()
        self.functions: list[Any] = []

    def config(self) -> CompilerConfig:
        made = CompilerConfig()
        made.mode = self.mode
        return made

    def cached(self, method: Any, config: CompilerConfig | None = None, **options: Any) -> Any:
        function = cache_compile(method, config=config or self.config(), cache_dir=self.cache_dir, **options)
        self.functions.append((function, len(function.variants)))
        return function

    def same(self, function: Any, eager: Any, *args: Any, **kwargs: Any) -> Any:
        """Call both on equal arguments; results and arguments must be equal after it."""
        theirs_args, theirs_kwargs = copy.deepcopy((args, kwargs))
        before = len(function.variants)
        ours = function(*args, **kwargs)
        if len(function.variants) != before:
            self.seen.outcomes.append(function.last_result.outcome)
        with torch.no_grad():
            theirs = eager(*theirs_args, **theirs_kwargs)
        self._compare("result", ours, theirs)
        self._compare("arguments", (args, kwargs), (theirs_args, theirs_kwargs))
        return ours

    def _compare(self, what: str, ours: Any, theirs: Any) -> None:
        flat, spec = _pytree.tree_flatten(_plain(ours))
        wanted, wanted_spec = _pytree.tree_flatten(_plain(theirs))
        if spec != wanted_spec:
            self.seen.wrong.append(f"{what}: {spec} instead of {wanted_spec}")
            return
        for index, (one, other) in enumerate(zip(flat, wanted, strict=True)):
            if isinstance(other, torch.Tensor):
                same = isinstance(one, torch.Tensor) and one.dtype == other.dtype and one.shape == other.shape
                if not (same and torch.allclose(one, other, rtol=1e-5, atol=1e-6)):
                    self.seen.wrong.append(f"{what}, part {index}: {one} instead of {other}")
            elif one != other:
                self.seen.wrong.append(f"{what}, part {index}: {one!r} instead of {other!r}")

    def done(self) -> Seen:
        self.seen.captures = [function.statistics.captures for function, _ in self.functions]
        return self.seen


def _plain(value: Any) -> Any:
    """Dataclasses as dictionaries, so that their tensors are compared."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return {name: _plain(item) for name, item in value.items()} if isinstance(value, dict) else value


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.scale = nn.Buffer(torch.full((4,), 2.0))
        self.calls = nn.Buffer(torch.zeros(1))

    def plain(self, x: torch.Tensor) -> Any:
        return self.second(torch.relu(self.first(x))) * self.scale

    def meta(self, x: InputMeta, kv: list[torch.Tensor]) -> Any:
        data = self.first(x.data) if x.is_prompt else self.second(x.data)
        return data + self.second(kv[0])

    def decode(self, x: torch.Tensor, kv: torch.Tensor) -> Any:
        kv.add_(x)
        return self.first(x) + kv * self.scale

    def flagged(self, x: torch.Tensor, *, twice: bool) -> Any:
        return self.first(x) * 2 if twice else self.first(x)

    def counts(self, x: torch.Tensor) -> Any:
        self.calls.add_(1)
        return x * self.calls

    def nested(self, x: torch.Tensor, other: torch.Tensor | None = None, factor: int = 3) -> Any:
        y = x * factor if other is None else x + other
        return {"y": y, "both": (self.first(y), [y.sum(), factor])}, None, "text"

    def views(self, x: torch.Tensor, kv: torch.Tensor) -> Any:
        kv.mul_(2)
        y = self.first(x)
        return y, y[0], x

    def kind(self, x: torch.Tensor) -> Any:
        return self.first(x), x.dtype

    def constant(self, x: torch.Tensor) -> Any:
        return self.first(x) + torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)

    def silu(self, x: torch.Tensor) -> Any:
        return nn.functional.silu(self.first(x))

    def norm(self, x: torch.Tensor, residual: torch.Tensor) -> Any:
        y = x + residual
        normed = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        return normed, y


DEVICE = torch.device("cpu")
"""Where models and arguments lie: ``npu:0`` on hardware, the CPU under the emulator."""


def data(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def ready() -> Model:
    return Model().to(DEVICE)


def closures(bench: Bench) -> None:
    factor, shift = 1.5, torch.full((4,), 0.25, device=DEVICE)

    class Closing(Model):
        def closing(self, x: torch.Tensor) -> Any:
            return self.first(x) * factor + shift

    model = Closing().to(DEVICE)
    function = bench.cached(model.closing)
    bench.same(function, model.closing, data(3, 4))
    bench.same(function, model.closing, data(3, 4, seed=2))


def mutated_inputs(bench: Bench) -> None:
    model = ready()
    function = bench.cached(model.decode)
    cache = torch.zeros(3, 4, device=DEVICE)
    for seed in range(3):
        bench.same(function, model.decode, data(3, 4, seed=seed), cache)
    for _ in range(2):  # at another address
        bench.same(function, model.decode, data(3, 4), torch.ones(3, 4, device=DEVICE))


def capture_limit(bench: Bench) -> None:
    model, config = ready(), bench.config()
    config.debug.aclgraph.static_capture_size_limit = 2
    function = bench.cached(model.decode, config)
    for rows in (2, 3, 5, 6, 2):
        bench.same(function, model.decode, data(rows, 4), data(rows, 4, seed=9))
    bench.seen.notes["eager"] = function.variants[0].runner.statistics.eager_calls


def custom_pools(bench: Bench) -> None:
    from warmrank import graph_pool_handle

    model, config = ready(), bench.config()
    config.aclgraph_config.use_custom_pool = graph_pool_handle()
    first, second = bench.cached(model.plain, config), bench.cached(model.silu, config)
    for seed in range(3):
        bench.same(first, model.plain, data(3, 4, seed=seed))
        bench.same(second, model.silu, data(3, 4, seed=seed))


def output_clone(bench: Bench) -> None:
    model, config = ready(), bench.config()
    config.debug.aclgraph.enable_output_clone = True
    function = bench.cached(model.plain, config)
    kept = [bench.same(function, model.plain, data(3, 4, seed=seed)) for seed in range(3)]
    with torch.no_grad():
        for seed, output in enumerate(kept):
            if not torch.allclose(output, model.plain(data(3, 4, seed=seed))):
                bench.seen.wrong.append(f"output {seed} was overwritten by a later call")


def without_input_clone(bench: Bench) -> None:
    model, config = ready(), bench.config()
    config.debug.aclgraph.clone_input = False
    function = bench.cached(model.plain, config)
    x = data(3, 4)
    for _ in range(2):
        bench.same(function, model.plain, x)
        x.add_(1)
    bench.same(function, model.plain, data(3, 4, seed=5))


def buffer_of_the_module(bench: Bench) -> None:
    model, eager = ready(), Model()
    function = bench.cached(model.counts)
    for _ in range(3):
        bench.same(function, eager.counts, data(3, 4))
    if not torch.equal(model.calls, eager.calls):
        bench.seen.wrong.append(f"buffer is {model.calls} instead of {eager.calls}")


def views(bench: Bench) -> None:
    model = ready()
    function = bench.cached(model.views)
    cache = data(3, 4)
    for seed in range(3):
        x = data(3, 4, seed=seed)
        result = bench.same(function, model.views, x, cache)
        if result[2] is not x:
            bench.seen.wrong.append("an argument that is handed through comes back as another tensor")
        result[1].fill_(3)
        if not torch.equal(result[0][0], result[1]):
            bench.seen.wrong.append("a view of an output does not share its memory")


def two_models(bench: Bench) -> None:
    one, two = ready(), Model()
    with torch.no_grad():
        two.first.weight.mul_(2)
    functions = [(bench.cached(model.plain), model.plain) for model in (one, two)]
    for seed in range(2):
        for function, eager in functions:
            bench.same(function, eager, data(3, 4, seed=seed))


def gradient_modes(bench: Bench) -> None:
    model = ready()
    function = bench.cached(model.plain)
    if bench.same(function, model.plain, data(3, 4)).requires_grad:
        bench.seen.wrong.append("the result requires gradients")
    with torch.no_grad():
        bench.same(function, model.plain, data(3, 4, seed=2))
    with torch.inference_mode():
        bench.same(function, model.plain, data(3, 4, seed=3))


def gears(bench: Bench) -> None:
    model = ready()
    function = bench.cached(model.plain)
    for rows in (2, 4, 8, 4):
        x = data(rows, 4)
        set_dim_gears(x, {0: [2, 4, 8]})
        bench.same(function, model.plain, x)


def warm_up(bench: Bench) -> None:
    model = ready()
    function = bench.cached(model.decode)
    cache = data(3, 4)
    before = cache.clone()
    function.warm_up(data(3, 4), cache)
    bench.seen.outcomes.append(function.last_result.outcome)
    if not torch.equal(cache, before):
        bench.seen.wrong.append("warming up changed the cache")
    bench.same(function, model.decode, data(3, 4), cache)


def eager(bench: Bench) -> None:
    model, config = ready(), bench.config()
    config.debug.run_eagerly = True
    function = bench.cached(model.decode, config)
    for seed in range(2):
        bench.same(function, model.decode, data(3, 4, seed=seed), data(3, 4))


def calls(method: str, *given: Any, **options: Any) -> Callable[[Bench], None]:
    """A case that calls one method; ``given`` are tuples of arguments, or functions that make these."""

    def case(bench: Bench) -> None:
        model = ready()
        function = bench.cached(getattr(model, method), **options)
        for make in given:
            args, kwargs = make()
            bench.same(function, getattr(model, method), *args, **kwargs)

    return case


def x(rows: int = 3, seed: int = 1, **kwargs: Any) -> Callable[[], Any]:
    """One call's arguments: a tensor, and others by name."""
    return lambda: ((data(rows, 4, seed=seed),), kwargs)


def meta(is_prompt: bool) -> Callable[[], Any]:
    return lambda: ((InputMeta(data(2, 4), is_prompt), [data(2, 4, seed=3)]), {})


def pair(one: int, other: int) -> Callable[[], Any]:
    return lambda: ((data(3, 4, seed=one), data(3, 4, seed=other)), {})


def silu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


CASES: dict[str, Callable[[Bench], None]] = {
    "parameters": calls("plain", x(), x(seed=2), x(seed=3)),
    "dataclass_arguments": calls("meta", meta(True), meta(False), meta(True)),
    "dynamic_shapes": calls("plain", x(8), x(4), x(2), x(8), x(4)),
    "static_shapes": calls("plain", x(4), x(2), x(4), dynamic=False),
    "recompile": calls("flagged", x(twice=True), x(twice=False), x(twice=True), x(twice=False)),
    "nested_results": calls("nested", x(), lambda: (x()()[0], {"other": data(3, 4, seed=2)}), x(factor=5)),
    "constants": calls("constant", x(), x(seed=2)),
    "returned_types": calls("kind", x()),
    "decompositions": calls(
        "silu", x(), x(seed=2), custom_decompositions={torch.ops.aten.silu.default: silu}
    ),
    "fused_patterns": calls("norm", pair(1, 2), pair(3, 4)),
} | {
    case.__name__: case
    for case in (
        closures, mutated_inputs, capture_limit, custom_pools, output_clone, without_input_clone,
        buffer_of_the_module, views, two_models, gradient_modes, gears, warm_up, eager,
    )
}  # fmt: skip


MODES = ("reduce-overhead", "npugraph_ex")
# How many graphs TorchAir holds at the end, per cached function of the case.
CAPTURES = {
    "dynamic_shapes": [3],
    "static_shapes": [2],
    "capture_limit": [0],
    "dataclass_arguments": [2],
    "recompile": [2],
    "nested_results": [3],
    "custom_pools": [1, 1],
    "two_models": [1, 1],
    "gears": [3],
    "eager": [0],
}

AllSeen = dict[tuple[str, str], dict[str, Any]]
"""What was seen of each case, by mode and ``cold`` or ``warm``."""


def run(device: str, mode: str, cache_dir: Path, *cases: str) -> dict[str, Any]:
    """What was seen of each case in one new process; ``device`` is ``emulated`` or ``npu``."""
    printed = printed_by("tests.support.npu_cases", device, mode, str(cache_dir), *cases)
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


def cold_and_warm(device: str, directory: Path) -> AllSeen:
    """All cases in all modes, each compiled in one process and loaded in the next."""
    return {
        (mode, temperature): run(device, mode, directory / mode)
        for mode in MODES
        for temperature in ("cold", "warm")
    }


def main(device: str, mode: str, cache_dir: str, *names: str) -> None:
    if device == "emulated":
        npu_emulator.install()
    else:
        backend_for("npu")  # imports torch_npu
        globals()["DEVICE"] = torch.device("npu", 0)
    found = {}
    for name in names or CASES:
        bench = Bench(mode, str(Path(cache_dir) / name))
        try:
            CASES[name](bench)
        except Exception:  # noqa: BLE001 - told to the test
            bench.seen.wrong.append(traceback.format_exc(limit=-6))
        found[name] = dataclasses.asdict(bench.done())
    print(json.dumps(found), file=sys.__stdout__)


if __name__ == "__main__":
    from tests.support import npu_cases  # under its own name, by which the models' classes are known

    npu_cases.main(*sys.argv[1:])
