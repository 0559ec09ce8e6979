"""Engine torchair: what TorchAir's documents describe, cold and warm; what is refused; the seed scripts."""

from __future__ import annotations

import gc
import logging
import math
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.fuzz.parts.calls import CALLED, HIGHER_ORDER
from tests.fuzz.run import Servers
from tests.integration.test_fuzz import called
from tests.support.checkout import selected
from tests.support.scripts import FUNCTIONS, UNKEPT, Runs
from warmrank import CompilerConfig
from warmrank.inference import cache_compile, get_backend, set_dim_gears
from warmrank.worker.engines.torchair_vendor import instead_of_torch_compile, vendor_for
from warmrank.worker.errors import GearError, NotCapturable, NotPortable, RandomOp
from warmrank.worker.keys.sources import patch_sources

MODES = ("reduce-overhead", "npugraph_ex")
REFUSED = (
    "asserted sizes", "cloned outputs",
    "inputs over one block of memory", "other memory behind an input", "overlapping inputs",
    "reads at a number", "reads at a position", "returns its own tensors", "returns views of its input",
    "rounded floats of numbers", "strides of an input", "telling", "views by place in the storage",
)  # fmt: skip
"""Programs of the table that TorchAir cannot keep, most because an output is a view of an input."""
OTHERWISE = ("KV cache", "last column", "made of sizes", "recurrent")
"""What TorchAir's own passes make something else of, or raise at."""
FITTING = [
    name
    for name, each in CALLED.items()
    if not each.refused and name not in (*REFUSED, *OTHERWISE, *HIGHER_ORDER)
]
CAPTURES = {
    "beyond the capture limit": 0, "branch on a size": 3, "custom pool": 2, "fixed sizes": 2, "gears": 3,
    "nested dataclass": 3, "without capture": 0,
}  # fmt: skip
"""How many graphs TorchAir holds at the end."""


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with Servers("npu") as made:
        yield made


@pytest.mark.one_in(4)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FITTING)
def test_calls_compile_or_run_what_fits_and_a_later_process_loads(
    servers: Servers, tmp_path: Path, name: str, mode: str
) -> None:
    """As engine graph does, see `tests.integration.test_fuzz`."""
    cold, warm = (
        called(servers, tmp_path, name, kind, engine="torchair", mode=mode) for kind in ("cold", "warm")
    )
    outcomes = list(CALLED[name].cold)
    assert cold.outcomes == outcomes, cold
    assert warm.outcomes == ["loaded" if each == "compiled" else each for each in outcomes], warm
    assert cold.captures == CAPTURES.get(name, cold.captures or 1)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", REFUSED)
def test_what_torchair_cannot_keep_is_refused(servers: Servers, tmp_path: Path, name: str, mode: str) -> None:
    found = called(servers, tmp_path, name, "cold", engine="torchair", mode=mode)
    assert (found.outcome, found.detail.partition(":")[0] in ("NotPortable", "NotCapturable")) == (
        "refused",
        True,
    )


class Model(nn.Module):
    def drops(self, x: torch.Tensor) -> Any:
        return nn.functional.dropout(x, 0.5, training=True)

    def picks(self, x: torch.Tensor) -> Any:
        return x[x > 0]

    def views(self, x: torch.Tensor) -> Any:
        return x.add_(1)[0]

    def shares(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        x.add_(1)
        return x + y

    def adds(self, x: torch.Tensor) -> Any:
        return x + 1

    def without_memory(self, x: torch.Tensor) -> Any:
        return x + 1, torch.empty(x.shape, device="meta")

    def quantized(self, x: torch.Tensor) -> Any:
        return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)

    def casts(self, x: torch.Tensor) -> Any:
        return x.to(torch.bfloat16)

    def bits(self, x: torch.Tensor, n: int) -> Any:
        size = x.size(0)
        return x * (n & 6), x * (size << 1 | 1), abs(2 - n) * x, size > 4, n ^ size >> 1

    def halves(self, x: torch.Tensor) -> Any:
        half = x.size(0) / 2
        return x * int(half), math.floor(half), math.ceil(half), x.dtype


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What the logger `torchair` says, whoever else set its handlers and whether it propagates."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("torchair")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.WARNING)  # TorchAir's is ERROR
    yield lines
    logger.setLevel(level)
    logger.removeHandler(handler)


