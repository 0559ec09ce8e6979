"""Streams of an NPU: how many captures take, what is said before they run out, and what after."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from warmrank.worker.devices.failures import Captures, exhausted, limit_of, needed, not_capturable, problem
from warmrank.worker.errors import NotCapturable
from warmrank.worker.rank import captures
from warmrank.worker.rank.captures import graphs_of, stream_problem
from warmrank.worker.results import CaptureProposal

TP = frozenset({"tp"})


@pytest.mark.parametrize(
    ("soc", "expected"),
    [
        ("Ascend910B2", 1984),
        ("Ascend910B4-1", 1984),
        ("Ascend910_9392", 1984),
        ("Ascend910ProB", 2048),
        ("Ascend910A", 2048),
        ("Ascend310P3", 1024),
        ("Ascend310B4", 512),
        ("Ascend999", 1984),
    ],
)
def test_number_of_streams_depends_on_the_model(soc: str, expected: int) -> None:
    assert limit_of(soc) == expected


@pytest.mark.parametrize(
    ("captures", "expansion", "expected"),
    [
        ((), "", 0),
        ((Captures(name="f", num_graphs=0, roles=TP),), "", 0),
        ((Captures(name="f", num_graphs=10),), "", 10),
        ((Captures(name="f", num_graphs=10, roles=TP),), "", 40 + 10 * 3),
        ((Captures(name="f", num_graphs=10, roles=TP),), "AIV", 10 * 2),
        ((Captures(name="f", num_graphs=10, num_side_streams=2),), "", 30),
        (
            (Captures(name="f", num_graphs=2, roles=TP), Captures(name="g", num_graphs=3, roles=TP)),
            "",
            40 + 5 * 3,
        ),
    ],
)
def test_streams_are_those_of_graphs_and_of_their_communicators(
    captures: tuple[Captures, ...], expansion: str, expected: int
) -> None:
    assert needed(captures, expansion=expansion) == expected


@pytest.mark.parametrize(("layers", "num_groups"), [(48, 1), (64, 2), (28, 0)])
def test_count_agrees_with_the_rule_of_vllm_ascend(layers: int, num_groups: int) -> None:
    sizes = int((1800 - num_groups * 40) / (layers + 1) / (1 + num_groups * 2))
    roles = frozenset(str(number) for number in range(num_groups))

    def piecewise(num_sizes: int) -> str:
        graphs = (Captures(name="layers", num_graphs=(layers + 1) * num_sizes, roles=roles),)
        return problem(graphs, soc="Ascend910B2")

    assert piecewise(sizes) == ""
    assert piecewise(sizes + 1) != ""


def test_problem_names_the_largest_and_what_to_change() -> None:
    graphs = (Captures(name="A.f", num_graphs=3), Captures(name="B.g", num_graphs=900, roles=TP))
    text = problem(graphs, soc="Ascend910B2")
    assert text.startswith(
        "captures will take about 2743 streams (B.g: 900 graphs of 3 streams, A.f: 3 graphs"
    )
    assert "1800 of this NPU's 1984 are for graphs" in text
    for remedy in ("fewer gears or shapes", "static_capture_size_limit", "HCCL_OP_EXPANSION_MODE=AIV"):
        assert remedy in text


def test_aiv_leaves_room_for_more_graphs() -> None:
    graphs = (Captures(name="f", num_graphs=800, roles=TP),)
    assert problem(graphs, soc="Ascend910B2")
    assert not problem(graphs, soc="Ascend910B2", expansion="AIV")


# Messages of vllm-ascend#9691, #8393 and #9564.
NO_STREAM = (
    "capture_begin:../torch_npu/csrc/core/npu/NPUGraph.cpp:230 NPU function error: "
    "c10_npu::acl::AclmdlRICaptureBegin(capture_stream_, capture_mode), error code is 207008\n"
    "[Error]: Stream resources are insufficient."
)
NO_RESOURCE = "stream wait event failed, runtime result = 207005[FUNC:ReportCallError][FILE:log_inner.cpp]"


@pytest.mark.parametrize(
    "text",
    [
        NO_STREAM,
        NO_RESOURCE,
        "Insufficient_Stream_Resources(EL0009): none left",
        "driver error:no stream resource",
    ],
)
def test_error_of_a_capture_without_streams_says_what_to_change(text: str) -> None:
    found = not_capturable(RuntimeError(text), "npu")
    assert isinstance(found, NotCapturable)
    assert found.exhausted == "streams"
    assert text.partition("\n")[0] in str(found)
    assert "fewer gears or shapes" in str(found)


def test_error_that_only_wraps_the_lack_of_streams_is_known() -> None:
    outer = RuntimeError("the graph was not captured")
    outer.__cause__ = RuntimeError(NO_STREAM)
    assert exhausted(outer)


@pytest.mark.parametrize(
    ("text", "kind"), [("error code is 1207008", "npu"), ("error code is 507035", "npu"), (NO_STREAM, "cuda")]
)
def test_other_errors_of_a_capture_stay_what_they_are(text: str, kind: str) -> None:
    assert "fewer gears" not in str(not_capturable(RuntimeError(text), kind))


# --- what a rank will capture ---


def unit(name: str, digest: str, signatures: tuple[str, ...], *roles: str, code: str = "") -> Any:
    sections = {"torchair.py": code.encode()} if code else {}
    stored = SimpleNamespace(sha256=digest, artifact=SimpleNamespace(roles=roles, sections=sections))
    return SimpleNamespace(name=name, variant=SimpleNamespace(stored=stored), signatures=signatures)


def proposal(function: str, signature: str = "", *, planned: bool = False) -> CaptureProposal:
    return CaptureProposal(function=function, signature=signature, shapes="", num_elements=1, planned=planned)


def test_calls_of_equal_shapes_share_a_graph_and_gears_do_not() -> None:
    units = [unit("f", "a", ("1", "2"), "tp"), unit("f[1]", "a", ("2",), "tp"), unit("g", "b", ("1",))]
    steps = [proposal("f"), proposal("f[1]"), proposal("g"), proposal("f", "3", planned=True)]
    assert graphs_of(units, steps) == (
        Captures(name="f", num_graphs=3, roles=TP),
        Captures(name="g", num_graphs=1),
    )


@pytest.mark.parametrize(
    ("labels", "expected"), [("{'shared', 'moe'}", 2), ("['shared']", 1), ("set()", 0), ("{}", 0)]
)
def test_streams_that_a_model_switches_to_count_in_each_graph(labels: str, expected: int) -> None:
    code = f"info = AclGraphCacheInfo(pool=None, user_stream_label={labels}, stream=None)\n"
    (found,) = graphs_of([unit("f", "a", ("1", "2"), code=code)], [proposal("f")])
    assert (found.num_graphs, found.num_side_streams) == (2, expected)


def test_function_that_was_not_loaded_takes_no_streams() -> None:
    missing = SimpleNamespace(name="f", variant=None, signatures=())
    assert graphs_of([missing], [proposal("f")]) == ()


def test_rank_counts_for_its_own_npu_and_its_way_of_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captures, "environment", lambda: {"accelerator": "Ascend310B4"})
    monkeypatch.delenv("HCCL_OP_EXPANSION_MODE", raising=False)
    many = unit("f", "a", tuple(map(str, range(150))), "tp")
    assert "328 of this NPU's 512" in stream_problem([many], [proposal("f")])
    monkeypatch.setenv("HCCL_OP_EXPANSION_MODE", "AIV")
    assert stream_problem([many], [proposal("f")]) == ""
