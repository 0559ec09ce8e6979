"""A node lost in each stage of a launch, a link cut: what becomes of the launch, its ranks and its store."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.netns import Node, Running, until
from tests.support.netns_cluster import Cluster, CountingStore, ray_nodes
from tests.support.stored import stored
from warmrank.orchestrator.launch.report import Report, from_json

pytestmark = [pytest.mark.ray, pytest.mark.netns, pytest.mark.timeout(900)]

NUM_NODES = 4
RANKS = 8
# A node counts as lost after four seconds, and its ranks have ended two seconds later.
WATCH = {"every_s": 0.5, "node_silent_s": 4, "lease_s": 6}
NO_RETRIES = {"rank": 0, "node": 0, "hang": 0, "start": 0}
MANY_RETRIES = {"rank": 9, "node": 9, "hang": 9, "start": 9}
REACHED_S = 300.0
LOST = 5


class Trial:
    """A launch that has a cache directory, a store and a report to itself."""

    def __init__(self, nodes: Cluster, name: str, stages: tuple[str, ...], **changes: Any) -> None:
        self.nodes = nodes
        self.held = nodes.shared / f"{name}.held"
        self.held.mkdir()
        arguments = {"stages": list(stages), "held": str(self.held), "spared": nodes.head.name}
        data: dict[str, Any] = {
            "workload": {"entrypoint": "tests.support.fault_workload:staying", "arguments": arguments},
            "cache_dir": str(nodes.net.disk / name),
            "watch": WATCH,
            **changes,
        }
        self.config = nodes.config(name, **data)
        self._report = nodes.net.base / f"{name}.json"
        self.running: Running

    def begin(self) -> None:
        """Start the launch."""
        self.running = self.nodes.start("launch", str(self.config), "--json", str(self._report))

    def reached(self, stage: str) -> Node:
        """Wait until a rank stays in a stage; its node."""
        held = self.held / stage
        until(held.exists, timeout_s=REACHED_S, what=f"a rank stays in {stage}")
        return self.nodes.net.nodes[held.read_text()]

    def replace(self, node: Node, *, silently: bool = True) -> None:
        """End a node at once, and have another one join; ``silently`` as in `Network.kill`."""
        self.nodes.kill_node(node, silently=silently)
        self.nodes.add_nodes(1)

    def end(self, *, exit_code: int) -> Report:
        """Wait for the launch; its report."""
        ended = self.running.wait()
        assert ended.exit_code == exit_code, ended.said
        report = from_json(self._report.read_text())
        assert report.exit_code == exit_code
        return report

    def check_warm(self, report: Report, *failed_stages: str) -> None:
        """Check that all ranks are warm, after attempts that ended in these stages."""
        assert report.outcome == "warm"
        stages = [attempt.failed_stage for attempt in report.timeline.attempts]
        assert stages == [*failed_stages, ""], self.running.said()
        assert len(report.ranks) == RANKS
        assert all(rank.verification is not None and rank.verification.ok for rank in report.ranks)
        assert report.record

    def check_nothing_left(self) -> None:
        """Check that no process and no temporary file is left, and that the store is whole."""
        assert self.nodes.left_over() == {}
        assert self.nodes.temporary_files() == []
        ended = self.nodes.warmrank("store", "verify", str(self.config))
        assert ended.exit_code == 0, ended.said


@pytest.fixture
def whole(nodes: Cluster) -> Iterator[Cluster]:
    """The cluster; four nodes are alive in it afterwards, and none that Ray believes to be dead."""
    yield nodes
    nodes.restore(NUM_NODES)


def has_ranks(node: Node) -> bool:
    return any("RankActor" in text for text in node.processes().values())


def has_watch(node: Node) -> bool:
    return any("NodeWatch" in text for text in node.processes().values())


def test_nodes_lost_in_start_and_while_ranks_build_compile_capture_and_verify(whole: Cluster) -> None:
    stages = ("build", "compile", "capture", "verify")
    trial = Trial(whole, "lost1", stages, retries=MANY_RETRIES)
    trial.begin()
    first = whole.net.nodes[max(whole.net.nodes)]
    until(lambda: has_ranks(first), timeout_s=REACHED_S, what="a node starts ranks")
    trial.replace(first)
    for stage in stages:
        trial.replace(trial.reached(stage))
    trial.check_warm(trial.end(exit_code=0), "start", *stages)
    trial.check_nothing_left()


def test_nodes_killed_in_fetch_and_while_ranks_probe_load_call_and_commit(
    whole: Cluster, counting_store: CountingStore
) -> None:
    stages = ("probe", "load", "first_call", "commit")
    trial = Trial(whole, "lost2", stages, retries=MANY_RETRIES, store=counting_store.config("lost2"))
    first = whole.net.nodes[max(whole.net.nodes)]
    with counting_store.holding(first.address, "launch") as held:
        trial.begin()
        until(held.exists, timeout_s=REACHED_S, what="a node fetches")
        trial.replace(first, silently=False)
    for stage in stages:
        trial.replace(trial.reached(stage), silently=False)
    trial.check_warm(trial.end(exit_code=0), "fetch", *stages)
    trial.check_nothing_left()


def test_node_lost_without_another_attempt_is_named_and_nothing_is_committed(whole: Cluster) -> None:
    trial = Trial(whole, "lost3", ("capture",), retries=NO_RETRIES)
    trial.begin()
    node = trial.reached("capture")
    whole.kill_node(node)
    report = trial.end(exit_code=LOST)
    assert report.failure is not None
    assert report.failure.stage == "capture"
    assert (report.failure.causes[0].kind, report.failure.causes[0].hosts) == ("node lost", (node.name,))
    assert stored(whole.shared / "lost3", "launch") == []
    trial.check_nothing_left()


def test_cut_link_is_a_lost_node_and_its_ranks_end_behind_it(whole: Cluster) -> None:
    trial = Trial(whole, "cut", ("first_call",))
    trial.begin()
    node = trial.reached("first_call")
    whole.net.cut(node)
    whole.add_nodes(1)
    report = trial.end(exit_code=0)
    trial.check_warm(report, "first_call")
    assert "node lost" in report.timeline.attempts[1].reason
    assert node.name not in {rank.host for rank in report.ranks}
    until(lambda: not has_ranks(node) and not has_watch(node), timeout_s=30, what="its reaper ends all")
    whole.net.mend(node)
    trial.check_nothing_left()


def test_next_attempt_starts_no_rank_on_a_lost_node_that_ray_lists_as_alive(whole: Cluster) -> None:
    # With Ray's own health checks, which take a minute.
    more = {"ranks": 4, "parallel": {"tp": 2, "dp": 2}, "retries": {**NO_RETRIES, "node": 1}}
    trial = Trial(whole, "stays", ("build",), **more)
    trial.begin()
    node = trial.reached("build")
    whole.kill_node(node)
    trial.running.await_said("attempt 2, ")
    assert node.name in whole.alive()
    report = trial.end(exit_code=0)
    assert [attempt.failed_stage for attempt in report.timeline.attempts] == ["build", ""]
    assert node.name not in {rank.host for rank in report.ranks}


def test_head_that_stops_with_its_raylet_ends_the_launch_with_a_report() -> None:
    # Not the cluster of the other tests, which would be over; the driver is on the head, as users start it.
    with ray_nodes(2, num_cpus=2) as cluster:
        trial = Trial(cluster, "headless", ("build",), ranks=4, parallel={"tp": 2, "dp": 2})
        trial.begin()
        trial.reached("build")
        stopped = cluster.head.run(*("pkill", "-KILL", "-f", "gcs_server|raylet/raylet"))
        assert stopped.returncode == 0, stopped.stderr
        report = trial.end(exit_code=LOST)
        assert report.failure is not None
        assert report.failure.causes[0].kind == "cluster lost"
        assert "has not answered" in report.failure.message


def test_driver_that_is_killed_leaves_no_process_on_any_node(whole: Cluster) -> None:
    trial = Trial(whole, "killed", ("compile",))
    trial.begin()
    trial.reached("compile")
    trial.running.send(signal.SIGKILL)
    trial.running.wait()
    assert stored(whole.shared / "killed", "launch") == []
    trial.check_nothing_left()
