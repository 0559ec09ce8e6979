"""`doctor --all-nodes` on nodes of a test's own: what they have in common, and those that do not answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.launched import loaded_config
from warmrank.orchestrator.doctor.cluster import (
    Member,
    ahead_of_driver,
    check_environments,
    check_resources,
    no_answer,
    with_clock,
)
from warmrank.orchestrator.doctor.examine import Answer, Request
from warmrank.orchestrator.doctor.findings import (
    Diagnosis,
    Finding,
    NodeFindings,
    diagnosis,
    fold,
    ok,
    unknown,
)
from warmrank.orchestrator.doctor.nodes import diagnose_cluster
from warmrank.orchestrator.doctor.table import render_diagnosis
from warmrank.orchestrator.nodes import Node

NODES = tuple(Node(node_id=f"{number:02x}" * 28, address="", host=f"atlas-{number}") for number in range(16))
FULL = Finding(
    check="disk.free", level="error", what="little room", expected="1.0 GiB", actual="0 B", remedy="free some"
)
REQUEST = Request(device="npu", config=None, in_cluster=True)


def found_on(node: Node, *findings: Finding, **environment: str) -> NodeFindings:
    return NodeFindings(node=node, findings=findings, environment=environment, seconds=1.0)


@dataclass
class FakeCluster:
    """Nodes that answer what they were given, or why they cannot, or nothing at all."""

    answers: dict[Node, Answer | str]
    members_: tuple[Member, ...]

    def members(self) -> tuple[Member, ...]:
        return self.members_

    def examine(
        self, nodes: Sequence[Node], request: Request, *, timeout_s: float
    ) -> Iterator[tuple[Node, Answer | str]]:
        yield from ((node, self.answers[node]) for node in reversed(nodes) if node in self.answers)


def text_of(found: Diagnosis) -> str:
    file = StringIO()
    Console(file=file, width=100).print(render_diagnosis(found))
    return file.getvalue()


def members(num_nodes: int, **resources: float) -> tuple[Member, ...]:
    return tuple(Member(node=node, resources=resources) for node in NODES[:num_nodes])


def levels(findings: Iterator[Finding]) -> list[tuple[str, str]]:
    return [(finding.check, finding.level) for finding in findings]


def test_room_for_all_ranks_is_fine():
    assert levels(check_resources(members(2, CPU=64, NPU=8), {"CPU": 8.0, "NPU": 1.0}, 16)) == [
        ("cluster.resources", "ok"),
        ("cluster.resources", "ok"),
    ]


def test_what_is_left_over_on_each_node_makes_no_room():
    found = list(check_resources(members(2, CPU=12), {"CPU": 8.0}, 3))
    assert [(item.level, item.actual) for item in found] == [("error", "24 on 2 nodes, room for 2 ranks")]


def test_node_without_devices_is_named_where_others_have_them():
    mixed = (*members(1, CPU=64, NPU=8), Member(node=NODES[1], resources={"CPU": 64.0}))
    (finding,) = [item for item in check_resources(mixed, {"NPU": 1.0}, 8) if item.level != "ok"]
    assert (finding.check, finding.level, finding.actual) == ("cluster.devices", "note", "atlas-1")


def test_equal_environments_are_fine():
    nodes = [found_on(node, torch="2.13.0") for node in NODES]
    assert levels(check_environments(nodes)) == [("cluster.environment", "ok")]


def test_node_that_differs_is_named_with_what_differs():
    nodes = [*(found_on(node, cann="9.1.0", torch="2.12.0") for node in NODES[:3])]
    nodes.append(found_on(NODES[3], cann="9.0.0", torch="2.12.0"))
    (found,) = check_environments(nodes)
    assert (found.level, "differ in cann" in found.what) == ("warning", True)
    assert found.actual == "'9.0.0' on atlas-3"


def test_one_node_alone_is_not_compared():
    assert levels(check_environments([found_on(NODES[0], torch="2.13.0")])) == []


@pytest.mark.parametrize(
    ("clock_s", "ahead_s"),
    [(1002.0, 0.0), (1005.0, 0.0), (1100.0, 95.0), (940.0, -61.0)],
)
def test_clock_between_question_and_answer_is_right(clock_s: float, ahead_s: float):
    found = ahead_of_driver(clock_s, seconds=1.0, sent_s=1000.0, received_s=1005.0)
    assert found == pytest.approx(ahead_s)


def test_clock_of_a_node_is_said_against_the_driver_s():
    *_, finding = with_clock(found_on(NODES[0]), 60.0).findings
    assert (finding.check, finding.level) == ("clocks.driver", "warning")
    assert finding.what == "the clock of the driver is behind this node's"


def test_silent_and_failed_nodes_are_errors(tmp_path: Path):
    well = Answer(findings=found_on(NODES[0], ok("disk.free", "room")), clock_s=0.0)
    answers: dict[Node, Answer | str] = {NODES[0]: well, NODES[1]: "the worker died"}
    cluster = FakeCluster(answers, members(3, CPU=8))
    request = replace(REQUEST, device="cpu")
    found = diagnose_cluster(cluster, request, loaded_config(tmp_path), timeout_s=7.0)
    assert [node.node.host for node in found.nodes] == ["atlas-0", "atlas-1", "atlas-2"]
    assert [node.findings[0].actual for node in found.nodes[1:]] == [
        "the worker died",
        "no answer within 7 s",
    ]
    assert found.worst == "error"


def test_equal_findings_of_many_nodes_are_one_line():
    nodes = [found_on(node, FULL) for node in NODES]
    (folded,) = fold(nodes)
    assert folded.hosts == tuple(node.host for node in NODES)
    text = text_of(diagnosis("npu", "llama", nodes))
    assert text.count("disk.free") == 2  # in the table, and below
    assert "all 16" in text


def test_findings_that_differ_in_what_was_found_are_one_line_too():
    nodes = [found_on(NODES[0], FULL), found_on(NODES[1], replace(FULL, actual="5 B"))]
    (folded,) = fold(nodes)
    assert folded.found == (("0 B", ("atlas-0",)), ("5 B", ("atlas-1",)))
    assert "0 B on atlas-0; 5 B on atlas-1" in text_of(diagnosis("npu", "", nodes))


def test_checks_of_several_places_of_one_node_are_several_lines():
    near, far = ok("store.reachable", "/near is a store"), ok("store.reachable", "/far is a store")
    assert len(fold([found_on(node, near, far) for node in NODES])) == 2


def test_findings_keep_the_order_of_the_checks():
    first = found_on(NODES[0], ok("a.one", "fine"), ok("b.two", "fine"))
    second = found_on(NODES[1], replace(FULL, check="a.one"), ok("b.two", "fine"))
    assert [item.finding.check for item in fold([first, second])] == ["a.one", "a.one", "b.two"]


def test_table_ends_with_the_worst_and_counts():
    nodes = [found_on(NODES[0], ok("a.one", "fine"), FULL, unknown("b.two", "no tool"))]
    text = text_of(diagnosis("npu", "llama", nodes))
    assert text.startswith("atlas-0, device kind npu for config llama")
    assert "remedy" in text
    assert text.rstrip().endswith("1 error, 1 note, 1 check fine")
    assert "not checked: no tool" in text


def test_node_without_an_answer_has_no_environment_to_compare():
    nodes = [found_on(NODES[0], torch="2.13.0"), no_answer(NODES[1], "died")]
    assert levels(check_environments(nodes)) == []


def test_many_hosts_are_cut_short():
    nodes = [found_on(node, FULL) for node in NODES[:12]] + [found_on(node) for node in NODES[12:]]
    assert "and 4 more" in " ".join(text_of(diagnosis("npu", "", nodes)).split())
