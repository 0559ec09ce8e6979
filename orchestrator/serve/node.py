"""One node's part in `warmrank exec`: caches before the command, the command, what it added afterwards.

A plain object without Ray or torch, whose methods take and return plain values: on a cluster it lives in an
actor, with ``--here`` in the command line's own process. Invariants: publishing happens in a thread, so that
output and signals go on meanwhile; the store is opened there, because a `Store` belongs to one thread.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from warmrank.cache_store.errors import StoreError, UnusableCache, is_final
from warmrank.cache_store.node.admission import admit
from warmrank.cache_store.node.private_files import (
    ensure_cache_dir,
    make_private_directories,
    sweep_debris,
    temporary_name,
)
from warmrank.cache_store.seed import SeedReport, Wanted, seed
from warmrank.cache_store.store import Store
from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.config.store import StoreConfig
from warmrank.orchestrator.gang.node_artifacts import NodeKeeper, keeper_of
from warmrank.orchestrator.gang.ports import free_port
from warmrank.orchestrator.launch.identity import launch_key
from warmrank.orchestrator.serve.answers import Added, Order, Prepared, State
from warmrank.orchestrator.serve.command import Command
from warmrank.orchestrator.serve.places import Place, filled, variables
from warmrank.orchestrator.serve.publishing import RankWork, publish_ranks, work_in
from warmrank.orchestrator.serve.readiness import Readiness
from warmrank.orchestrator.serve.tools import (
    ToolDirectory,
    pull_all,
    push_all,
    tool_directories,
    tool_variables,
)
from warmrank.orchestrator.store.stores import is_writable, may_publish, open_store, open_to_fetch
from warmrank.orchestrator.text import count_text
from warmrank.worker.environment import environment

JOURNALS = ".journal"
_EXEC = "exec-"
_RAY = "RAY_"
_LOOK_S = 0.5
_KEPT_OF_RAY = frozenset({"RAY_ADDRESS"})


class ServingNode:
    """Runs the command on one node.

    Args:
        config: the launch.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._tools: tuple[ToolDirectory, ...] = ()
        self._keeper: NodeKeeper | None = None
        self._journals: Path | None = None
        self._command: Command | None = None
        self._readiness: Readiness | None = None
        self._is_ready = False
        self._heard_s = 0.0
        self._thread: threading.Thread | None = None
        self._added: Added | None = None

    def port(self, address: str) -> int:
        """A port of this node that is free now."""
        return free_port(address)

    def prepare(self, place: Place) -> Prepared:
        """Bring what the store has of the launch, and of the command's tools.

        Raises:
            BadArgument: a key of ``exec.keys`` cannot be found out here.
            StoreError: the cache directory cannot be used, or a place that is required is away.
        """
        config = self._config
        if config.store is None:
            ensure_cache_dir(config.cache_dir)
        else:
            admit(config.cache_dir, config.store.trust.policy or "require", config.store.trust.revoked)
        self._keeper = keeper_of(config)
        if self._keeper is not None:
            self._keeper.begin()
        self._tools = tool_directories(config, place)
        if config.store is None:
            said = ("the config names no store: nothing is fetched, and nothing published",)
            return Prepared(found=False, said=said, problems=())
        try:
            return self._fetch(config.store)
        except StoreError as error:
            if is_final(error) or isinstance(error, UnusableCache):
                raise
            return Prepared(found=False, said=(), problems=(str(error),))

    def _fetch(self, config: StoreConfig) -> Prepared:
        """Partitions of all ranks, because the command may place them as it likes; then the directories."""
        # A store that is to be filled is made, as by a launch.
        to_fill = is_writable(config.tiers) and may_publish(config.trust)
        store = open_store(config, to_sign=False) if to_fill else open_to_fetch(config)
        keeper = self._keeper
        wanted = Wanted(
            launch_key=launch_key(self._config),
            environment=environment(),
            world_size=self._config.ranks,
            node_caches=keeper.destinations if keeper is not None else None,
        )
        report = seed(store, wanted, self._config.cache_dir)
        if keeper is not None:
            keeper.take_over(report.node)
        said, problems = pull_all(store, self._tools)
        return Prepared(
            found=report.found,
            said=(*([_seeded(report)] if report.found or self._config.workload else []), *said),
            problems=(*report.faults, *problems),
        )

    def start(self, order: Order) -> None:
        """Start the command.

        Raises:
            CannotRun: there is no such program, or it may not be run.
            BadArgument: its condition holds before it began.
        """
        root = self._config.cache_dir / JOURNALS
        make_private_directories(root)
        sweep_debris(root, _EXEC)  # of a run that was killed
        self._journals = root / f"{_EXEC}{temporary_name()}"
        make_private_directories(self._journals)
        when = replace(order.when, path=filled(order.when.path, order.place))
        self._readiness = Readiness(when)
        told = variables(order.place, journals=str(self._journals), no_compile=self._config.no_compile)
        self._command = Command(
            [filled(word, order.place) for word in order.words],
            environ={**_own_environ(of_ray=order.captured), **told, **tool_variables(self._tools)},
            grace_s=order.grace_s,
            captured=order.captured,
        )
        self._heard_s = time.monotonic()
        if order.captured:
            threading.Thread(
                target=self._end_without_driver, args=(self._command,), name="exec-lease", daemon=True
            ).start()

    def poll(self, wait_s: float, wants_output: bool = True) -> State:
        """What is new; waits that long for the end of the command, whose output may have to wait here."""
        assert self._command is not None and self._readiness is not None  # noqa: S101, PT018 - after `start`
        self._heard_s = time.monotonic()
        output = self._command.output() if wants_output else []
        status = self._command.poll(0.0 if output else wait_s)
        self._is_ready = self._is_ready or self._readiness.holds()
        if status is not None and not (wants_output and self._command.is_drained):
            status = None  # its last words come first
        if wants_output:
            output += self._command.output()
        return State(output=tuple(output), status=status, is_ready=self._is_ready)

    def signal(self, number: int) -> None:
        """Send the command's process group a signal."""
        if self._command is not None:
            self._command.signal(number)

    def kill(self) -> None:
        """Kill the command and all below it."""
        if self._command is not None:
            self._command.kill()

    def work(self) -> tuple[RankWork, ...]:
        """What the ranks of this node did so far."""
        return work_in(self._journals) if self._journals is not None else ()

    def begin_push(self) -> None:
        """Store the tools' directories, in a thread; `added` says what became of it."""
        self._begin(self._push)

    def begin_publish(self, ranks: Sequence[int]) -> None:
        """Publish the partitions of ranks that ran here, in a thread; `added` says what became of them."""
        self._begin(lambda: self._publish(ranks))

    def added(self, wait_s: float = 0.0) -> Added | None:
        """What the thread brought to the store; None while it is at work."""
        if self._thread is not None:
            self._thread.join(wait_s)
        return self._added

    def close(self) -> None:
        """End what still runs, and remove the journals."""
        if self._command is not None:
            self._command.close()
            self._command = None
        if self._journals is not None:
            shutil.rmtree(self._journals, ignore_errors=True)
            with suppress(OSError):  # others' journals lie there
                self._journals.parent.rmdir()
            self._journals = None

    def _end_without_driver(self, command: Command) -> None:
        """End the command when nobody has asked for it in time: the driver is gone, or cut off."""
        lease_s = self._config.watch.lease_s
        while command.status is None:
            if time.monotonic() - self._heard_s > lease_s:
                command.signal(signal.SIGTERM)
                return
            time.sleep(min(_LOOK_S, lease_s))

    def _begin(self, act: Callable[[], Added]) -> None:
        def run() -> None:
            try:
                self._added = act()
            except Exception as error:  # noqa: BLE001 - the thread's edge: nothing may stop the command
                self._added = Added(problems=(f"not published: {error}",))

        self._added = None
        self._thread = threading.Thread(target=run, name="exec-publish", daemon=True)
        self._thread.start()

    def _push(self) -> Added:
        store, problem = self._store()
        if store is None:
            return Added(problems=(f"directories of tools are not pushed: {problem}",))
        said, problems = push_all(store, self._tools)
        return Added(said=said, problems=problems)

    def _publish(self, ranks: Sequence[int]) -> Added:
        assert self._journals is not None  # noqa: S101 - after `start`
        store, _ = self._store()
        published = publish_ranks(self._config, store, self._journals, ranks, self._keeper)
        problems = dict.fromkeys(problem for part in published.values() for problem in part.problems)
        return Added(published=published, problems=tuple(problems))

    def _store(self) -> tuple[Store | None, str]:
        assert self._config.store is not None  # noqa: S101 - nothing is published without one
        try:
            return open_store(self._config.store), ""
        except StoreError as error:
            if is_final(error):
                raise
            return None, str(error)


def _seeded(report: SeedReport) -> str:
    """What the store had, in a line."""
    if not report.found:
        return f"nothing fetched, so what is not on this disk is compiled: {report.reason}"
    num_bytes = sum(part.bytes_copied for part in report.partitions)
    num = count_text(len(report.partitions), "partition")
    return f"{num} in the cache, {num_bytes} bytes copied in {report.seconds:.2f} s: {report.reason}"


def _own_environ(*, of_ray: bool) -> dict[str, str]:
    """This process's environment, in a process of Ray without what that tells its workers."""
    return {
        name: value
        for name, value in os.environ.items()
        if not of_ray or not name.startswith(_RAY) or name in _KEPT_OF_RAY
    }
