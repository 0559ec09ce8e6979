"""A cached function: what it is made of, its first calls, where its artifacts lie; copies of its module."""

from __future__ import annotations

import copy
import functools
import io
import multiprocessing
import os
import pickle
import re
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from tests.support.devices import fake_world
from tests.support.small_models import Plain, Unfit
from tests.support.tracing import ROWS, cached, files, model_of, outcome, reason
from warmrank.inference import cache_compile, get_backend
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.errors import (
    BackwardNotSupported,
    BadConfig,
    BadFunction,
    CompileForbidden,
    GraphBreak,
    RandomOp,
)
from warmrank.worker.runtime.find import model_directory

pytestmark = pytest.mark.usefixtures("no_grad")


def test_artifact_lies_at_torchairs_path_and_is_private(cache: Path, affine_artifact: Path) -> None:
    path = affine_artifact.relative_to(cache).as_posix()
    assert re.fullmatch(r"Plain_dynamic_aclgraphcache_[0-9a-f]{32}/affine/compiled_module", path)
    assert stat.S_IMODE(affine_artifact.stat().st_mode) == 0o600
    assert stat.S_IMODE(affine_artifact.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("options", "partition"),
    [
        ({}, "world4global_rank2"),
        ({"global_rank": 3}, "world4global_rank3"),
        ({"tp_rank": 0, "pp_rank": 1}, "world4global_rank2_tp_rank0_pp_rank1"),
    ],
)
def test_ranks_of_torch_distributed_are_in_the_path(cache, options, partition):
    with fake_world(rank=2, world_size=4):
        assert cached(Plain().affine, cache, **options).place().function_dir.parent.name == partition


def compiled_in_spite_of(cache: Path) -> str:
    """Compiles and runs; gives the reason of the miss."""
    function = cached(Plain().affine, cache)
    assert torch.equal(function(ROWS), model_of(function).affine(ROWS))
    assert outcome(function) == "compiled"
    return reason(function)


class Bomb:
    def __reduce__(self) -> Any:
        return os.mkdir, ("exploded",)


