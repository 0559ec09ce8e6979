"""One node's part in `warmrank exec`, and how the driver talks to nodes: here in this process, or by Ray.

An `ExecNode` knows neither Ray nor torch: on a cluster it is an actor, with ``--here`` the driver has it. Its
methods may be called from several threads, so that a command goes on while its artifacts are published. What
a node raises is raised at the driver; a node that does not answer in time, or is gone, is lost. When an actor
ends, by whatever, its command ends with it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from warmrank.cache_store.errors import StoreError, UnusableCache, is_final
from warmrank.cache_store.node.admission import admit
from warmrank.cache_store.node.private_files import (
    ensure_cache_dir,
    make_private_directories,
    sweep_debris,
    temporary_name,
)
from warmrank.cache_store.seed import Wanted, seed
from warmrank.cache_store.store import Store
from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.config.serving import variable_of
from warmrank.orchestrator.errors import BadArgument, CannotStart, first_line
from warmrank.orchestrator.exec.placement import Placement, When, choose_nodes, num_fitting
from warmrank.orchestrator.exec.publish import (
    Synced,
    Tools,
    Work,
    publish_ranks,
    pull_tools,
    push_tools,
    tools_of,
    work_in,
)
from warmrank.orchestrator.gang import ray_session
from warmrank.orchestrator.gang.node_artifacts import NodeKeeper, keeper_of
from warmrank.orchestrator.gang.on_node import options_on
from warmrank.orchestrator.gang.ports import free_port
from warmrank.orchestrator.launch.identity import launch_key
from warmrank.orchestrator.nodes import Node, alive, choose, this_node
from warmrank.orchestrator.reaper import Chunk, ReapedCommand
from warmrank.orchestrator.show.figures import count_text
from warmrank.orchestrator.signals import undisturbed
from warmrank.orchestrator.store.stores import is_writable, may_publish, open_store, open_to_fetch
from warmrank.worker.environment import environment
from warmrank.worker.results import Published

T = TypeVar("T")

_CLOSE_S = 60.0
_CALLS_AT_ONCE = 4
"""A poll, a signal and a publish go on side by side."""
_JOURNALS = ".journal"
_EXEC = "exec-"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """News from a node.

    Attributes:
        output: of the command, since the last call.
        status: its exit status, once all of it has ended and its output was taken.
        is_ready: the condition held at some time.
    """

    output: Sequence[Chunk] = ()
    status: int | None = None
    is_ready: bool = False


class ExecNode:
    """Runs the command on one node.

    Args:
        config: the launch.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._tools: Tools = {}
        self._keeper: NodeKeeper | None = None
        self._journals = config.cache_dir / _JOURNALS / f"{_EXEC}{temporary_name()}"
        self._command: ReapedCommand | None = None
        self._when = When(kind="none")
        self._mark_before: tuple[int, ...] | None = None
        self._is_ready = False

    def port(self, address: str) -> int:
        """A free port of this node."""
        return free_port(address)

    def prepare(self, placement: Placement) -> tuple[bool, Synced]:
        """Fetch what the store has of the launch, and of the command's tools.

        Returns:
            Whether the store has the launch; what was fetched.

        Raises:
            BadArgument: a key of ``exec.keys`` is unknown here.
            StoreError: the cache directory cannot be used, or a required place of the store is away.
        """
        config = self._config
        if config.store is None:
            ensure_cache_dir(config.cache_dir)
        else:
            admit(config.cache_dir, config.store.trust.policy or "require", config.store.trust.revoked)
        self._keeper = keeper_of(config)
        if self._keeper is not None:
            self._keeper.begin()
        self._tools = tools_of(config, placement.node_rank, placement.nnodes)
        if config.store is None:
            return False, Synced(
                said=["the config names no store: nothing is fetched, and nothing published"]
            )
        try:
            # A store that is to be filled is made, as by a launch.
            fills = is_writable(config.store.tiers) and may_publish(config.store.trust)
            return self._fetch(
                open_store(config.store, to_sign=False) if fills else open_to_fetch(config.store)
            )
        except StoreError as error:
            if is_final(error) or isinstance(error, UnusableCache):
                raise
            return False, Synced(problems=[str(error)])

    def _fetch(self, store: Store) -> tuple[bool, Synced]:
        """Partitions of all ranks, because the command may place them as it likes; then the directories."""
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
        num_bytes = sum(part.bytes_copied for part in report.partitions)
        num = count_text(len(report.partitions), "partition")
        fetched = f"{num} in the cache, {num_bytes} bytes copied in {report.seconds:.2f} s: {report.reason}"
        missed = f"nothing fetched, so what is not on this disk is compiled: {report.reason}"
        tools = pull_tools(store, self._tools)
        said = [fetched] if report.found else [missed] if self._config.workload else []
        return report.found, Synced(said=said + tools.said, problems=[*report.faults, *tools.problems])

    def start(
        self, words: Sequence[str], placement: Placement, when: When, grace_s: float, captured: bool
    ) -> None:
        """Start the command.

        Args:
            words: the command, with its placeholders.
            placement: of this node.
            when: the command is ready; a file of an earlier run does not count.
            grace_s: seconds from SIGTERM to SIGKILL.
            captured: `poll` takes its output, and who does not call that for ``watch.lease_s`` has lost it;
                otherwise it has this process's streams.

        Raises:
            BadArgument: somebody listens at the port already.
        """
        self._when = replace(when, path=placement.fill(when.path))
        self._mark_before = self._when.mark()
        if when.kind == "port" and self._mark_before is not None:
            msg = (
                f"--publish-when: {when} already, before the command was started; end what listens there, or "
                "let the command listen at another port"
            )
            raise BadArgument(msg)
        make_private_directories(self._journals.parent)
        sweep_debris(self._journals.parent, _EXEC)  # of a run that was killed
        make_private_directories(self._journals)
        caches = self._config.exec.sync
        told = {variable_of(cache): str(self._tools[cache.tool].directory) for cache in caches}
        told |= {**placement.variables(), "WARMRANK_JOURNAL_DIR": str(self._journals)}
        told |= {"WARMRANK_NO_COMPILE": "1"} if self._config.no_compile else {}
        told.pop("", None)  # a tool that finds its directory by itself
        self._command = ReapedCommand(
            [placement.fill(word) for word in words],
            environ={**own_environ(of_ray=captured), **told},
            grace_s=grace_s,
            lease_s=self._config.watch.lease_s if captured else None,
            captured=captured,
        )

    def poll(self, wait_s: float, reads: bool = True) -> State:
        """Return what is new; wait that long for it. Output that is not read waits with the command."""
        assert self._command is not None  # noqa: S101 - after `start`
        output, status = self._command.poll(wait_s, reads=reads)
        self._is_ready = self._is_ready or self._when.mark() not in (None, self._mark_before)
        return State(output=output, status=status, is_ready=self._is_ready)

    def signal(self, number: int) -> None:
        """Send the command's process group a signal; SIGKILL kills it and all below it."""
        if self._command is not None:
            self._command.signal(number)

    def work(self) -> Work:
        """What the ranks of this node did so far."""
        return work_in(self._journals)

    def push(self) -> Synced:
        """Store the tools' directories."""
        assert self._config.store is not None  # noqa: S101 - nothing is published without one
        try:
            return push_tools(open_store(self._config.store), self._tools) if self._tools else Synced()
        except StoreError as error:
            return Synced(problems=[f"directories of tools are not pushed: {error}"])

    def publish(self, ranks: Sequence[int]) -> dict[int, Published]:
        """Publish the partitions of ranks that ran here; see `publish_ranks`."""
        return publish_ranks(self._config, self._journals, ranks, self._keeper)

    def close(self) -> None:
        """End what still runs, and remove the journals."""
        if self._command is not None:
            self._command.close()
            self._command = None
        shutil.rmtree(self._journals, ignore_errors=True)
        with suppress(OSError):  # others' journals lie there
            self._journals.parent.rmdir()