@pytest.fixture
def config() -> CompilerConfig:
    made = CompilerConfig()
    made.mode = "npugraph_ex"
    return made


def files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def test_equal_compiles_write_equal_bytes(config: CompilerConfig, tmp_path: Path) -> None:
    """However many graphs the process compiled before."""
    written = []
    for number in range(2):
        for method in (Model().adds, Model().shares):
            inputs = torch.ones(4), torch.ones(4)
            cache_compile(method, config=config, cache_dir=tmp_path / str(number))(
                *inputs[: 1 + (method.__name__ == "shares")]
            )
        written.append(
            [path.read_bytes() for path in sorted((tmp_path / str(number)).rglob("compiled_module"))]
        )
    assert len(written[0]) == 2
    assert written[0] == written[1]


@pytest.mark.parametrize("mode", MODES)
def test_cloned_outputs_outlive_later_calls(config: CompilerConfig, tmp_path: Path, mode: str) -> None:
    config.mode = mode
    config.debug.aclgraph.enable_output_clone = True
    function = cache_compile(Model().adds, config=config, cache_dir=tmp_path)
    kept = [function(torch.full((4,), value)) for value in (1.0, 2.0, 3.0)]
    assert [output.tolist() for output in kept] == [[2.0] * 4, [3.0] * 4, [4.0] * 4]


@pytest.mark.parametrize(
    ("name", "options", "error", "words"),
    [
        ("drops", {}, RandomOp, "random"),
        (
            "views",
            {"engine": "torchair"},
            NotPortable,
            r"output 0 of Model.views is a view of an input.*clone\(\).*engine graph",
        ),
        ("picks", {}, NotPortable, "depends on data, so TorchAir cannot capture it; use engine graph"),
        ("without_memory", {"engine": "torchair"}, NotPortable, "aten.empty.* is a tensor on device meta"),
        ("quantized", {"engine": "torchair"}, NotPortable, "quantize_per_tensor.* is a quantized tensor"),
    ],
)
def test_refusal_says_what_to_do_instead(name, options, error, words, config, tmp_path):
    function = cache_compile(getattr(Model(), name), config=config, cache_dir=tmp_path, **options)
    with pytest.raises(error, match=words):
        function(torch.ones(4))
    assert not files(tmp_path)


@pytest.mark.parametrize("marked", [False, True], ids=["view of an input", "marked argument"])
def test_engine_graph_compiles_what_torchair_cannot_keep(marked, config, tmp_path, said):
    config.npugraphex_config.frozen_parameter = marked
    method = "adds" if marked else "views"
    for verb in ("compiled", "loaded"):
        function = cache_compile(getattr(Model(), method), config=config, cache_dir=tmp_path)
        for _ in range(3):
            x, expected = torch.ones(4), torch.ones(4)
            if marked:
                torch._dynamo.mark_static_address(x)
            assert torch.equal(function(x), getattr(Model(), method)(expected))
            assert torch.equal(x, expected)
        assert function.last_result is not None
        assert function.last_result.outcome == verb
        assert function.variants[0].stored.artifact.engine == "graph"
    assert len([line for line in said if "is compiled by engine graph" in line]) == 1