PICKLED = pickle.dumps(Bomb())
DAMAGED = {
    "cut": lambda whole: whole[:-1],
    "empty": lambda whole: b"",
    "half": lambda whole: whole[: len(whole) // 2],
    "zeroed": lambda whole: bytes(len(whole)),
    "a pickle, as TorchAir writes them": lambda _: PICKLED,
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_artifact_is_set_aside_never_unpickled_and_compiled_once_more(
    cache, affine_artifact, damage, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    whole = affine_artifact.read_bytes()
    damaged = DAMAGED[damage](whole)
    affine_artifact.write_bytes(damaged)
    said = compiled_in_spite_of(cache)
    assert damaged != PICKLED or damage in said
    function = cached(Plain().affine, cache)
    assert torch.equal(function(ROWS), model_of(function).affine(ROWS))
    assert outcome(function) == "loaded"
    assert affine_artifact.read_bytes() == whole
    assert affine_artifact.with_name("compiled_module.corrupt").read_bytes() == damaged
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("text", ["1", "true", "Yes"])
def test_compiling_that_is_forbidden_is_an_error_with_the_reason(text, cache, monkeypatch):
    monkeypatch.setenv("WARMRANK_NO_COMPILE", text)
    with pytest.raises(
        CompileForbidden,
        match=r"Plain.affine would have to be compiled, which is forbidden here: the cache holds",
    ) as raised:
        cached(Plain().affine, cache)(ROWS)
    assert raised.value.reason == "the cache holds nothing for Plain.affine"
    assert not cache.exists()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensor_is_refused_by_name_also_after_another(cache: Path) -> None:
    function = cached(Plain().affine, cache)
    function(ROWS)
    with pytest.raises(GraphBreak, match="NestedTensor"):
        function(torch.nested.nested_tensor([ROWS[:1], ROWS]))


def test_neither_yes_nor_no_is_an_error(cache, monkeypatch):
    monkeypatch.setenv("WARMRANK_NO_COMPILE", "maybe")
    with pytest.raises(BadConfig, match="WARMRANK_NO_COMPILE=maybe: expected 1 or 0"):
        cached(Plain().affine, cache)(ROWS)


def test_artifact_for_an_argument_with_gradients_is_not_used_where_they_are_recorded(cache: Path) -> None:
    function = cached(Plain().affine, cache)
    x = ROWS.clone().requires_grad_()
    for num_files in (0, 1):
        for called in (function, cached(model_of(function).affine, cache)):
            with (
                torch.enable_grad(),
                pytest.raises(BackwardNotSupported, match=r"argument x of Plain.affine requires gradients"),
            ):
                called(x)
        assert len(files(cache)) == num_files
        function(x)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_grad_mode_of_the_caller_makes_no_further_variant(cache: Path, mode: Any) -> None:
    function = cached(Plain().affine, cache)
    expected = function(ROWS).clone()
    with mode():
        assert torch.equal(function(ROWS), expected)
        found = function(ROWS + 1)
    assert len(function.variants) == 1
    assert not found.requires_grad


def test_failure_does_not_spoil_later_calls(cache: Path) -> None:
    model = Unfit()
    function = cached(model.drops, cache)
    with pytest.raises(RandomOp):
        function(ROWS)
    model.eval()
    assert torch.equal(function(ROWS), model.drops(ROWS))


def link_to_itself_elsewhere(artifact: Path) -> None:
    target = artifact.with_name("elsewhere")
    artifact.rename(target)
    artifact.symlink_to(target)


def directory(artifact: Path) -> None:
    artifact.unlink()
    artifact.mkdir()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (link_to_itself_elsewhere, "is a symbolic link, which is never followed; remove it"),
        (lambda artifact: artifact.chmod(0o644), "mode 0644"),
        (directory, "found Is a directory"),
    ],
    ids=["link", "readable by others", "directory"],
)
def test_what_is_not_this_users_own_file_is_left_where_it_is(cache, affine_artifact, spoil, words):
    spoil(affine_artifact)
    before = affine_artifact.lstat()
    assert words in compiled_in_spite_of(cache)
    assert affine_artifact.lstat().st_ino == before.st_ino
    assert not list(affine_artifact.parent.glob("*.corrupt*"))


@pytest.mark.parametrize(
    ("dynamic", "mode", "expected"),
    [
        (True, "reduce-overhead", "Llama_dynamic_aclgraphcache_0f"),
        (False, "reduce-overhead", "Llama_static_aclgraphcache_0f"),
        (True, "npugraph_ex", "Llama_dynamic_aclgraphcache_0f"),
        (True, "max-autotune", "Llama_dynamic_0f"),
    ],
)
def test_model_directory_is_torchairs(dynamic: bool, mode: str, expected: str) -> None:
    assert model_directory("Llama", dynamic=dynamic, mode=mode, key="0f") == expected


class Decorated(nn.Module):
    @staticmethod
    def static(x: torch.Tensor) -> torch.Tensor:
        return x

    @classmethod
    def of_class(cls, x: torch.Tensor) -> torch.Tensor:
        return x

    partial = functools.partialmethod(lambda self, x, y: x, y=1)


class NoModule:
    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x


def plain(x: torch.Tensor) -> torch.Tensor:
    return x


def with_limit(limit: int) -> CompilerConfig:
    config = CompilerConfig()
    config.debug.aclgraph.static_capture_size_limit = limit
    return config


@pytest.fixture
def model() -> Plain:
    return Plain()


@pytest.mark.parametrize(
    "function",
    [plain, Plain.affine, Plain(), Decorated.static, Decorated().static, NoModule().method,
     Decorated.of_class, Decorated().partial, torch.relu, len, "affine", None],
    ids=["function", "unbound", "module", "static", "static of an instance", "of no module", "class method",
         "partial", "operator", "builtin", "text", "none"],
)  # fmt: skip
def test_function_that_is_no_method_of_a_module_is_refused(function: Any) -> None:
    with pytest.raises(
        BadFunction, match=r"(?s)takes a bound method of an nn.Module, got .*; pass self.method"
    ):
        cache_compile(function)


def test_layer_without_shapes_is_refused_by_name() -> None:
    with pytest.raises(BadFunction, match=r"LazyLinear.weight has no shape yet; call the module once"):
        cache_compile(torch.nn.LazyLinear(3).forward)(torch.ones(2))


def test_method_of_c_is_refused_with_the_remedy() -> None:
    with pytest.raises(BadFunction, match=r"is a builtin_function_or_method, .*Cache a method that calls"):
        cache_compile(MethodType(len, nn.Linear(2, 2)))


def test_configuration_that_differs_from_the_backends_is_refused_option_by_option(model: Plain) -> None:
    backend = get_backend(compiler_config=with_limit(3))
    with pytest.raises(
        BadConfig, match=r"disagree \(debug.aclgraph.static_capture_size_limit: 5 / 3\); pass one of them"
    ):
        cache_compile(model.affine, config=with_limit(5), backend=backend)


def test_configuration_changed_later_does_not_change_what_is_asked(model: Plain) -> None:
    config = with_limit(3)
    cached = cache_compile(model.affine, config=config)
    config.debug.aclgraph.static_capture_size_limit = 5
    assert "static_capture_size_limit=3" in cached.request().components["config"]


def test_decompositions_of_the_backend_are_used_and_the_functions_own_win(model: Plain) -> None:
    add, mul = torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor
    backend = get_backend(custom_decompositions={add: plain, mul: plain})
    cached = cache_compile(model.affine, backend=backend, custom_decompositions={mul: torch.relu})
    same = cache_compile(model.affine, custom_decompositions={add: plain, mul: torch.relu})
    assert cached.request() == same.request()


ANOTHER_MAKE = r"expected what warmrank.get_npu_backend\(compiler_config=...\) returns"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("guards", "never", "guards is 'never'; allowed: 'always', 'once', 'skip'"),
        ("guards", True, "guards is True; allowed: 'always', 'once', 'skip'"),
        ("on_recompile", "stop", "on_recompile is 'stop'; allowed: 'add', 'abandon'"),
        ("dynamic", 1, r"dynamic is 1 \(int\); expected bool"),
        ("global_rank", "0", r"global_rank is '0' \(str\); expected int"),
        ("global_rank", True, r"global_rank is True \(bool\); expected int"),
        ("tp_rank", 0.0, r"tp_rank is 0.0 \(float\); expected int"),
        ("pp_rank", -1, "pp_rank is -1; ranks count from 0"),
        ("ge_cache", "yes", r"ge_cache is 'yes' \(str\); expected bool"),
        ("config", "reduce-overhead", r"config is 'reduce-overhead' \(str\); expected CompilerConfig"),
        ("config", {"mode": "reduce-overhead"}, r"config is {.*} \(dict\); expected CompilerConfig"),
        ("cache_dir", 3, r"cache_dir is 3 \(int\); expected"),
        ("cache_dir", b"cache", r"cache_dir is b'cache' \(bytes\); expected"),
        ("custom_decompositions", [plain], r"custom_decompositions is \[.*\] \(list\); expected"),
        ("backend", "npu", ANOTHER_MAKE),
        ("backend", plain, ANOTHER_MAKE),
        ("backend", functools.partial(plain), ANOTHER_MAKE),
        ("guard", 1, r"no parameter 'guard'; did you mean 'guards'\?"),
        ("on_recompilation", 1, "did you mean 'on_recompile'"),
        ("cachedir", 1, "did you mean 'cache_dir'"),
        ("dynamics", 1, "did you mean 'dynamic'"),
        ("tprank", 1, "did you mean 'tp_rank'"),
        ("custom_decomposition", 1, "did you mean 'custom_decompositions'"),
    ],
)
def test_parameter_that_is_not_allowed_is_refused_by_name(
    model: Plain, name: str, value: Any, said: str
) -> None:
    with pytest.raises(BadConfig, match=said) as raised:
        cache_compile(model.affine, **{name: value})
    assert raised.value.parameter == name


