"""Engine ``graph``: the traced graph as source, and back. Engine ``aoti`` without a compile."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from tests.support.small_models import Cached, Plain, Spread
from tests.support.tracing import cached, compiles_ahead, in_mode, traced
from warmrank.cache_store.errors import UnusableCache
from warmrank.worker.compile.analysis import analyse
from warmrank.worker.engines import check_choice
from warmrank.worker.engines.aoti import AotiEngine, CompiledGraph, pack, unpack
from warmrank.worker.engines.aoti_compile import compile_place, divide
from warmrank.worker.engines.graph import GraphEngine, unpack_constants
from warmrank.worker.engines.graph_source import BINDINGS, pack_constants
from warmrank.worker.engines.overlap import OverlapCheck
from warmrank.worker.engines.toolchain import check_cpp_compiler
from warmrank.worker.errors import ArtifactCorrupt, ArtifactMissing, BadConfig, NotPortable, ToolchainError
from warmrank.worker.torch_private.operators import at_path
from warmrank.worker.torch_private.recording import Watch, leaves
from warmrank.worker.torch_private.tracing import Trace

ROWS = torch.arange(8.0).reshape(2, 4)
ENGINE = GraphEngine()


def sections_of(trace: Trace) -> dict[str, bytes]:
    built = ENGINE.compile(trace.lowered, analyse(trace.lowered, "self"))
    return dict(built.sections)


@torch.library.custom_op("warmrank_graph::total", mutates_args=())
def total(x: torch.Tensor) -> int:
    return int(x.sum())


@total.register_fake
def _(x: torch.Tensor) -> Any:
    return torch.library.get_ctx().new_dynamic_size()


class Weighed(nn.Module):
    """Calls an operator of the user's that returns a number, and no tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weighed: torch.Tensor = x * total(x)
        return weighed


@pytest.mark.usefixtures("no_grad")
def test_operator_that_returns_a_number_alone_is_run(tmp_path: Path) -> None:
    model = Weighed()
    function = cached(model.forward, tmp_path)
    for factor in (1, 2):
        assert torch.equal(function(ROWS * factor), model(ROWS * factor))


class Arguments(nn.Module):
    """Operators whose arguments are of every kind that a graph holds."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.to(torch.float64, memory_format=torch.contiguous_format)
        y = y.clamp(min=-math.inf, max=1e300).sum(dim=[0, -1], keepdim=True)
        z = torch.full((2, 3), math.inf, dtype=torch.float64, device="cpu")
        picked = torch.cat([x, x], 1)[:, None, ..., ::2][torch.tensor([0, 1])]
        return (y + z).nan_to_num(nan=0.5) + picked.mean() + torch.zeros_like(x, layout=torch.strided)[0, 0]


class SameConstant(nn.Module):
    """Uses one tensor of the closure twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = torch.tensor([1, 2, 4, 8])
        return x * table + table


