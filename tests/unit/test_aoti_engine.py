"""Engine ``aoti`` without a compile: how a graph is taken apart, called, described, packed, and refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from tests.support.tracing import cached, compiles_ahead, in_mode, traced
from warmrank.worker.compile.analysis import analyse
from warmrank.worker.engines import check_choice, engine_for
from warmrank.worker.engines.aoti import AotiEngine, CompiledGraph, pack, unpack
from warmrank.worker.engines.aoti_compile import compile_place, divide
from warmrank.worker.engines.overlap import OverlapCheck
from warmrank.worker.engines.toolchain import check_cpp_compiler
from warmrank.worker.errors import ArtifactCorrupt, ArtifactMissing, BadConfig, NotPortable, ToolchainError


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


def num_results(graph: torch.fx.GraphModule | None) -> int:
    assert graph is not None
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    return len(output.args[0])


# How a graph is taken apart.


def test_view_of_a_written_input_is_made_by_the_tail() -> None:
    trace = traced(MODULE.written, X)
    found = divide(trace.lowered.graph)
    sources = [item.source for item in trace.lowered.inputs]
    (written,) = found.written
    assert "seen" in sources[written]
    assert found.tail_inputs == (written,)
    assert num_results(found.library) == 1


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
@torch.no_grad()
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


# The call.


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


# Package, place and key.


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
    [lambda root: root.mkdir(mode=0o755), lambda root: root.symlink_to(root.parent)],
    ids=["open", "link"],
)
def test_compile_place_of_others_is_not_used(tmp_path, spoil, caplog):
    root = tmp_path / "root"
    spoil(root)
    with caplog.at_level(logging.WARNING, logger="torchair"), compile_place("0f", root) as (directory, _):
        assert not directory.is_relative_to(root)
        assert directory.stat().st_mode & 0o777 == 0o700
    assert "cannot be used" in caplog.text
    assert not directory.exists()


def test_missing_compiler_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ToolchainError, match=r"no-such-compiler is not on PATH.*CXX") as caught:
        check_cpp_compiler()
    assert (caught.value.where, caught.value.expected) == (
        "no-such-compiler",
        "GCC 10 or later, or Clang 10 or later",
    )


@pytest.mark.parametrize(
    ("mode", "kind", "name"),
    [
        ("reduce-overhead", "cpu", "graph"),
        ("reduce-overhead", "cuda", "graph"),
        ("max-autotune", "cpu", "aoti"),
        ("max-autotune", "cuda", "aoti"),
    ],
)
def test_auto_goes_by_mode_off_the_npu(mode: str, kind: str, name: str) -> None:
    assert engine_for(in_mode(mode), wanted="auto", device_kind=kind).name == name


@pytest.mark.parametrize(
    ("wanted", "mode"), [("graph", "max-autotune"), ("graph", "npugraph_ex"), ("aoti", "reduce-overhead")]
)
def test_engine_of_another_mode_is_refused(wanted: Any, mode: str) -> None:
    with pytest.raises(BadConfig, match=f"engine {wanted} compiles in mode .*config.mode is {mode}"):
        check_choice(wanted, in_mode(mode))