class Decoder(nn.Module):
    def __init__(self, cache: Path) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.scale = 2.0
        self.cached_decode = cache_compile(self.decode, cache_dir=cache, guards="always", rng="allow")

    def decode(self, x: torch.Tensor) -> Any:
        return self.layer(x) * self.scale

    def forward(self, x: torch.Tensor) -> Any:
        return self.cached_decode(x)


def saved(module: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),  # noqa: S301 - made here
    "torch.save": saved,
}


@pytest.mark.parametrize("called", [False, True], ids=["before the first call", "after it"])
@pytest.mark.parametrize("way", WAYS)
def test_copys_function_is_bound_to_the_copy(way: str, called: bool, tmp_path: Path) -> None:
    model = Decoder(tmp_path)
    if called:
        model(ROWS)
    other = WAYS[way](model)
    assert other.cached_decode.module is other
    assert other.cached_decode.variants == ()
    other.layer.weight.mul_(3)
    torch.testing.assert_close(other(ROWS), other.decode(ROWS), rtol=0, atol=0)
    torch.testing.assert_close(model(ROWS), model.decode(ROWS), rtol=0, atol=0)
    assert outcome(other.cached_decode) == ("loaded" if called else "compiled")


def _serve(model: Decoder, results: Any) -> None:
    with torch.no_grad():
        same = torch.equal(model(ROWS), model.decode(ROWS))
    results.put((same, outcome(model.cached_decode)))


@pytest.mark.slow
def test_spawned_process_serves_a_shared_module(tmp_path: Path) -> None:
    model = Decoder(tmp_path)
    model(ROWS)
    model.share_memory()
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_serve, args=(model, results))
    process.start()
    assert results.get(timeout=120) == (True, "loaded")
    process.join(60)
    torch.testing.assert_close(model(ROWS), model.decode(ROWS), rtol=0, atol=0)


