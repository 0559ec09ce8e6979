"""The capture runtime on the CPU: when it captures, what is copied, what a later replay overwrites."""

from __future__ import annotations

import gc
import logging
import random
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import warmrank
from tests.support.devices import runner, warm
from tests.support.small_models import Cached
from tests.support.tracing import cached
from warmrank.inference import cache_compile
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.configs.options import options
from warmrank.worker.devices import CpuBackend
from warmrank.worker.errors import NotCapturable
from warmrank.worker.runtime.runner import OPTION_NAMES, CaptureOptions, GraphRunner

pytestmark = pytest.mark.usefixtures("no_grad")

Graph = Callable[..., tuple[Any, ...]]
OF_MODULE = {"input_names": ("self.weight", "cache", "x"), "module_inputs": (0,)}
"""Facts of a graph whose first input is the module's."""


def doubled(x: torch.Tensor) -> tuple[Any, ...]:
    return (x * 2,)


@torch.library.custom_op("warmrank_capture::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    """Draws numbers, and no tag says so."""
    return x + torch.rand(2) + random.random()


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape)


def test_memory_of_graphs_goes_with_their_runner() -> None:
    run = runner(doubled, "user")
    for _ in range(3):
        run(ones(2))
    (pool,) = run._captures._pools.values()  # type: ignore[union-attr]
    kept = weakref.ref(pool)
    del pool
    gc.disable()
    try:
        del run
        assert kept() is None
    finally:
        gc.enable()


def test_statistics_wait_for_a_call_that_changes_them() -> None:
    run = runner(doubled, "user")
    run(ones(2))
    with ThreadPoolExecutor(1) as other:
        with run.lock:
            asked = other.submit(lambda: run.statistics)
            with pytest.raises(TimeoutError):
                asked.result(timeout=0.2)
            run(ones(2))
        assert (asked.result().captures, asked.result().replays) == (1, 1)


def test_cloned_output_that_shares_memory_with_an_input_stays_shared() -> None:
    def part(cache: torch.Tensor) -> tuple[Any, ...]:
        cache.add_(1.0)
        return cache[:1], cache * 1.0

    cache = torch.zeros(2)
    run = warm(runner(part, "mutated", facts={"aliased_outputs": (0,)}, clone_output=True), cache)
    shared, computed = run(cache)
    assert shared.data_ptr() == cache.data_ptr()
    assert computed.data_ptr() != run(cache)[1].data_ptr()


@pytest.mark.parametrize("kind", ["state", "mutated"])
def test_state_is_used_where_it_lies_and_recaptured_at_another_address(kind: str) -> None:
    run = warm(runner(lambda weight, x: (weight * x,), kind, "user"), ones(3), ones(3))
    weight = ones(3)
    run(weight, ones(3))
    weight.fill_(4.0)
    assert torch.equal(run(weight, ones(3))[0], ones(3) * 4)
    assert (run.statistics.captures, run.statistics.recaptures) == (1, 0)
    assert torch.equal(run(ones(3) * 2, ones(3))[0], ones(3) * 2)
    assert (run.statistics.captures, run.statistics.recaptures) == (2, 1)


@pytest.mark.parametrize("is_captured", [False, True])
def test_tensor_of_inference_mode_is_not_written_to_outside_of_it(is_captured: bool) -> None:
    run = runner(lambda cache, x: (cache.add_(x) * 1.0,), "mutated", "user")
    with torch.inference_mode():
        cache = ones(2)
        warm(run, cache, ones(2))
        if is_captured:
            run(cache, ones(2))
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        run(cache, ones(2))


def test_operator_on_a_constant_is_called_by_calls_only(tmp_path: Path) -> None:
    seen: list[float] = []

    @torch.library.custom_op("warmrank_capture::counted", mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        seen.append(float(x))
        return x + len(seen)

    @counted.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x + torch.ops.warmrank_capture.counted(torch.tensor(1.0))

    function = cache_compile(Model().forward, cache_dir=tmp_path)
    assert [function(torch.zeros(())).item() for _call in range(4)] == [2.0, 3.0, 4.0, 5.0]
    assert seen == [1.0] * 4


def test_operator_that_draws_unannounced_draws_what_eager_does() -> None:
    run = runner(lambda x: (noisy(x),), "user")
    for _call in range(3):  # run, captured, replayed
        results = []
        for function in (noisy, lambda x: run(x)[0]):
            torch.manual_seed(3)
            random.seed(3)
            results.append((function(torch.zeros(2)), torch.rand(1), random.random()))
        assert all(torch.equal(*map(torch.as_tensor, pair)) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("options", [{"eager": True}, {"limit": 1}], ids=["eager", "limit"])
def test_capture_that_cannot_be_made_leaves_mutated_inputs_as_they_were(options: dict[str, Any]) -> None:
    run = runner(lambda cache, x: (cache.add_(x.sum()) * 1.0,), "mutated", "user", **options)
    run.prepare(torch.zeros(3), ones(1))  # takes the only capture there may be
    cache = torch.arange(2.0)
    run.prepare(cache, ones(1))
    assert torch.equal(cache, torch.arange(2.0))


def reads_back(cache: torch.Tensor, x: torch.Tensor) -> tuple[Any, ...]:
    cache.add_(1.0)
    return (x * 10,)


def test_user_input_that_moves_into_and_within_a_mutated_input_sees_its_writes() -> None:
    cache = torch.tensor([0.0, 100.0])
    run = warm(runner(reads_back, "mutated", "user"), torch.zeros(2), ones(1))
    assert run(cache, torch.zeros(1))[0].item() == 0
    assert run(cache, cache[:1])[0].item() == 20
    assert run(cache, cache[1:])[0].item() == 1030


def test_graph_runs_without_gradients_and_autocast() -> None:
    seen: list[bool] = []

    def look(x: torch.Tensor) -> tuple[Any, ...]:
        seen.append(torch.is_autocast_enabled("cpu"))
        return (x * 2,)

    run = runner(look, "user")
    with torch.enable_grad(), torch.autocast("cpu"):
        results = [run(ones(3).requires_grad_())[0] for _ in range(2)]
    assert seen == [False, False]  # it ran, and was captured
    assert not any(result.requires_grad for result in results)


class Failing(CpuBackend):
    """Has no memory for a capture as often as it is told."""

    times = 0

    def capture(self, *given: Any, **options: Any) -> Any:
        if self.times:
            self.times -= 1
            msg = "out of memory"
            raise RuntimeError(msg)
        return super().capture(*given, **options)


def done(run: Any) -> tuple[int, int, int]:
    """How often it ran, captured and replayed."""
    found = run.statistics
    return found.warm_up_runs, found.captures, found.replays


def test_first_call_runs_second_captures_third_replays() -> None:
    run = runner(doubled, "user")
    found = []
    for value in (1.0, 2.0, 3.0):
        assert torch.equal(run(torch.full((3,), value))[0], torch.full((3,), 2 * value))
        found.append(done(run))
    assert found == [(1, 0, 0), (1, 1, 1), (1, 1, 2)]
    assert run.statistics.eager_calls == 0


def test_recapture_that_failed_is_tried_again_at_the_next_call() -> None:
    backend = Failing()
    run = runner(lambda weight, x: (weight * x,), "state", "user", backend=backend)
    weights = [torch.ones(3), torch.ones(3) * 2]
    warm(run, weights[0], torch.ones(3))(weights[0], torch.ones(3))
    backend.times = 1
    with pytest.raises(RuntimeError, match="out of memory"):
        run(weights[1], torch.ones(3))
    assert torch.equal(run(weights[1], torch.ones(3))[0], torch.ones(3) * 2)
    assert done(run) == (1, 2, 2)


@pytest.mark.parametrize("pool", ["own", "given"])
def test_output_of_a_first_call_is_never_overwritten(pool: str) -> None:
    options: dict[str, Any] = {"pool": warmrank.graph_pool_handle("cpu")} if pool == "given" else {}
    run = runner(doubled, "user", **options)
    kept = [(size, run(torch.ones(size))[0]) for size in (8, 4)]
    for size in (8, 4, 8, 4):
        run(torch.full((size,), float("nan")))
    assert done(run) == (2, 2, 4)
    for size, value in kept:
        assert torch.equal(value, torch.ones(size) * 2)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(4))

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + x.sum()


@pytest.mark.parametrize("clone", [False, True])
def test_threads_that_call_in_turns_are_warned_unless_outputs_are_copied(tmp_path, caplog, clone):
    config = CompilerConfig()
    config.debug.aclgraph.enable_output_clone = clone
    cached = cache_compile(Model().scaled, config=config, cache_dir=tmp_path)

    @torch.no_grad()
    def call() -> None:
        cached(torch.ones(4))

    logger = logging.getLogger("torchair")
    logger.addHandler(caplog.handler)
    try:
        call(), call()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(call).result()
            assert "several threads" not in caplog.text  # the other one took over
            call()
    finally:
        logger.removeHandler(caplog.handler)
    assert ("several threads call a captured function" in caplog.text) == (not clone)


class Uncapturable(CpuBackend):
    """Warms the graph up in the pool's memory, as a device that finds out on the way, then refuses it."""

    runs_captures = False

    def __init__(self, *memory: torch.Tensor) -> None:
        self.memory = memory

    def capture(self, graph: Graph, inputs: Any, **options: Any) -> Any:
        graph(*inputs)
        for value in self.memory:
            value.fill_(-1.0)
        msg = "aten.item.default reads a value on the host"
        raise NotCapturable(msg, operator="aten.item.default")


def used(weight: torch.Tensor, cache: torch.Tensor, x: torch.Tensor) -> tuple[Any, ...]:
    cache.add_(x)
    return (weight * cache + x,)


def using(
    *, captures: bool = True, **options: Any
) -> tuple[GraphRunner, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A runner after a call that captured, if calls of it do so, and the inputs of that call."""
    run = runner(used, "state", "mutated", "user", facts=OF_MODULE, **options)
    inputs = torch.ones(4), torch.zeros(4), torch.ones(4)
    if captures:
        warm(run, *inputs)
    run(*inputs)
    return run, *inputs


def test_another_layout_at_the_old_address_is_named_and_seen() -> None:
    run = runner(lambda weight, cache: (weight * 2 + cache,), "state", "mutated", facts=OF_MODULE)
    weight, cache = torch.arange(4.0).reshape(2, 2), torch.zeros(2, 2)
    warm(run, weight, cache)(weight, cache)
    assert torch.equal(run(weight.T, cache)[0], weight.T * 2)
    assert run.statistics.recapture_causes == (("parameter or buffer self.weight has another layout", 1),)


def test_user_inputs_of_other_strides_where_elements_overlap_are_read_correctly() -> None:
    facts = {"module_inputs": (0, 1)}
    run = runner(lambda weight, cache, x: (x * 2,), "state", "state", "user", facts=facts)
    weight = torch.ones(1)
    warm(run, weight, weight, torch.ones(2, 3))
    assert torch.equal(
        run(weight, weight, torch.arange(3.0).expand(2, 3))[0], torch.arange(3.0).expand(2, 3) * 2
    )
    whole = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(run(weight, weight, whole)[0], whole * 2)
    assert run.statistics.recapture_causes == (("user inputs have other strides", 1),)


def test_forced_recapture_captures_on_every_call_but_the_first() -> None:
    run, weight, cache, x = using(captures=False, force_recapture=True)
    for number in range(2, 5):
        assert torch.equal(run(weight, cache, x)[0], torch.full((4,), number + 1.0))
    assert torch.equal(cache, torch.full((4,), 4.0))
    assert run.statistics.recapture_causes == (("force_recapture", 2),)
    assert done(run) == (1, 3, 3)


@pytest.mark.parametrize("recorded", [True, False], ids=["captured", "refused"])
def test_call_that_captures_runs_the_graph_once(caplog: pytest.LogCaptureFixture, recorded: bool) -> None:
    seen: list[float] = []

    @torch.library.custom_op("warmrank_capture::sent", mutates_args=())
    def sent(x: torch.Tensor) -> torch.Tensor:
        seen.append(float(x[0]))
        return x + 1

    def graph(cache: torch.Tensor, x: torch.Tensor) -> tuple[Any, ...]:
        found = x[:2] if recorded else torch.nonzero(x)
        return cache.add_(sent(x)), sent(cache * 2), found, x.view(2, 2), found[:1]

    run, cache = runner(graph, "mutated", "user"), torch.zeros(4)
    for number in range(1, 5):
        x = torch.full((4,), float(number))
        first, second, found, viewed, inner = run(cache, x)
        assert first.data_ptr() == cache.data_ptr()
        assert inner.data_ptr() == found.data_ptr()
        assert torch.equal(second, cache * 2 + 1)
        assert torch.equal(found[1:], graph(cache * 0, x)[2][1:])
        assert torch.equal(viewed, x.view(2, 2))
        assert len(seen) == 4 * number  # two of them for the comparison
    assert cache[0] == 1 + 2 + 3 + 4 + 4
    assert bool(caplog.records) != recorded
    assert done(run) == ((1, 1, 3) if recorded else (1, 0, 0))


def test_frozen_parameter_at_another_address_is_not_looked_at() -> None:
    run, weight, cache, x = using(frozen_parameters=True)
    run(weight.clone(), cache, x)
    assert run.statistics.recaptures == 0


def test_graph_that_cannot_be_captured_runs_without_and_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.ones(4)
    run = runner(used, "state", "mutated", "user", facts=OF_MODULE, backend=Uncapturable(x))
    weight, cache = torch.ones(4), torch.zeros(4)
    warm(run, weight, cache, x)
    with caplog.at_level(logging.WARNING, logger="torchair"):
        results = [run(weight, cache, value)[0] for value in (x, torch.ones(1))]
    assert torch.equal(cache, torch.full((4,), 2.0))
    assert [result[0].item() for result in results] == [2.0, 3.0]
    (record,) = caplog.records
    assert "runs without capture from now on; it cannot be captured: aten.item.default" in record.getMessage()
    cause = "it cannot be captured: aten.item.default reads a value on the host"
    assert run.statistics.eager_causes == ((cause, 2),)


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"eager": True}, "asked for (debug.run_eagerly)"),
        ({"limit": 0}, "static_capture_size_limit is reached"),
    ],
)
def test_call_without_capture_has_a_cause(options: dict[str, Any], cause: str) -> None:
    run, *_ = using(captures=False, **options)
    assert run.statistics.eager_causes == ((cause, 1),)
    assert run.statistics.warm_up_runs == 0


class Noting(Cached):
    """Notes on itself how often it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[int] = []

    def noted(self, x: torch.Tensor) -> Any:
        self.notes.append(1)
        return self.accumulate(x)


def test_warm_up_loads_and_captures_and_changes_nothing(tmp_path: Path) -> None:
    model = Noting().requires_grad_(requires_grad=False)
    function = cached(model.noted, tmp_path)
    before = model.get_buffer("cache").clone()
    function.warm_up(torch.ones(2, 4))
    assert torch.equal(model.get_buffer("cache"), before)
    found = function.statistics
    assert (model.notes, found.captures, found.replays) == ([], 1, 0)
    function(torch.ones(2, 4))
    found = function.statistics
    assert (model.notes, found.captures, found.replays, found.warm_up_runs) == ([1], 1, 1, 0)


def test_capture_options_have_the_defaults_of_a_configuration() -> None:
    declared = {name: option.default for name, option, _ in options(CompilerConfig())}
    assert {field: declared[name] for name, field in OPTION_NAMES.items()} == {
        field: CaptureOptions.value_fields[field] for field in OPTION_NAMES.values()
    }
