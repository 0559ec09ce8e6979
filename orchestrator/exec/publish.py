"""Publishes what a command added to its nodes: their directories and partitions, then the launch record.

Invariants: partitions are published once every rank of the world has noted something in its journal, on the
node of each rank; the launch, by the driver, when all of them are in the store. Whatever fails here is a
problem, and never ends the command.

Hosts that each run ``exec --here`` for one world of ranks meet in the store: every host notes there what it
published, and whoever finds the notes of all commits the launch. Hosts that end at the same moment may both
do so, which comes to one record.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from warmrank.cache_store.publish_pending import add_launch
from warmrank.cache_store.records.manifest import OF_ONE_RUN
from warmrank.cache_store.text import count_text, grouped
from warmrank.orchestrator.config.models import Config, launch_key
from warmrank.orchestrator.errors import ranks_text
from warmrank.orchestrator.exec import notes
from warmrank.orchestrator.exec.node import ExecNode, HostGroup, NotPublished, Work, publish_queue, why_kept
from warmrank.orchestrator.gang.node_group import Lost
from warmrank.orchestrator.stores import is_writable, may_publish, open_store, waiting_launch
from warmrank.worker.results import Published

if TYPE_CHECKING:
    from warmrank.cache_store.store import Store
    from warmrank.orchestrator.exec.driver import ExecNodes

Say = Callable[[str], None]
T = TypeVar("T")

_LOOK_S = 1.0


def exchange(
    store: Store, config: Config, hosts: HostGroup, published: Mapping[int, Published]
) -> dict[int, Published] | None:
    """Note what this host published, and read the notes of all; None while some are missing.

    Raises:
        NotPublished: the notes do not have each rank once.
        StoreError: the store cannot be written or read, or a note cannot be used.
    """
    run = {"launch": launch_key(config), "ranks": str(config.ranks), OF_ONE_RUN: hosts.run_id}
    names = [f"{node} of {hosts.nnodes}" for node in range(hosts.nnodes)]
    own = {rank: [part.environment, part.partition, part.key] for rank, part in published.items()}
    found = notes.exchange(store, run, names[hosts.node_rank], names, json.dumps(own))
    if len(found) < hosts.nnodes:
        return None
    parts = [(int(rank), part) for note in found for rank, part in json.loads(note).items()]
    times = Counter(rank for rank, _ in parts)
    if wrong := grouped((times[rank], rank) for rank in range(config.ranks) if times[rank] != 1):
        each = ", ".join(f"{ranks_text(ranks)} on {count_text(num, 'host')}" for num, ranks in wrong.items())
        raise NotPublished(f"each of {config.ranks} ranks has to be on one host, and found was {each}")
    return {
        rank: Published(ref=None, environment=environment, partition=partition, key=key)
        for rank, (environment, partition, key) in parts
    }


class Publisher(threading.Thread):
    """Publishes once, from `start` on, while the command goes on; nothing unless it ``is_wanted``.

    ``hosts`` are those that each run this, without Ray; None where all are in ``nodes``.
    """

    def __init__(
        self, config: Config, nodes: ExecNodes, hosts: HostGroup | None, say: Say, *, is_wanted: bool
    ) -> None:
        super().__init__(name="exec-publish", daemon=True)
        self.record = ""
        self.problems: list[str] = []
        self.is_over = not is_wanted or config.store is None
        self._config, self._nodes, self._hosts, self._tell = config, nodes, hosts, say
        self._everyone = {node.node_id: () for node in nodes.nodes}
        self._num_here = config.ranks // (hosts.nnodes if hosts is not None else 1)
        self._has_ended = threading.Event()
        if config.store is None:
            return
        if not is_writable(config.store.tiers):
            self.give_up("the store is only read (mode: ro)")
        elif not may_publish(config.store.trust):
            self.give_up(
                "trust.policy is require, and store.trust.signing_key is not set; make a key with warmrank "
                "keys generate and name it there"
            )

    @property
    def has_begun(self) -> bool:
        """True if it publishes, has published, or never will."""
        return self.is_over or self.ident is not None

    def begin(self) -> None:
        """Publish, unless it did before, or never will: the command is ready."""
        if not self.has_begun:
            self.start()

    def finish(self, wait_s: float) -> None:
        """Wait that long for its end: the command adds nothing more."""
        self._has_ended.set()
        self.join(wait_s)

    def give_up(self, why: str) -> None:
        """Publish nothing, or nothing more."""
        self._problem(f"not published: {why}")
        self.is_over = True

    def run(self) -> None:
        """See `begin`."""
        try:
            for said, problems, _ in self._ask(ExecNode.push, self._everyone).values():
                for line in said:
                    self._say(line)
                for problem in problems:
                    self._problem(problem)
            if published := self._publish():
                self._commit(published)
        except Exception as error:  # noqa: BLE001 - the thread's edge: nothing may stop the command
            self.give_up(str(error))
        self.is_over = True

    def _publish(self) -> dict[int, Published]:
        """Publish the partitions once all ranks here have loaded or compiled something."""
        while True:
            has_ended = self._has_ended.is_set()
            answers = self._ask(ExecNode.work, self._everyone)
            work = {whose: outcomes for each in answers.values() for whose, outcomes in each.items()}
            why_not = self._not_whole(work)
            if has_ended and why_not and work:
                raise NotPublished(why_not)
            if not why_not or has_ended:
                break
            self._has_ended.wait(_LOOK_S)
        outcomes = sum(work.values(), Counter[str]())
        if self._hosts is None and outcomes.keys() <= {"stored"}:
            if work:  # else nothing of the command goes through cache_compile
                num = count_text(outcomes.total(), "function")
                self._say(f"nothing new to publish: {num} loaded, 0 compiled")
            return {}
        ranks = self._config.ranks
        homes = {rank: home for home, each in answers.items() for size, rank in each if size == ranks}
        asked = {home: (own,) for home, own in grouped((home, rank) for rank, home in homes.items()).items()}
        found = self._ask(ExecNode.publish, asked).values()
        return {rank: part for own in found for rank, part in own.items()}

    def _not_whole(self, work: Work) -> str:
        """Error text if the ranks' work makes no launch, else ``""``; other ranks may run on other hosts."""
        num_ranks, num_here = self._config.ranks, self._num_here
        there = {rank for world_size, rank in work if world_size == num_ranks}
        if len(there) >= num_here:
            return ""
        if sizes := sorted({world_size for world_size, _ in work} - {num_ranks}):
            others = ", ".join(map(str, sizes))
            return f"the command ran ranks of a world of {others}, and the config has ranks: {num_ranks}"
        if num_here < num_ranks:
            return f"{len(there)} of the {count_text(num_here, 'rank')} here loaded or compiled something"
        return f"{ranks_text(set(range(num_ranks)) - there)} of {num_ranks} loaded or compiled nothing here"

    def _commit(self, published: dict[int, Published]) -> None:
        """Write the record, or let it wait on this disk, unless other hosts have yet to publish."""
        config, hosts, num = self._config, self._hosts, count_text(len(published), "rank")
        if hosts is not None and config.store is not None:
            if away := next((part.queued for part in published.values() if part.queued), ""):
                raise NotPublished(f"the hosts of a run meet in the store: {away}")
            if (found := exchange(open_store(config.store), config, hosts, published)) is None:
                self._say(f"published {num}; the last of {hosts.nnodes} hosts commits the launch")
                return
            published, num = found, count_text(config.ranks, "rank")
        launch = waiting_launch(config, published)
        add_launch(config.cache_dir, launch)
        report = publish_queue(config)
        if reason := why_kept(report, launch.created):
            reason = next((part.queued for part in published.values() if part.queued), reason)
            self._problem(f"not published yet, waits for warmrank store publish: {reason}")
            return
        self.record = report.committed[-1] if report.committed else ""  # the newest comes last
        # By the key, as ls and preseed call it; the record's own name is in the JSON.
        self._say(f"published {num}, launch {launch_key(config)[:12]}")

    def _ask(self, method: Callable[..., T], asked: Mapping[str, Sequence[Any]]) -> dict[str, T]:
        answers = self._nodes.ask(method, asked, timeout_s=None)
        if any(isinstance(answer, Lost) for answer in answers.values()):
            raise NotPublished("a node was lost")
        return {home: answer for home, answer in answers.items() if not isinstance(answer, Lost)}

    def _problem(self, text: str) -> None:
        if not self.is_over:
            self.problems.append(text)
            self._tell(text)

    def _say(self, text: str) -> None:
        if not self.is_over:
            self._tell(text)