class Numbers(nn.Module):
    """Arithmetic on sizes, and a size among the outputs."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        rows = x.shape[0]
        half = max(rows // 2, 1)
        return x[:half] * (rows + 1) / math.sqrt(2), rows * 3


def test_graph_with_arguments_of_every_kind_computes_what_eager_computes() -> None:
    sections = sections_of(traced(Arguments().forward, ROWS, dynamic=False))
    with torch.no_grad():
        (result,) = ENGINE.load(sections, {}, {})(ROWS)
    assert torch.equal(result, Arguments().forward(ROWS))


DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8,
    torch.uint8, torch.bool, torch.complex64,
]  # fmt: skip


def exactly_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    bytes_of = [item.contiguous().view(-1).view(torch.uint8) for item in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*bytes_of)


@given(
    tensors=st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3), st.integers(0, 2**31)),
        max_size=4,
    )
)
def test_constants_round_trip(tensors: list[tuple[torch.dtype, list[int], int]]) -> None:
    generator = torch.Generator()
    made = []
    for dtype, shape, seed in tensors:
        generator.manual_seed(seed)
        made.append(torch.randint(0, 100, shape, generator=generator).to(dtype))
    back = unpack_constants(pack_constants(made))
    assert [item.shape for item in back] == [item.shape for item in made]
    assert all(exactly_equal(*pair) for pair in zip(made, back, strict=True) if pair[0].numel())


METHODS = [Plain().affine, Cached().store, Spread().forward, SameConstant().forward, Numbers().forward]


@pytest.fixture(scope="module")
def two_rounds() -> list[dict[str, dict[str, bytes]]]:
    """The sections of each method, twice; between the two every counter of Dynamo moves on."""
    return [{method.__qualname__: sections_of(traced(method, ROWS)) for method in METHODS} for _ in range(2)]


@pytest.mark.parametrize("name", [method.__qualname__ for method in METHODS])
def test_sections_are_equal_bytes_for_equal_graphs(two_rounds, name):
    assert two_rounds[0][name] == two_rounds[1][name]


def test_constant_without_data_is_refused_by_name() -> None:
    with pytest.raises(NotPortable, match=r"constant tensor on device meta"):
        pack_constants([torch.ones(2, device="meta")])


def test_constants_of_two_loads_are_apart() -> None:
    data = pack_constants([torch.ones(2)])
    first, second = unpack_constants(data), unpack_constants(data)
    first[0].add_(1.0)
    assert torch.equal(second[0], torch.ones(2))


_A = torch.linspace(-2.0, 2.0, 24).reshape(2, 3, 4)
_B = torch.linspace(1.0, 3.0, 24).reshape(2, 3, 4)
_M = torch.linspace(-1.0, 1.0, 12).reshape(3, 4)
_N = torch.linspace(-1.0, 1.0, 8).reshape(4, 2)
_I = torch.tensor([1, 0])
_W = torch.linspace(0.5, 1.5, 4)

_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "pow.Tensor_Scalar": (_B, 2),
    "mean.dim": (_A, [-1], True),
    "sum.dim_IntList": (_A, [0, 2], False),
    "softmax.int": (_A, -1),
    "matmul.default": (_M, _N),
    "mm.default": (_M, _N),
    "bmm.default": (_A, _B.transpose(1, 2)),
    "addmm.default": (torch.ones(3, 2), _M, _N),
    "reshape.default": (_A, [6, -1]),
    "transpose.int": (_A, 0, 2),
    "permute.default": (_A, [2, 0, 1]),
    "unsqueeze.default": (_A, 1),
    "squeeze.dim": (_A[:, :1], 1),
    "select.int": (_A, 1, 2),
    "index_select.default": (_A, 1, _I),
    "gather.default": (_M, 1, torch.tensor([[0, 1], [2, 3], [1, 1]])),
    "cat.default": ([_A, _B], 1),
    "stack.default": ([_A, _B], 2),
    "chunk.default": (_A, 2, -1),
    "unbind.int": (_A, 1),
    "where.self": (_A > 0, _A, _B),
    "masked_fill.Scalar": (_A, _A > 0, 7.0),
    "embedding.default": (_M, _I, -1, False, False),
    "layer_norm.default": (_A, [4], _W, _W, 1e-5),
    "rms_norm.default": (_A, [4], _W, 1e-5),
    "bitwise_and.Tensor": (_A > 0, _B > 2),
    "logical_not.default": (_A > 0,),
    "view.default": (_A, [2, 12]),
    "expand.default": (_A[:, :1], [2, 3, 4]),
    "index_copy_.default": (_M.clone(), 0, _I, torch.zeros(2, 4)),
    "to.dtype": (_A, torch.float64),
    "linear.default": (_A, torch.ones(5, 4), torch.ones(5)),
    "scaled_dot_product_attention.default": (_A, _B, _A),
}
_UNARY = {
    "neg", "rsqrt", "sqrt", "exp", "cos", "sin", "tanh", "sigmoid", "relu", "contiguous", "detach", "gelu",
    "silu",
}  # fmt: skip


class Recorder(Watch):
    """Records the overloads that are dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def called(self, func: Any, args: Any, kwargs: Any) -> Any:
        self.seen.append(str(func))
        return func(*args, **kwargs)


def _arguments(path: str) -> tuple[Any, ...]:
    name = path.removeprefix("torch.ops.aten.")
    base, _, overload = name.partition(".")
    if name in _ARGUMENTS:
        return _ARGUMENTS[name]
    if base in _UNARY or name == "sum.default":
        return (_B,)
    if base.endswith("_"):
        return (_A.clone(), _B)
    return (_A, 0.5 if overload == "Scalar" else _B)


def _run(function: Any, arguments: tuple[Any, ...]) -> tuple[Any, list[str]]:
    copies = tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in arguments)
    with torch.no_grad(), Recorder() as recorder:
        result = function(*copies)
    return result, recorder.seen


@pytest.mark.parametrize("path", sorted(BINDINGS))
def test_binding_reaches_the_same_overload(path: str) -> None:
    arguments = _arguments(path)
    wanted, wanted_operators = _run(at_path(path), arguments)
    got, got_operators = _run(at_path(BINDINGS[path]), arguments)
    assert got_operators == wanted_operators
    for ours, theirs in zip(leaves(got), leaves(wanted), strict=True):
        assert torch.equal(ours, theirs)