def own_environ(*, of_ray: bool) -> dict[str, str]:
    """This process's environment, in a process of Ray without what that tells its workers."""
    environ = dict(os.environ)
    if of_ray:
        return {
            name: environ[name] for name in environ if not name.startswith("RAY_") or name == "RAY_ADDRESS"
        }
    return environ


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The answer of a node that gives none any more."""

    reason: str


class NodeGroup(Protocol):
    """Nodes by their position in ``nodes``; ``ports`` has a free port of each."""

    nodes: tuple[Node, ...]
    ports: tuple[int, ...]
    captured: bool
    """Whether the command's output comes through `ExecNode.poll`."""

    def ask(
        self, method: Callable[..., T], arguments: Mapping[int, Sequence[Any]], *, timeout_s: float | None
    ) -> dict[int, T | Lost]:
        """Call a method of `ExecNode` on nodes, all at once; raises what one of them does."""

    def close(self) -> None:
        """End what the nodes still run."""


class LocalNode:
    """This node alone, without Ray."""

    captured = False

    def __init__(self, config: Config) -> None:
        self.nodes: tuple[Node, ...] = (replace(this_node(), address="127.0.0.1"),)
        self._node = ExecNode(config)
        self.ports: tuple[int, ...] = (self._node.port("127.0.0.1"),)

    def ask(
        self, method: Callable[..., T], arguments: Mapping[int, Sequence[Any]], *, timeout_s: float | None
    ) -> dict[int, T | Lost]:
        """See `NodeGroup.ask`; nothing here needs the time-out."""
        del timeout_s
        return {index: method(self._node, *given) for index, given in arguments.items()}

    def close(self) -> None:
        """See `NodeGroup.close`."""
        self._node.close()