def test_relative_directory_is_that_of_the_first_call(tmp_path, monkeypatch):
    first, later = tmp_path / "first", tmp_path / "later"
    first.mkdir()
    later.mkdir()
    model = Decoder(Path("cache"))
    monkeypatch.chdir(first)
    model(ROWS)
    monkeypatch.chdir(later)
    model(torch.ones(1, 4))
    assert list(later.iterdir()) == []
    assert len(list(first.rglob("compiled_module*"))) > 0


CUBE = ROWS.expand(3, 2, 4).clone()


class Nested(nn.Module):
    def __init__(self, cache: Path, scale: float = 2.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        self.scale = scale
        config = CompilerConfig()
        config.debug.aclgraph.enable_output_clone = True  # for calls in threads
        self.cached_outer = cache_compile(self.outer, cache_dir=cache, config=config)
        self.cached_inner = cache_compile(self.inner, cache_dir=cache, config=config)
        self.cached_often = cache_compile(self.often, cache_dir=cache)

    def inner(self, x: torch.Tensor) -> Any:
        return self.layer(x) * self.scale

    def outer(self, x: torch.Tensor) -> Any:
        return self.cached_inner(x) + self.cached_inner(x * 2)

    def often(self, x: torch.Tensor, times: int) -> Any:
        return self.cached_often(torch.relu(x), times - 1) if times else self.inner(x)


def eagerly(model: Nested, x: torch.Tensor) -> Any:
    return model.inner(x) + model.inner(x * 2)


def test_function_called_by_another_is_part_of_it_with_what_it_reads(tmp_path: Path) -> None:
    for expected in ("compiled", "loaded"):
        model = Nested(tmp_path)
        torch.testing.assert_close(model.cached_outer(ROWS), eagerly(model, ROWS), rtol=0, atol=0)
        assert outcome(model.cached_outer) == expected
        assert model.cached_inner.variants == ()
    model = Nested(tmp_path, scale=3.0)
    torch.testing.assert_close(model.cached_outer(ROWS), eagerly(model, ROWS), rtol=0, atol=0)
    assert "scale" in reason(model.cached_outer)


def scaled_by_layer(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return x * layer.bias


def test_layer_whose_forward_is_a_cached_function_is_part_of_its_caller(tmp_path: Path) -> None:
    for expected in ("compiled", "loaded"):
        first = nn.Linear(4, 4)
        model = nn.Sequential(first, nn.ReLU())
        vars(first)["forward"] = cache_compile(first.forward, cache_dir=tmp_path)
        function = cache_compile(model.forward, cache_dir=tmp_path)
        assert torch.equal(function(ROWS), nn.Linear.forward(first, ROWS).relu())
        assert outcome(function) == expected
        vars(first)["forward"] = functools.partial(scaled_by_layer, first)  # as accelerate does
        assert torch.equal(function(ROWS), (ROWS * first.bias).relu())


def test_function_inside_torch_compile(tmp_path: Path) -> None:
    model = Nested(tmp_path)
    compiled = torch.compile(model.outer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(ROWS), eagerly(model, ROWS), rtol=0, atol=0)


def test_function_inside_vmap_and_grad(tmp_path: Path) -> None:
    model = Nested(tmp_path)
    model.cached_inner(CUBE[0])
    torch.testing.assert_close(torch.vmap(model.cached_inner)(CUBE), torch.vmap(model.inner)(CUBE))
    for function in (model.cached_inner, model.inner):
        torch.testing.assert_close(
            torch.func.grad(lambda x, f=function: f(x).sum())(ROWS),
            torch.func.grad(lambda x: model.inner(x).sum())(ROWS),
        )


def test_function_inside_other_traces_is_traced_through(tmp_path: Path) -> None:
    model = Nested(tmp_path)
    model.cached_inner(ROWS)
    graph = make_fx(model.cached_inner)(ROWS)
    torch.testing.assert_close(graph(-ROWS), model.inner(-ROWS))
    exported = torch.export.export(_Calling(model), (ROWS,)).module()
    torch.testing.assert_close(exported(-ROWS), model.inner(-ROWS))


class _Calling(nn.Module):
    def __init__(self, model: Nested) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> Any:
        return self.model.cached_inner(x)


def test_threads_and_hooks_call_one_function(tmp_path: Path) -> None:
    model = Nested(tmp_path)
    calling = _Calling(model)
    seen = []
    calling.register_forward_hook(lambda _module, args, _result: seen.append(model.cached_outer(*args)))
    with ThreadPoolExecutor(4) as pool:

        def call(scale: float) -> Any:
            with torch.no_grad():
                return calling(ROWS * scale).clone()

        results = list(pool.map(call, (1.0, 2.0, 3.0, 4.0)))
    for scale, result in zip((1.0, 2.0, 3.0, 4.0), results, strict=True):
        torch.testing.assert_close(result, model.inner(ROWS * scale))
    assert len(seen) == 4