def test_size_that_a_decomposition_asked_for_is_fixed() -> None:
    def by_rows(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x + x if x.shape[0] == 2 else x - x

    trace = traced(Plain().affine, torch.ones(2, 4), decompositions={torch.ops.aten.mul.Tensor: by_rows})
    kinds = {(guard.kind, guard.source): guard for guard in trace.guards}
    assert kinds["TENSOR_MATCH", "L['x']"].sizes == (2, 4)


class Shapes(nn.Module):
    """Methods whose results each show one thing."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Buffer(torch.zeros(8))

    def views_only(self, x: torch.Tensor) -> Any:
        return x[1:], x.t(), x.shape[0] * 2, x

    def written(self, x: torch.Tensor) -> Any:
        self.seen.add_(x[0])
        return self.seen.view(2, 4), x + self.seen

    def reshaped(self, x: torch.Tensor) -> Any:
        doubled = x * 2
        row = doubled[0]
        same = doubled.unsqueeze_(0)
        same.add_(1)
        doubled.transpose_(0, 2).squeeze_()
        return doubled, same, row, doubled.shape[0]


MODULE = Shapes()
X = torch.arange(32.0).reshape(4, 8)


def test_view_of_a_written_input_is_made_by_the_tail() -> None:
    trace = traced(MODULE.written, X)
    found = divide(trace.lowered.graph)
    sources = [item.source for item in trace.lowered.inputs]
    (written,) = found.written
    assert "seen" in sources[written]
    assert found.tail_inputs == (written,)
    assert found.library is not None
    (output,) = (node for node in found.library.graph.nodes if node.op == "output")
    assert len(output.args[0]) == 1


def test_graph_of_views_runs_without_a_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmrank.worker.engines.aoti_compile.compile_library", None)
    lowered = traced(MODULE.views_only, X).lowered
    built = AotiEngine().compile(lowered, analyse(lowered, "self"))
    assert built.files == {}
    kernels = {**json.loads(built.sections["aoti"]), "file": "ge_cache_0.pt2"}
    gone = {"ge_cache_0.pt2": Path("ge_cache_0.pt2")}  # verified, and removed before it is opened
    with pytest.raises(ArtifactMissing, match="ge_cache_0"):
        AotiEngine().load({**built.sections, "aoti": json.dumps(kernels).encode()}, gone, {})
    graph = AotiEngine().load(built.sections, {}, {})
    inputs = [X if item.is_tensor else X.shape[0] for item in lowered.inputs]
    tail, turned, doubled = graph(*inputs)
    assert (tail.data_ptr(), turned.shape, doubled) == (X[1:].data_ptr(), (8, 4), 8)


@compiles_ahead
@pytest.mark.usefixtures("no_grad")
def test_tensor_of_the_graph_s_own_is_reshaped_in_place(tmp_path: Path) -> None:
    function = cached(MODULE.reshaped, tmp_path, config=in_mode("max-autotune"))
    *wanted, rows = MODULE.reshaped(X)
    *got, number = function(X)
    assert number == rows
    assert all(map(torch.equal, got, wanted))
    assert [value.stride() for value in got] == [value.stride() for value in wanted]
    assert got[0].data_ptr() == got[1].data_ptr() == got[2].data_ptr()


def test_input_that_is_reshaped_in_place_is_refused_by_name() -> None:
    graph = make_fx(lambda x: torch.ops.aten.t_(x) + 1)(X.clone())
    with pytest.raises(NotPortable, match=r"aten\.t_\.default changes the shape of a tensor in place"):
        divide(graph)


def compiled(run: Callable[[list[torch.Tensor]], list[torch.Tensor]], **changed: Any) -> CompiledGraph:
    call: dict[str, Any] = {
        "tensors": [0, 1], "numbers": [], "tail_inputs": [], "written": [],
        "classes": ["user", "mutated"], "device": "cpu",
    }  # fmt: skip
    return CompiledGraph(
        {**call, **changed}, open=lambda _: run, constants=(), tail=None, replay=lambda *_: ("replayed",)
    )


def test_results_in_one_buffer_are_taken_apart() -> None:
    buffer = torch.zeros(4)
    graph = compiled(lambda taken: [buffer, buffer, taken[0]])
    for _ in range(2):
        results = graph(torch.ones(4), torch.ones(4))
        assert len({value.data_ptr() for value in results}) == 3
        assert [value.tolist() for value in results] == [[0.0] * 4, [0.0] * 4, [1.0] * 4]


def failing(_taken: Any) -> Any:
    raise RuntimeError("no kernel\n# of this kind")


def test_graph_whose_kernels_fail_is_replayed_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    graph = compiled(failing)
    with caplog.at_level(logging.WARNING, logger="torchair"):
        for _ in range(2):
            assert graph(torch.zeros(1), torch.zeros(1)) == ("replayed",)
    assert caplog.text.count("(no kernel)") == 1


def test_graph_whose_kernels_may_have_written_is_not_run_again() -> None:
    with pytest.raises(RuntimeError, match="no kernel"):
        compiled(failing, written=[1])(torch.zeros(1), torch.zeros(1))


def test_shared_inputs_of_a_writing_graph_are_replayed(caplog: pytest.LogCaptureFixture) -> None:
    graph = compiled(lambda _: [torch.zeros(1)], written=[1])
    memory = torch.zeros(8)
    with caplog.at_level(logging.WARNING, logger="torchair"):
        assert graph(memory[:4], memory[2:6]) == ("replayed",)
        assert graph(memory[:4], memory) == ("replayed",)
    assert caplog.text.count("share memory") == 1
    assert graph(memory[:4], memory[4:])[0].tolist() == [0.0]


def test_write_that_torch_refuses_is_replayed() -> None:
    graph = compiled(lambda _: [torch.zeros(1)], written=[1])
    with torch.inference_mode():
        made_there = torch.ones(4)
        assert graph(torch.zeros(4), made_there)[0].tolist() == [0.0]
    assert graph(torch.zeros(4), made_there) == ("replayed",)
    assert graph(torch.zeros(4), torch.ones(4))[0].tolist() == [0.0]


@pytest.mark.parametrize(
    ("number", "result"), [(2**31 - 1, 1.0), (2**31, "replayed"), (-(2**40), "replayed")]
)
def test_number_whose_square_no_library_holds_is_replayed(number: int, result: Any) -> None:
    graph = compiled(lambda _: [torch.ones(())], tensors=[0], numbers=[1])
    assert graph(torch.zeros(2), number)[0] == result


@pytest.mark.parametrize(
    ("written", "other", "shared"),
    [(slice(0, 4), slice(4, 8), False), (slice(0, 4), slice(3, 8), True), (slice(2, 3), slice(0, 8), True),
     (slice(0, 8, 2), slice(1, 8, 2), True), (slice(0, 4), slice(4, 4), False)],
)  # fmt: skip
@pytest.mark.parametrize("is_fixed", [True, False])
def test_overlap_is_of_bytes(written: slice, other: slice, shared: bool, is_fixed: bool) -> None:
    memory = torch.zeros(8)
    check = OverlapCheck((0,), (1,) if is_fixed else (), () if is_fixed else (1,))
    assert check((memory[written], memory[other])) is shared
    assert check((torch.zeros(8), memory)) is False


@pytest.mark.parametrize(
    "another", [lambda memory: memory[:6], lambda memory: memory[:8:2]], ids=["shape", "strides"]
)
def test_overlap_is_looked_at_again_when_what_is_written_has_another_layout(another):
    memory = torch.zeros(8)
    check = OverlapCheck((0,), (1,), ())
    assert check((memory[:4], memory[4:])) is False
    assert check((another(memory), memory[4:])) is True
    assert check((memory[:4], memory[4:])) is False


def test_package_is_equal_for_equal_libraries_and_comes_apart_again() -> None:
    library = {"graph.so": b"library", "graph.json": b"{}"}
    package = pack(library)
    assert package == pack(dict(reversed(library.items())))
    assert unpack(package, "x.pt2") == library


@pytest.mark.parametrize(
    ("package", "why"), [(b"torn", "no package"), (pack({}), r"holds no graph\.so")], ids=["torn", "empty"]
)
def test_file_that_is_no_package_is_corrupt(package: bytes, why: str) -> None:
    with pytest.raises(ArtifactCorrupt, match=why):
        unpack(package, "x.pt2")


def test_compile_place_is_the_same_for_equal_digests_and_gone_afterwards(tmp_path: Path) -> None:
    seen = []
    for _ in range(2):
        with compile_place("0f", tmp_path / "root") as (directory, _):
            (directory / "made").touch()
            seen.append(directory)
    assert seen[0] == seen[1] == tmp_path / "root" / "0f"
    assert not seen[0].exists()
    assert (tmp_path / "root").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "spoil",
    [lambda root: (root.mkdir(), root.chmod(0o777)), lambda root: root.symlink_to(root.parent)],
    ids=["open", "link"],
)
def test_compile_place_of_others_is_refused(tmp_path, spoil):
    root = tmp_path / "root"
    spoil(root)
    with pytest.raises(UnusableCache, match="remove"), compile_place("0f", root):
        pass


def test_missing_compiler_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ToolchainError, match=r"no-such-compiler is not on PATH.*CXX") as caught:
        check_cpp_compiler()
    assert (caught.value.where, caught.value.expected) == (
        "no-such-compiler",
        "GCC 10 or later, or Clang 10 or later",
    )


@pytest.mark.parametrize(
    ("wanted", "mode"), [("graph", "max-autotune"), ("graph", "npugraph_ex"), ("aoti", "reduce-overhead")]
)
def test_engine_of_another_mode_is_refused(wanted: Any, mode: str) -> None:
    with pytest.raises(BadConfig, match=f"engine {wanted} compiles in mode .*config.mode is {mode}"):
        check_choice(wanted, in_mode(mode))
