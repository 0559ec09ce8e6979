"""Engine ``aoti`` without a compile: how a graph is taken apart, called, described, packed, and refused."""

from __future__ import annotations

import hashlib
import logging
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.support.devices import fake_world
from tests.support.tracing import traced
from warmrank.worker.compile.analysis import analyse
from warmrank.worker.engines.aoti import AotiEngine, CompiledGraph, Parts, pack, package_name, unpack
from warmrank.worker.engines.aoti_compile import Division, compile_place, divide
from warmrank.worker.engines.overlap import OverlapCheck
from warmrank.worker.errors import ArtifactCorrupt, NotPortable, NotYet
from warmrank.worker.keys.environment import of_features
from warmrank.worker.torch_private.inductor import bind_inputs

V3 = frozenset(
    ("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma",
     "abm", "movbe", "xsave")
)  # fmt: skip
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


class Shapes(nn.Module):
    """Methods whose results each show one thing."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Buffer(torch.zeros(8))

    def computed(self, x: torch.Tensor) -> Any:
        return x + 1, x * 2

    def views_only(self, x: torch.Tensor) -> Any:
        return x[1:], x.t(), x.shape[0] * 2, x

    def view_of_result(self, x: torch.Tensor) -> Any:
        y = x + 1
        return y[0], y.view(-1), y

    def written(self, x: torch.Tensor) -> Any:
        self.seen.add_(x[0])
        return self.seen.view(2, 4), x + self.seen

    def dropped(self, x: torch.Tensor) -> Any:
        return torch.nn.functional.dropout(x, 0.5, training=False)

    def several(self, x: torch.Tensor) -> Any:
        values, indices = torch.sort(x)
        return values, indices, values[0]

    def reshaped(self, x: torch.Tensor) -> Any:
        y = x + 1
        return y.transpose_(0, 1)

    def counted(self, x: torch.Tensor) -> Any:
        return x.nonzero()

    def times(self, x: torch.Tensor, n: int) -> Any:
        return x * n

    def reduced(self, x: torch.Tensor) -> Any:
        from torch.distributed import _functional_collectives as collectives

        world = dist.group.WORLD
        assert world is not None
        return collectives.all_reduce(x, "sum", world)


MODULE = Shapes()
X = torch.arange(32.0).reshape(4, 8)


def division(method: Callable[..., Any], *args: Any) -> Division:
    return divide(traced(method, *args).lowered.graph)


def num_results(graph: torch.fx.GraphModule | None) -> int:
    assert graph is not None
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    return len(output.args[0])


# How a graph is taken apart.


def test_views_need_no_library() -> None:
    found = division(MODULE.views_only, X)
    assert found.library is None
    assert num_results(found.tail) == 3  # Dynamo's frame returns the argument itself


def test_view_of_a_written_input_is_made_by_the_tail() -> None:
    trace = traced(MODULE.written, X)
    found = divide(trace.lowered.graph)
    sources = [item.source for item in trace.lowered.inputs]
    (written,) = found.written
    assert "seen" in sources[written]
    assert found.tail_inputs == (written,)
    assert num_results(found.library) == 1


@pytest.mark.parametrize(("method", "named"), [("reshaped", "aten.transpose_"), ("counted", "aten.nonzero")])
def test_what_no_library_can_do_is_refused_by_name(method: str, named: str) -> None:
    lowered = traced(getattr(MODULE, method), X.clone()).lowered
    facts = analyse(lowered, "self")
    with pytest.raises(NotPortable, match=named):
        AotiEngine().compile(lowered, facts, keep_compiled=False)


def test_process_groups_are_refused_by_name() -> None:
    with fake_world(rank=0, world_size=2):
        lowered = traced(MODULE.reduced, X).lowered
        with pytest.raises(NotYet, match="all_reduce"):
            AotiEngine().compile(lowered, analyse(lowered, "self"), keep_compiled=False)


def test_graph_of_views_runs_without_a_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmrank.worker.engines.aoti_compile.compile_library", None)
    lowered = traced(MODULE.views_only, X).lowered
    built = AotiEngine().compile(lowered, analyse(lowered, "self"), keep_compiled=True)
    assert built.files == {}
    graph = AotiEngine().load(built.sections, {}, {})
    inputs = [X if item.is_tensor else X.shape[0] for item in lowered.inputs]
    tail, turned, doubled = graph(*inputs)
    assert (tail.data_ptr(), turned.shape, doubled) == (X[1:].data_ptr(), (8, 4), 8)


# Inputs of a library.


def test_number_that_is_no_size_is_carried_by_one() -> None:
    trace = traced(MODULE.times, X, 7)
    library = divide(trace.lowered.graph).library
    assert library is not None
    inputs = bind_inputs(library)
    (position,) = inputs.numbers
    assert trace.lowered.inputs[position].source == "L['n']"
    assert inputs.fakes[-1].stride() == (0,)


# The call.


def parts(run: Callable[[list[torch.Tensor]], list[torch.Tensor]], **changed: Any) -> Parts:
    given: dict[str, Any] = {
        "open": lambda _: run, "on_cpu": True, "tensors": (0, 1), "numbers": (), "constants": (),
        "tail": None, "tail_inputs": (), "written": (),
        "classes": ("user", "mutated"), "replay": lambda *_: ("replayed",),
    }  # fmt: skip
    return Parts(**{**given, **changed})


def test_results_in_one_buffer_are_taken_apart() -> None:
    buffer = torch.zeros(4)
    graph = CompiledGraph(parts(lambda taken: [buffer, buffer, taken[0]]))
    for _ in range(2):
        results = graph(torch.ones(4), torch.ones(4))
        assert len({value.data_ptr() for value in results}) == 3
        assert [value.tolist() for value in results] == [[0.0] * 4, [0.0] * 4, [1.0] * 4]


def test_shared_inputs_of_a_writing_graph_are_replayed(caplog: pytest.LogCaptureFixture) -> None:
    graph = CompiledGraph(parts(lambda _: [torch.zeros(1)], written=(1,)))
    memory = torch.zeros(8)
    with caplog.at_level(logging.WARNING, logger="torchair"):
        assert graph(memory[:4], memory[2:6]) == ("replayed",)
        assert graph(memory[:4], memory) == ("replayed",)
    assert caplog.text.count("share memory") == 1
    assert graph(memory[:4], memory[4:])[0].tolist() == [0.0]


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


def test_library_that_cannot_be_opened_is_corrupt() -> None:
    from warmrank.worker.torch_private.aoti_runtime import open_library

    with pytest.raises(ArtifactCorrupt, match="cannot be opened on this machine"):
        open_library({"graph.so": b"no library"}, torch.device("cpu"))


def test_compile_place_is_the_same_for_equal_digests_and_gone_afterwards(tmp_path: Path) -> None:
    seen = []
    for _ in range(2):
        with compile_place("0f", tmp_path / "root") as place:
            (place.directory / "made").touch()
            seen.append(place.directory)
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
    with caplog.at_level(logging.WARNING, logger="torchair"), compile_place("0f", root) as place:
        assert not place.directory.is_relative_to(root)
        assert place.directory.stat().st_mode & 0o777 == 0o700
    assert "cannot be used" in caplog.text
    assert not place.directory.exists()


@pytest.mark.parametrize(
    ("machine", "features", "march", "text"),
    [
        ("x86_64", V3, "x86-64-v3", "x86-64-v3"),
        ("x86_64", V3 | {"avx512f"}, "x86-64-v3", "x86-64-v3"),
        ("x86_64", V4 | {"amx_tile", "vmx"}, "x86-64-v4", "x86-64-v4 amx_tile"),
        ("x86_64", frozenset(), "x86-64", "x86-64"),
    ],
)
def test_instruction_set_names_what_kernels_may_use(machine, features, march, text):
    found = of_features(machine, features)
    assert (found.march, found.text) == (march, text)
