"""Engine torchair: what TorchAir's documents describe, cold and warm; what is refused; the seed scripts."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.checkout import selected
from tests.support.npu_cases import CAPTURES, CASES, MODES, AllSeen, cold_and_warm, run
from tests.support.scripts import FUNCTIONS, UNKEPT, Runs
from warmrank import CompilerConfig
from warmrank.inference import cache_compile
from warmrank.worker.engines.torchair_vendor import instead_of_torch_compile, vendor_for
from warmrank.worker.errors import NotCapturable, NotPortable, RandomOp
from warmrank.worker.keys.sources import patch_sources


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> AllSeen:
    return cold_and_warm("emulated", tmp_path_factory.mktemp("caches"))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("temperature", ["cold", "warm"])
@pytest.mark.parametrize("mode", MODES)
def test_case_equals_eager(seen: AllSeen, mode: str, temperature: str, case: str) -> None:
    found = seen[mode, temperature][case]
    assert not found["wrong"], "\n".join(found["wrong"])
    assert found["captures"] == CAPTURES.get(case, [1])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mode", MODES)
def test_warm_process_compiles_nothing(seen: AllSeen, mode: str, case: str) -> None:
    cold, warm = (seen[mode, temperature][case]["outcomes"] for temperature in ("cold", "warm"))
    assert cold
    assert "compiled" in cold
    assert warm == ["loaded"] * len(cold)


def test_function_over_the_limit_of_captures_runs_eagerly(seen: AllSeen) -> None:
    for found in seen.values():
        assert found["capture_limit"]["notes"] == {"eager": 3}


def test_equal_compiles_write_equal_bytes(tmp_path: Path) -> None:
    """However many graphs each process compiled before."""
    cases = ("parameters", "mutated_inputs", "two_models", "constants", "returned_types")
    run("emulated", "npugraph_ex", tmp_path / "one", *cases)
    run("emulated", "npugraph_ex", tmp_path / "two", "dynamic_shapes", *reversed(cases))
    for case in cases:
        one, two = (
            [path.read_bytes() for path in sorted((tmp_path / name / case).rglob("compiled_module"))]
            for name in ("one", "two")
        )
        assert one
        assert one == two


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
    ],
)
def test_function_that_torchair_cannot_keep_is_refused(name, options, error, words, config, tmp_path):
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


def test_debug_shows_the_code_that_torchair_generates(config, tmp_path, said):
    config.mode = "reduce-overhead"
    logging.getLogger("torchair").setLevel(logging.DEBUG)
    cache_compile(Model().adds, config=config, cache_dir=tmp_path)(torch.ones(4))
    assert any("Codegen for" in line for line in said)


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


QUICK = ("input_meta", "programs")


def scripts(*names: str) -> list[Any]:
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    asked = selected(request, "script")
    names = [name for name in (*FUNCTIONS, *UNKEPT) if name in asked]
    return Runs(tmp_path_factory.mktemp("scripts"), names, npu=True)


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