@pytest.mark.parametrize("mode", MODES)
def test_functions_of_math_and_constants_without_a_word_of_torchair(mode, config, tmp_path, said):
    """TorchAir's code leaves these functions undefined, and it cannot write a frame that holds a dtype."""
    config.mode = mode
    for verb in ("compiled", "loaded"):
        function = cache_compile(Model().halves, config=config, cache_dir=tmp_path, engine="torchair")
        for size in (5, 4, 5):
            y, *numbers = function(torch.ones(size))
            assert torch.equal(y, torch.full((size,), float(size // 2)))
            assert numbers == [size // 2, -(-size // 2), torch.float32]
        assert function.last_result is not None
        assert function.last_result.outcome == verb
    assert not any("Skip cache" in line for line in said)


@pytest.mark.parametrize("mode", MODES)
def test_all_operators_of_numbers_and_casts_of_arguments_are_taken(mode, config, tmp_path):
    config.mode, model = mode, Model()
    for verb in ("compiled", "loaded"):
        functions = [
            cache_compile(method, config=config, cache_dir=tmp_path, engine="torchair")
            for method in (model.bits, model.casts)
        ]
        bits, casts = functions
        for size, n in ((4, 5), (6, 9), (4, 7)):
            x = torch.rand(size)
            torch.testing.assert_close(bits(x, n), model.bits(x, n))
            assert torch.equal(casts(x), model.casts(x))
        assert [function.last_result and function.last_result.outcome for function in (bits, casts)] == [
            verb
        ] * 2


@pytest.mark.parametrize("mode", MODES)
def test_size_that_is_no_gear_is_refused_through_torch_compile(mode, config):
    config.mode = mode
    adds = torch.compile(Model().adds, backend=get_backend(compiler_config=config), fullgraph=True)
    x = torch.ones(2)
    set_dim_gears(x, {0: [2, 4]})
    for given in (x, torch.ones(4), torch.ones(2)):
        assert torch.equal(adds(given), given + 1)
    with pytest.raises(GearError, match=r"x dimension 0 is 3; allowed combinations: \(4,\), \(2,\)"):
        adds(torch.ones(3))


def test_debug_shows_the_code_that_torchair_generates(config, tmp_path, said):
    config.mode = "reduce-overhead"
    logging.getLogger("torchair").setLevel(logging.DEBUG)
    cache_compile(Model().adds, config=config, cache_dir=tmp_path)(torch.ones(4))
    assert any("Codegen for" in line for line in said)


@torch.library.custom_op("warmrank_npu::scarce", mutates_args=())
def scarce(x: torch.Tensor) -> torch.Tensor:
    if len(_MEMORY) < 1:
        raise MemoryError("out of memory")
    return x + 1


@scarce.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


_MEMORY: list[str] = []


class Scarce(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return scarce(x) * 2


@pytest.mark.parametrize("mode", MODES)
def test_call_after_a_capture_that_failed_captures_again(mode: str, config: Any, tmp_path: Path) -> None:
    config.mode = mode
    function = cache_compile(Scarce().forward, config=config, cache_dir=tmp_path, engine="torchair")
    _MEMORY.clear()
    for _ in range(2):
        with pytest.raises(MemoryError, match="out of memory"):
            function(torch.ones(4))
    _MEMORY.append("freed")
    for _ in range(2):
        assert torch.equal(function(torch.ones(4)), torch.full((4,), 4.0))


def test_input_that_shares_memory_with_one_that_is_written_to_is_refused(config: Any, tmp_path: Path) -> None:
    function = cache_compile(Model().shares, config=config, cache_dir=tmp_path)
    rows = torch.zeros(3, 4)
    function(torch.zeros(2, 4), rows[1:])
    with pytest.raises(NotCapturable, match=r"mutated input .* shares memory with another input"):
        function(rows[:2], rows[1:])


def test_arguments_that_are_marked_static_are_refused_with_frozen_parameters(config, tmp_path):
    config.npugraphex_config.frozen_parameter = True
    function = cache_compile(Model().adds, config=config, cache_dir=tmp_path, engine="torchair")
    x = torch.ones(4)
    torch._dynamo.mark_static_address(x)
    with pytest.raises(NotPortable, match=r"argument x of Model\.adds is marked by mark_static_address"):
        function(x)


class Strides(nn.Module):
    """Returns the strides of its input, for which TorchAir returns those of a dense tensor."""

    def forward(self, x: torch.Tensor) -> tuple[tuple[int, ...], torch.Tensor]:
        return x.stride(), x * 2


def test_strides_of_an_input_are_refused_or_left_to_engine_graph(config: Any, tmp_path: Path) -> None:
    x = torch.zeros(4, 8)[:, ::2]
    refusing = cache_compile(Strides().forward, config=config, cache_dir=tmp_path, engine="torchair")
    with pytest.raises(NotPortable, match=r"computes with x\.stride\(\)"):
        refusing(x)
    assert cache_compile(Strides().forward, config=config, cache_dir=tmp_path)(x)[0] == (8, 2)


def test_threads_may_make_their_first_calls_at_once(config: Any, tmp_path: Path) -> None:
    models = [Model() for _ in range(4)]
    functions = [cache_compile(model.adds, config=config, cache_dir=tmp_path) for model in models]
    compile_before = torch.compile
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda function: function(torch.ones(4)).clone(), functions))
    assert all(torch.equal(result, torch.full((4,), 2.0)) for result in found)
    assert torch.compile is compile_before


@pytest.mark.parametrize("mode", ["npugraph_ex", "reduce-overhead"])
def test_other_threads_find_torch_as_it_is_while_torchair_is_asked(mode: str) -> None:
    before, patches = torch.compile, patch_sources()
    theirs = vars(vendor_for(mode).cache)
    with instead_of_torch_compile(vendor_for(mode), lambda *_, **__: None), ThreadPoolExecutor(1) as pool:
        assert torch.compile is before
        assert patch_sources() == patches
        assert theirs["torch"].compile(abs) is None
        assert pool.submit(lambda: theirs["torch"].compile(abs)).result() is not None


def test_private_directory_ends_with_the_function(config: Any, tmp_path: Path) -> None:
    function = cache_compile(Model().adds, config=config, cache_dir=tmp_path)
    function(torch.ones(4))
    runner: Any = function.variants[0].runner
    made = runner._capturing._made.private
    (directory,) = (path for path in made.parents if path.name.startswith("warmrank-torchair-"))
    assert directory.is_dir()
    del function, runner
    gc.collect()
    assert not directory.exists()


def test_engine_graph_takes_what_torchair_refuses(tmp_path: Path) -> None:
    model = Model()
    function = cache_compile(model.picks, engine="graph", cache_dir=tmp_path)
    x = torch.tensor([1.0, -1.0, 2.0])
    assert torch.equal(function(x), model.picks(x))


SIGNALS = """
import signal
from tests import npu_emulator
npu_emulator.install()
from warmrank.worker.engines.torchair_vendor import vendor_for
before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
vendor_for("npugraph_ex"), vendor_for("reduce-overhead")
assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
"""


def test_importing_torchair_leaves_signals_alone() -> None:
    subprocess.run([sys.executable, "-c", SIGNALS], check=True, timeout=400)


COLLECTIVES = """
import sys, torch, torch.distributed as dist
from tests import npu_emulator
npu_emulator.install()
from warmrank.inference import cache_compile
dist.init_process_group("hccl", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
kernels = torch.library.Library("npu_define", "IMPL")
kernels.impl("broadcast", lambda x, *rest: x.clone(), "CPU")
class Model(torch.nn.Module):
    def broadcasts(self, x):
        y = x * 3
        dist.broadcast(y, 0)
        return y + 1
    def exchanges(self, x):
        y = torch.empty_like(x)
        dist.all_to_all_single(y, x * 2)
        return y + 1
x, model = torch.ones(2, 2), Model()
for method, engine in ((model.broadcasts, "torchair"), (model.exchanges, "graph")):
    function = cache_compile(method, cache_dir=sys.argv[1])
    assert torch.equal(function(x), method(x))
    assert function.variants[0].stored.artifact.engine == engine
"""


def test_first_function_of_a_process_may_broadcast_and_exchange(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", COLLECTIVES, str(tmp_path)], check=True, timeout=400)


QUICK = ("input_meta", "programs")


def scripts(*names: str) -> list[Any]:
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("scripts"), selected(request, "script"), npu=True)


@pytest.mark.parametrize("script", scripts(*FUNCTIONS))
def test_second_run_loads_what_the_first_one_saved(script: str, runs: Runs) -> None:
    runs.check(script)


@pytest.mark.parametrize("script", scripts("input_meta"))
def test_the_log_names_no_private_files(script: str, runs: Runs) -> None:
    """Private directories of engine torchair: TorchAir logs its own cache's lines about them."""
    runs.check(script)
    assert "warmrank-torchair-" not in runs.printed(script)


@pytest.mark.parametrize("script", scripts(*UNKEPT))
def test_script_runs_end_to_end_and_keeps_nothing(script: str, runs: Runs) -> None:
    assert runs.first(script) == []
