"""Brings what a command added to the store while the command goes on, or at its end.

Stepped by the driver, never waited for: `step` returns at once, or nodes would take the driver for lost while
a store is slow. Order: the tools' directories; then, once every rank of the world has loaded or compiled
something, their partitions, on the node of each; then, here and in a thread, the record of the launch.
Invariants: only nodes of the first world publish, other worlds made the same; whatever fails here is a
problem, and never ends the command.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from warmrank.cache_store.errors import StoreError, StoreUnavailable, is_final
from warmrank.cache_store.store import Store
from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.config.store import StoreConfig
from warmrank.orchestrator.launch.identity import launch_key
from warmrank.orchestrator.serve.answers import Added
from warmrank.orchestrator.serve.crew import Crew, Lost
from warmrank.orchestrator.serve.publishing import RankWork, commit_launch, not_whole
from warmrank.orchestrator.serve.world import World, exchange
from warmrank.orchestrator.store.stores import is_writable, may_publish, open_store
from warmrank.orchestrator.text import count_text
from warmrank.worker.results import Published

Phase = Literal["waiting", "pushing", "looking", "publishing", "committing", "done"]
Say = Callable[[str], None]

_NO_KEY = (
    "nothing will be published: trust.policy is require, and store.trust.signing_key is not set; make a key "
    "with warmrank keys generate and name it there"
)
_READ_ONLY = "nothing will be published: the store is only read (mode: ro)"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Committed:
    """What became of the record.

    Attributes:
        record: its key; empty where it is not in the store.
        reason: why it waits; empty where it does not.
        problem: what went wrong; empty where nothing did.
    """

    record: str = ""
    reason: str = ""
    problem: str = ""


class Publisher:
    """Publishes once.

    Args:
        config: the launch.
        crew: the nodes.
        nodes: positions of those of the first world.
        say: takes lines for people.
        world: the hosts that each run this, without Ray; None where all nodes are in ``crew``.
    """

    def __init__(
        self,
        config: Config,
        crew: Crew,
        nodes: Collection[int],
        say: Say,
        *,
        world: World | None = None,
    ) -> None:
        self.phase: Phase = "waiting"
        self.record = ""
        self.problems: list[str] = []
        self._config = config
        self._crew = crew
        self._nodes = nodes
        self._say = say
        self._world = world
        self._num_ranks_here = config.ranks // (world.num_nodes if world is not None else 1)
        self._expected: set[int] = set()
        self._homes: dict[int, tuple[int, ...]] = {}
        self._published: dict[int, Published] = {}
        self._committed: list[_Committed] = []

    def is_possible(self, store: StoreConfig | None) -> bool:
        """Whether anything can be published at all; says why not."""
        why = ""
        if store is not None and not is_writable(store.tiers):
            why = _READ_ONLY
        elif store is not None and not may_publish(store.trust):
            why = _NO_KEY
        if why:
            self.problem(why)
        if why or store is None:
            self.phase = "done"
        return self.phase != "done"

    def problem(self, text: str) -> None:
        """Something that did not work."""
        self.problems.append(text)
        self._say(text)

    def begin(self) -> None:
        """The command is ready."""
        self._begin("begin_push", dict.fromkeys(self._nodes, ()), "pushing")

    def step(self, *, has_ended: bool) -> None:
        """Go on as far as that is possible now.

        Args:
            has_ended: the command will add nothing more.
        """
        if self.phase in ("pushing", "publishing"):
            self._collect()
        elif self.phase == "looking":
            self._look(has_ended=has_ended)
        elif self.phase == "committing" and self._committed:
            self._report(self._committed[0])

    def give_up(self, why: str) -> None:
        """Publish nothing, or nothing more."""
        if self.phase != "done":
            self.phase = "done"
            self.problem(f"not published: {why}")

    def _ask(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        return self._crew.ask(method, arguments, timeout_s=self._config.watch.node_silent_s)

    def _begin(self, method: str, arguments: Mapping[int, tuple[Any, ...]], phase: Phase) -> None:
        answers = self._ask(method, arguments)
        if any(isinstance(answer, Lost) for answer in answers.values()):
            self.give_up("a node was lost")
            return
        self.phase, self._expected = phase, set(arguments)

    def _collect(self) -> None:
        """Take what nodes have done; go on when all have."""
        answers = self._ask("added", dict.fromkeys(self._expected, ()))
        for index, answer in answers.items():
            if isinstance(answer, Lost):
                self.give_up("a node was lost")
                return
            if isinstance(answer, Added):
                self._expected.discard(index)
                self._take(answer)
        if not self._expected:
            if self.phase == "pushing":
                self.phase = "looking"
            else:
                self._commit()

    def _take(self, added: Added) -> None:
        for line in added.said:
            self._say(line)
        for problem in added.problems:
            self.problem(problem)
        self._published |= added.published

    def _look(self, *, has_ended: bool) -> None:
        """Have all ranks of the world done something? If so each node publishes those that it has."""
        try:
            answers = self._ask("work", dict.fromkeys(self._nodes, ()))
        except (OSError, ValueError, LookupError, TypeError) as error:
            self.give_up(f"the ranks' journals cannot be read: {error}")
            return
        if any(isinstance(answer, Lost) for answer in answers.values()):
            self.give_up("a node was lost")
            return
        work: list[RankWork] = [each for index in sorted(answers) for each in answers[index]]
        why_not = not_whole(work, self._config.ranks, self._num_ranks_here)
        if not work and has_ended:
            self.phase = "done"  # nothing of the command goes through cache_compile
        elif why_not and has_ended:
            self.give_up(why_not)
        elif work and not why_not:
            self._begin_ranks(answers, work)

    def _begin_ranks(self, answers: Mapping[int, tuple[RankWork, ...]], work: list[RankWork]) -> None:
        num_new = sum(each.num_new for each in work)
        if not num_new and self._world is None:
            num_loaded = sum(each.num_loaded for each in work)
            self._say(f"nothing new to publish: {count_text(num_loaded, 'function')} loaded, 0 compiled")
            self.phase = "done"
            return
        taken: set[int] = set()
        for index in sorted(answers):
            there = {each.rank for each in answers[index] if each.world_size == self._config.ranks}
            self._homes[index] = tuple(sorted(there - taken))
            taken |= there
        self._homes = {index: ranks for index, ranks in self._homes.items() if ranks}
        self._begin("begin_publish", {index: (ranks,) for index, ranks in self._homes.items()}, "publishing")

    def _commit(self) -> None:
        """Begin to write the record, unless a partition is missing."""
        if len(self._published) < self._num_ranks_here:
            self.phase = "done"
            self.problem("not committed: some ranks' partitions could not be published")
            return
        self.phase = "committing"
        threading.Thread(target=self._write_record, name="exec-commit", daemon=True).start()

    def _write_record(self) -> None:
        try:
            if (published := self._of_all_hosts()) is None:
                self._committed.append(_Committed())
                return
            found = commit_launch(self._config, self._store(), published)
        except Exception as error:  # noqa: BLE001 - the thread's edge: nothing may stop the command
            self._committed.append(_Committed(problem=f"not committed: {error}"))
        else:
            self._committed.append(_Committed(record=found[0], reason=found[1]))

    def _of_all_hosts(self) -> Mapping[int, Published] | None:
        """The partitions of all ranks; None while other hosts have not published theirs.

        Raises:
            StoreUnavailable: hosts cannot tell each other anything without the store.
        """
        if self._world is None:
            return self._published
        if (away := next((part.queued for part in self._published.values() if part.queued), "")) or (
            store := self._store()
        ) is None:
            raise StoreUnavailable(
                what="the hosts of a world", where="the store", reason=away or "it is away"
            )
        return exchange(store, self._config, self._world, self._published)

    def _report(self, found: _Committed) -> None:
        self.phase, self.record = "done", found.record
        if found.problem:
            self.problem(found.problem)
        if found.reason:
            self.problem(f"not published yet, waits for warmrank publish: {found.reason}")
        if self._world is not None and not (found.problem or self.record):
            num = count_text(self._num_ranks_here, "rank")
            self._say(f"published {num}; the last of {self._world.num_nodes} hosts commits the launch")
        if self.record:
            new = count_text(sum(part.num_blobs_new for part in self._published.values()), "new artifact")
            num = count_text(self._config.ranks, "rank")
            # By the key, as ls and preseed call it; the record's own name is in the JSON.
            self._say(f"published {num}, {new}, launch {launch_key(self._config)[:12]}")

    def _store(self) -> Store | None:
        assert self._config.store is not None  # noqa: S101 - `is_possible` said so
        try:
            return open_store(self._config.store)
        except StoreError as error:
            if is_final(error):
                raise
            return None
