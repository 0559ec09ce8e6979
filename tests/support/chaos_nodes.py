"""Launches on nodes in network namespaces that are struck as a plan says."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

from tests.support.chaos_plan import Fault, Plan, Strike
from tests.support.chaos_room import LINGER_S, Outcome, judge, judge_store, launches_of, strike_all
from tests.support.netns import Node, Running
from tests.support.netns_cluster import Cluster
from tests.support.processes import ENDS_S
from warmrank.orchestrator.launch.report import from_json

WATCH = {"every_s": 0.5, "node_silent_s": 5, "stopped_s": 1, "lease_s": 7}
_BRIEFLY_S = 1.5
_LAUNCH_S = 240.0
_NOT_OURS = ("pymp-", "torchinductor_")  # of Ray's dashboard, and of an import of torch's compiler


class NodesRoom:
    """Launches of four ranks on nodes of two CPUs each."""

    num_ranks = 4
    num_nodes = 3

    def __init__(self, nodes: Cluster) -> None:
        self._nodes = nodes
        self._store, self._kept = nodes.shared / "chaos", nodes.shared / "chaos-kept"
        marks = nodes.shared / "chaos-marks"
        marks.mkdir()
        arguments = {"marks": str(marks), "linger_s": LINGER_S}
        self._config: Path = nodes.config(
            "chaos",
            workload={"entrypoint": "tests.support.fault_workload:workload", "arguments": arguments},
            ranks=self.num_ranks,
            parallel={"tp": 2, "dp": 2},
            watch=WATCH,
            retries={"node": 2, "rank": 1, "hang": 1, "start": 2},
        )
        self._json = nodes.net.base / "chaos.json"

    def run(self, plan: Plan) -> Outcome:
        """Launch, strike, and look at what is left."""
        self._prepare(plan)
        before, began_s = launches_of(self._store), time.monotonic()
        running = self._begin()
        launch = _OnNodes(self._nodes, running)
        struck = strike_all(launch, plan)
        ended = running.wait(timeout_s=_LAUNCH_S)
        report = from_json(self._json.read_text()) if self._json.exists() else None
        outcome = Outcome(exit_code=ended.exit_code, report=report, said=ended.said, struck=struck)
        for node in launch.cut:
            self._nodes.net.mend(node)
        outcome.wrong += [f"left behind on {name}: {text}" for name, text in self._left()]
        self._replace_lost_nodes()
        outcome.seconds = time.monotonic() - began_s
        judge(plan, outcome, num_ranks=self.num_ranks)
        judge_store(outcome, self._store, None, before)
        return outcome

    def _begin(self) -> Running:
        self._json.unlink(missing_ok=True)
        return self._nodes.start("launch", str(self._config), "--json", str(self._json))

    def _prepare(self, plan: Plan) -> None:
        if plan.start != "cold" and not self._kept.exists():
            self._empty()
            ended = self._begin().wait(timeout_s=_LAUNCH_S)
            assert ended.exit_code == 0, ended.said
            shutil.copytree(self._store, self._kept, symlinks=True)
        self._empty()
        if plan.start != "cold":
            shutil.copytree(self._kept, self._store, symlinks=True)

    def _empty(self) -> None:
        shutil.rmtree(self._store, ignore_errors=True)
        for node in self._nodes.net.nodes.values():
            shutil.rmtree(self._nodes.cache_of(node), ignore_errors=True)

    def _replace_lost_nodes(self) -> None:
        """Have as many nodes alive as before."""
        for name in set(self._nodes.net.nodes) - set(self._nodes.alive()):
            self._nodes.kill_node(self._nodes.net.nodes[name])
        if missing := self.num_nodes - len(self._nodes.net.nodes):
            self._nodes.add_nodes(missing)
        self._nodes.await_alive()

    def _left(self) -> list[tuple[str, str]]:
        processes = self._nodes.left_over(timeout_s=ENDS_S)
        found = [(name, text) for name, texts in processes.items() for text in texts]
        for node in self._nodes.net.nodes.values():
            names = [path.name for path in (node.disk / "tmp").iterdir()]
            found += [(node.name, name) for name in names if not name.startswith(_NOT_OURS)]
        return found


class _OnNodes:
    """A launch of `NodesRoom`."""

    def __init__(self, nodes: Cluster, running: Running) -> None:
        self._nodes, self._running = nodes, running
        self.said = running.said
        self.cut: list[Node] = []

    def has_ended(self) -> bool:
        return self._running.process.poll() is not None

    def strike(self, strike: Strike) -> bool:
        if strike.fault in {Fault.KILL_RANK, Fault.STOP_RANK}:
            return self._hit_rank(strike)
        up = [node for node in self._nodes.net.nodes.values() if node is not self._nodes.head]
        victims = [node for node in up if node not in self.cut]
        if not victims:
            return False
        # Better one with ranks: others are not missed.
        busy = [node for node in victims if _ranks_on(node)] or victims
        victim = busy[strike.victim % len(busy)]
        if strike.fault is Fault.KILL_NODE:
            self._nodes.kill_node(victim)
            return True
        self._nodes.net.cut(victim)
        if strike.fault is Fault.CUT_BRIEFLY:
            time.sleep(_BRIEFLY_S)
            self._nodes.net.mend(victim)
        else:
            self.cut.append(victim)
        return True

    def _hit_rank(self, strike: Strike) -> bool:
        pids = [pid for node in self._nodes.net.nodes.values() for pid in _ranks_on(node)]
        if not pids:
            return False
        number = signal.SIGSTOP if strike.fault is Fault.STOP_RANK else signal.SIGKILL
        os.kill(sorted(pids)[strike.victim % len(pids)], number)
        return True


def _ranks_on(node: Node) -> list[int]:
    return [pid for pid, text in node.processes().items() if "RankActor" in text]
