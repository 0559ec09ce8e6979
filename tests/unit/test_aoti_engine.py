"""Engine ``aoti`` without a compile: how a graph is taken apart, called, described, packed, and refused."""

from __future__ import annotations

import hashlib
import json
import logging
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from tests.support.tracing import bound, cached, compiles_ahead, in_mode, traced
from warmrank.worker.compile.analysis import analyse
from warmrank.worker.engines import check_choice, engine_for, toolchain
from warmrank.worker.engines.aoti import (
    AotiEngine,
    CompiledGraph,
    pack,
    package_name,
    unpack,
)
from warmrank.worker.engines.aoti_compile import compile_again, compile_place, divide
from warmrank.worker.engines.overlap import OverlapCheck
from warmrank.worker.engines.toolchain import check_cpp_compiler
from warmrank.worker.errors import ArtifactCorrupt, BadConfig, NotPortable, ToolchainError
from warmrank.worker.torch_private.tracing import trace


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
    built = AotiEngine().compile(lowered, analyse(lowered, "self"), keep_compiled=True)
    assert built.files == {}
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
        "classes": ["user", "mutated"], "described": {"inputs": []},
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


def test_package_is_equal_for_equal_libraries_and_comes_apart_again(tmp_path: Path) -> None:
    library = {"graph.so": b"library", "graph.json": b"{}"}
    package = pack(library)
    assert package == pack(dict(reversed(library.items())))
    path = tmp_path / package_name(package)
    path.write_bytes(package)
    assert unpack(path) == library
    assert path.name == f"ge_cache_{hashlib.sha256(package).hexdigest()[:16]}.pt2"


def test_file_that_is_no_package_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "ge_cache_0.pt2"
    path.write_bytes(b"torn")
    with pytest.raises(ArtifactCorrupt, match="no package"):
        unpack(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("else", b"")
    with pytest.raises(ArtifactCorrupt, match=r"holds no graph\.so"):
        unpack(path)


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


ROWS = torch.arange(12.0).reshape(3, 4)


class Steps(nn.Module):
    """Calls whose conditions on sizes Inductor adds to."""

    def numbered(self, x: torch.Tensor, n: int) -> Any:
        return x * n + 1

    def written(self, cache: torch.Tensor, x: torch.Tensor) -> Any:
        cache.add_(x)
        return cache.sum(1)

    def twice(self, x: torch.Tensor, flags: torch.Tensor) -> Any:
        return (x + flags)[0], x.shape[0], flags.shape[0]

    def cached(self, cache: torch.Tensor, x: torch.Tensor, pos: int) -> Any:
        cache.narrow(0, pos, 1).copy_(x)
        return cache[: pos + 1].sum(0)


CALLS: dict[str, tuple[Any, ...]] = {
    "numbered": (ROWS, 5),
    "written": (torch.ones(3, 4), ROWS),
    "cached": (torch.zeros(6, 4), ROWS[:1], 3),
    "twice": (ROWS, torch.ones(3, 1)),
}


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Source of the kernels that Inductor would hand to the C++ compiler."""
    from torch._inductor import config
    from torch._inductor.codecache import AotCodeCompiler

    found: list[str] = []

    def compile_nothing(
        graph: Any, wrapper_code: str, kernel_code: str, *args: Any, **kwargs: Any
    ) -> list[str]:
        found.append(wrapper_code + kernel_code)
        made = Path(config.aot_inductor.output_path) / "graph.wrapper.so"
        made.write_bytes(b"library")
        return [str(made)]

    monkeypatch.setattr(AotCodeCompiler, "compile", compile_nothing)
    return found


def built(name: str) -> dict[str, bytes]:
    """Sections of one call's artifact."""

    def build(lowered: Any) -> Any:
        return AotiEngine().compile(lowered, analyse(lowered, "self"), keep_compiled=False)

    with torch.no_grad():
        _, made = trace(
            bound(getattr(Steps(), name)), CALLS[name], {}, dynamic=True, decompositions={}, build=build
        )
    return dict(made.sections)


def call_of(sections: Mapping[str, bytes]) -> dict[str, Any]:
    call: dict[str, Any] = json.loads(sections["aoti"])
    return call


@compiles_ahead
@pytest.mark.parametrize("name", list(CALLS))
def test_compiling_again_comes_to_the_same_conditions(name, sources, caplog):
    sections = built(name)
    assert call_of(sections)["added"] or name == "twice"
    with caplog.at_level(logging.WARNING, logger="torchair"):
        assert compile_again(sections, call_of(sections)) == {"graph.so": b"library"}
    assert [record.message for record in caplog.records if record.name == "torchair"] == []
    assert len(sources) == 2


@compiles_ahead
@pytest.mark.parametrize(
    "change",
    [lambda call: call["added"].pop(), lambda call: call["tensors"].reverse()],
    ids=["a condition that does not stand in the artifact", "inputs in another order"],
)
def test_compiling_again_to_something_else_falls_back_with_a_warning(change, sources, caplog):
    sections = built("written")
    call = call_of(sections)
    change(call)
    with caplog.at_level(logging.WARNING, logger="torchair"):
        assert compile_again(sections, call) is None
    assert "the kernels came out otherwise than the artifact says, so the graph is replayed" in caplog.text
    assert sources


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes a script the compiler that CXX names."""

    def make(text: str) -> Path:
        path = tmp_path / "made-up-g++"
        path.write_text(text)
        path.chmod(0o700)
        monkeypatch.setenv("CXX", str(path))
        return path

    toolchain._fault.cache_clear()
    return make


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