class RayNodes:
    """Nodes of the config's cluster: an actor on each holds what the ranks there would get.

    Args:
        config: the launch.
        wanted: names of nodes; none for as many as the ranks need.

    Raises:
        CannotStart: the cluster cannot be joined, or the ranks do not fit.
        UnknownNode: a name fits no alive node, or several.
    """

    captured = True

    def __init__(self, config: Config, wanted: Sequence[str]) -> None:
        self.nodes: tuple[Node, ...] = ()
        self.ports: tuple[int, ...] = ()
        self._actors: list[Any] = []
        self._session = ray_session.enter(config.ray, timeout_s=config.timeouts.start_s)
        try:
            self._start(config, wanted)
        except BaseException:
            self.close()
            raise

    def _start(self, config: Config, wanted: Sequence[str]) -> None:
        import ray

        each = ray_session.rank_resources(config.ray, config.device)
        known = ray.nodes()  # type: ignore[no-untyped-call]
        resources = {node["NodeID"]: node["Resources"] for node in known}
        rooms = {node: num_fitting(resources[node.node_id], each) for node in choose(alive(known), wanted)}
        self.nodes = choose_nodes(rooms, config.ranks, named=bool(wanted))
        needed = {name: amount * (config.ranks // len(self.nodes)) for name, amount in each.items()}
        environ = ray_session.rank_environ(config.ray, config.device, self._session.way_in)
        options = {
            "num_cpus": needed.get("CPU", 0),
            "num_gpus": needed.get("GPU", 0),
            "resources": {name: amount for name, amount in needed.items() if name not in ("CPU", "GPU")},
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": _CALLS_AT_ONCE,
        }
        actor = ray.remote(ExecNode)
        self._actors = [
            actor.options(**{**options_on(node.node_id, {"env_vars": environ}), **options}).remote(config)
            for node in self.nodes
        ]
        addresses = {index: (node.address,) for index, node in enumerate(self.nodes)}
        ports = self.ask(ExecNode.port, addresses, timeout_s=config.timeouts.start_s)
        for index, port in ports.items():
            if isinstance(port, Lost):
                amounts = ", ".join(f"{amount:g} {name}" for name, amount in needed.items())
                msg = (
                    f"{self.nodes[index]}: no place for the command: {port.reason} (it wants {amounts}); "
                    "wait until others end, or raise timeouts.start_s"
                )
                raise CannotStart(msg)
        self.ports = tuple(port for _, port in sorted(ports.items()) if not isinstance(port, Lost))

    def ask(
        self, method: Callable[..., T], arguments: Mapping[int, Sequence[Any]], *, timeout_s: float | None
    ) -> dict[int, T | Lost]:
        """See `NodeGroup.ask`."""
        import ray

        refs = {
            index: getattr(self._actors[index], method.__name__).remote(*given)
            for index, given in arguments.items()
        }
        ready, _ = ray.wait(list(refs.values()), num_returns=len(refs), timeout=timeout_s)
        answers: dict[int, T | Lost] = {}
        for index, ref in refs.items():
            try:
                answers[index] = (
                    ray.get(ref) if ref in ready else Lost(reason=f"no answer in {timeout_s:g} s")
                )
            except ray.exceptions.RayTaskError as error:
                raise error.cause or error from error
            except ray.exceptions.RayError as error:
                answers[index] = Lost(reason=first_line(error))
        return answers

    def close(self) -> None:
        """See `NodeGroup.close`."""
        import ray

        with undisturbed():
            refs = [actor.close.remote() for actor in self._actors]
            if refs:
                ray.wait(refs, num_returns=len(refs), timeout=_CLOSE_S)
            for actor in self._actors:
                ray.kill(actor)
            self._actors = []
            ray_session.leave(self._session)
