"""One node's part in `warmrank exec`: caches before the command, the command, what it added afterwards.

An `ExecNode` knows neither Ray nor torch: on a cluster it is an actor, with ``--here`` the driver has it. Its
methods may be called from several threads, so that a command goes on while its artifacts are published.
Partitions go to the store by way of the queue on the node's disk, so what the store does not take waits there
for ``warmrank store publish``. Of the command only the placeholders of `Placement` are replaced, so that JSON
and shell code with braces of their own pass through untouched.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from warmrank.cache_store.cache_dir.marks import admit, check_marks
from warmrank.cache_store.cache_dir.private_files import (
    make_private_directories,
    os_errors_are_unusable,
    sweep_debris,
    temporary_name,
)
from warmrank.cache_store.errors import NotInStore, StoreError, UnusableCache, is_final
from warmrank.cache_store.fetch.blobs import FetchOptions
from warmrank.cache_store.publish_pending import QueueReport, add_partition, publish_pending
from warmrank.cache_store.text import count_text
from warmrank.orchestrator.config.models import Config, launch_key, variable_of
from warmrank.orchestrator.errors import BadArgument, OrchestratorError
from warmrank.orchestrator.gang.launcher import free_port
from warmrank.orchestrator.gang.node_artifacts import NodeKeeper, trust_of
from warmrank.orchestrator.reaper_client import Chunk, ReapedCommand
from warmrank.orchestrator.stores import Target, is_writable, may_publish, open_store, open_to_fetch, targets
from warmrank.worker import journal
from warmrank.worker.keys.request import environment
from warmrank.worker.rank.manifests import made, of_journals
from warmrank.worker.results import FunctionResult, Published
from warmrank.worker.settings import expanded

if TYPE_CHECKING:
    from warmrank.cache_store.backends.backend import NewFile
    from warmrank.cache_store.records.manifest import PartitionManifest
    from warmrank.cache_store.store import Store

Work = Mapping[tuple[int, int], Counter[str]]
"""Look-ups that ended ``compiled``, ``loaded`` or ``adopted``, by world size and rank; those that loaded what
the store had when the command began are ``stored``."""

_JOURNALS = ".journal"
_HEADERS = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"
_EXEC = "exec-"


_PORT = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s/:\[\]]+):)?(?P<port>[0-9]+)", re.ASCII)
_CONNECT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A node's place in a world of ranks; the fields are the placeholders of the command.

    Each of ``nnodes`` has ``nproc`` of all ``ranks``; the port was free at the address of the first node.
    """

    node_rank: int
    nnodes: int
    nproc: int
    ranks: int
    master_addr: str
    master_port: int
    cache_dir: str

    def fill(self, word: str) -> str:
        """Replace ``{node_rank}`` and the like in a word of the command; other braces stay."""
        known = asdict(self)
        return re.sub("{(" + "|".join(known) + ")}", lambda match: str(known[match[1]]), word)

    def variables(self) -> dict[str, str]:
        """The same as environment variables."""
        own = {f"WARMRANK_{name.upper()}": str(value) for name, value in asdict(self).items()}
        return {**own, "TORCHAIR_CACHE_HOME": self.cache_dir}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGroup:
    """This host's place among those that each run ``exec --here``, with as many ranks, for one world."""

    nnodes: int
    node_rank: int
    run_id: str  # the same on all hosts of this run, and of no other
    master_addr: str = ""  # the first host's; empty where the command finds it
    master_port: int = 0  # there; 0 likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """Condition for a command to be ready, after which its additions are published; ``none``: never."""

    kind: Literal["file", "port", "exit", "none"]
    path: str = ""  # the file's, which may hold placeholders
    host: str = ""  # has the port; empty for this node
    port: int = 0

    def __str__(self) -> str:
        if self.kind == "file":
            return f"file {self.path} appears"
        if self.kind == "port":
            return f"port {self.host + ':' if self.host else ''}{self.port} accepts connections"
        return "the command ends with status 0" if self.kind == "exit" else "never"

    def mark(self) -> tuple[int, ...] | None:
        """Identity of the file, or of the port that accepts connections; None while there is none."""
        if self.kind == "file":
            with suppress(OSError):
                found = Path(self.path).stat()
                return found.st_ino, found.st_mtime_ns
        for host in ([self.host] if self.host else ["127.0.0.1", "::1"]) if self.kind == "port" else []:
            with suppress(OSError):
                socket.create_connection((host, self.port), timeout=_CONNECT_S).close()
                return (self.port,)
        return None


def parse_when(text: str) -> When:
    """Read ``exit``, ``none``, ``PORT``, ``HOST:PORT``, or else the path of a file; raises `BadArgument`."""
    if text in ("exit", "none"):
        return When(kind="exit" if text == "exit" else "none")
    match = _PORT.fullmatch(text)
    if match is not None and 0 < int(match["port"]) < 2**16:
        return When(kind="port", host=(match["host"] or "").strip("[]"), port=int(match["port"]))
    if match is not None or not text or (":" in text and "/" not in text):
        msg = (
            f"--publish-when {text!r}: expected exit, none, a port from 1 to 65535 (or HOST:PORT), or the "
            "path of a file (./NAME for one whose name is a number or has a colon)"
        )
        raise BadArgument(msg)
    return When(kind="file", path=text)


class NotPublished(OrchestratorError):
    """Files that a command added cannot be published; the message says why."""


class Synced(NamedTuple):
    """Transfers from and to the store, and faults, one line each; ``found``: the store has the launch."""

    said: list[str]
    problems: list[str]
    found: bool = False


class State(NamedTuple):
    """News from a node."""

    output: Sequence[Chunk] = ()  # since the last call
    status: int | None = None  # once all of it has ended and its output was taken
    is_ready: bool = False  # the condition held at some time


class ExecNode:
    """Runs the command on one node."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._tools: Mapping[str, Target] = {}
        self._keeper = NodeKeeper(config)
        self._stored: set[str] = set()  # sha256s of what the store has of the launch
        self._journals = config.cache_dir / _JOURNALS / f"{_EXEC}{temporary_name()}"
        self._command: ReapedCommand | None = None
        self._when = When(kind="none")
        self._mark_before: tuple[int, ...] | None = None
        self._is_ready = False

    def port(self, address: str) -> int:
        """A free port of this node."""
        return free_port(address)

    def prepare(self, placement: Placement) -> Synced:
        """Fetch what the store has of the launch and of the command's tools.

        Raises:
            BadArgument: a key of ``exec.keys`` is unknown here.
            StoreError: the cache directory cannot be used, or a required place of the store is away.
        """
        config = self._config
        admit(config.cache_dir, *trust_of(config))
        self._keeper.begin()
        self._tools = _tools_of(config, placement)
        if config.store is None:
            return Synced(["the config names no store: nothing is fetched, and nothing published"], [])
        for directory, _ in self._tools.values():  # also where the store is away
            check_marks(directory, *trust_of(config))
        try:
            # A store that is to be filled is made, as by a launch.
            fills = is_writable(config.store.tiers) and may_publish(config.store.trust)
            return self._fetch(
                open_store(config.store, to_sign=False) if fills else open_to_fetch(config.store)
            )
        except StoreError as error:
            if is_final(error) or isinstance(error, UnusableCache):
                raise
            return Synced([], [str(error)])

    def _fetch(self, store: Store) -> Synced:
        """Partitions of all ranks, because the command may place them as it likes; then the directories."""
        report = self._keeper.fetch(store, options=FetchOptions(held=self._note_stored))
        done = Synced([], [*report.faults], report.found)
        if report.found:
            num = count_text(len(report.partitions), "partition")
            copied = f"{num} in the cache, {report.bytes_copied} bytes copied in {report.seconds:.2f} s"
            done.said.append(f"{copied}: {report.reason}")
        elif self._config.workload:
            done.said.append(f"nothing fetched, so what is not on this disk is compiled: {report.reason}")
        for tool, (directory, components) in self._tools.items():
            try:
                pulled = store.pull_directory(tool, directory, components)
            except NotInStore as miss:
                done.said.append(f"{tool}: nothing to pull: {miss.remedy}")
            except StoreError as error:
                if is_final(error):
                    raise
                done.problems.append(f"{tool}: not pulled: {error}")
            else:
                files = count_text(pulled.num_files, "file")
                done.said.append(f"{tool}: pulled {pulled.num_new} new of {files}")
                done.problems.extend(f"{tool}: {problem}" for problem in pulled.problems)
        return _with_those_of(store, done)

    def _note_stored(self, files: Iterable[NewFile]) -> None:
        self._stored.update(file.expected.sha256 for file in files)

    def start(
        self, words: Sequence[str], placement: Placement, when: When, grace_s: float, captured: bool
    ) -> None:
        """Start the command, whose words may hold placeholders.

        A file of an earlier run does not count for ``when``. If ``captured``, `poll` takes the output, and
        ends the command when it stays away for ``watch.lease_s``; else it has this process's streams.

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
        sweep_debris(self._journals.parent, _EXEC)  # of a run that was killed
        with os_errors_are_unusable("directory", self._journals):
            make_private_directories(self._journals)
        told = {variable_of(cache): str(self._tools[cache.tool][0]) for cache in self._config.exec.sync}
        told |= {**placement.variables(), "WARMRANK_JOURNAL_DIR": str(self._journals)}
        told |= {"WARMRANK_NO_COMPILE": "1"} if self._config.no_compile else {}
        told.pop("", None)  # a tool that finds its directory by itself
        if "inductor" in self._tools:  # whose precompiled C++ headers lie outside of its directory
            told |= {_HEADERS: os.environ.get(_HEADERS, "0")}
        # In a process of Ray, without what that tells its workers.
        kept = ("RAY_ADDRESS",) if captured else tuple(os.environ)
        own = {name: os.environ[name] for name in os.environ if name in kept or not name.startswith("RAY_")}
        self._command = ReapedCommand(
            [placement.fill(word) for word in words],
            environ={**own, **told},
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

    def push(self) -> Synced:
        """Store the tools' directories that are there."""
        done = Synced([], [])
        if not self._tools:
            return done
        try:
            assert self._config.store is not None  # noqa: S101 - nothing is published without one
            store = open_store(self._config.store)
        except StoreError as error:
            done.problems.append(f"directories of tools are not pushed: {error}")
            return done
        for tool, (directory, components) in self._tools.items():
            if not directory.is_dir() or not any(directory.iterdir()):
                done.said.append(f"{tool}: nothing to push: the command made nothing in {directory}")
                continue
            try:
                pushed = store.push_directory(tool, directory, components)
            except (StoreError, OSError) as error:
                done.problems.append(f"{tool}: not pushed: {error}")
            else:
                files = count_text(pushed.num_files, "file")
                done.said.append(f"{tool}: pushed {files}, {pushed.num_blobs_new} of them new to the store")
        return _with_those_of(store, done)

    def work(self) -> Work:
        """Work of this node's ranks so far, without those whose journals hold nothing.

        Raises:
            NotPublished: a journal cannot be read.
        """
        try:
            found = {
                whose: Counter(self._outcome(result) for file in files for result, _ in journal.read(file))
                for whose, files in journal.by_rank(self._journals).items()
            }
        except (OSError, ValueError, LookupError, TypeError) as error:
            msg = f"the ranks' journals cannot be read: {error}"
            raise NotPublished(msg) from error
        return {whose: outcomes for whose, outcomes in found.items() if outcomes}

    def _outcome(self, result: FunctionResult) -> str:
        is_stored = result.outcome == "loaded" and result.digest in self._stored
        return "stored" if is_stored else result.outcome

    def publish(self, ranks: Sequence[int]) -> dict[int, Published]:
        """Publish partitions of ranks that ran on this node, or let them wait on its disk.

        The node's artifacts go with the first rank.

        Raises:
            StoreError: a required place of the store is away, or the cache directory cannot be used.
            NotPublished: the command compiled in another environment than this process's.
        """
        config, root, files = self._config, self._config.cache_dir, journal.by_rank(self._journals)
        done: dict[int, Published] = {}
        for rank in ranks:
            journals = files[config.ranks, rank]
            manifest = made(of_journals(journals, rank=rank, world_size=config.ranks, root=root))
            _check_environment(manifest)
            if not done:
                manifest = self._keeper.with_artifacts(manifest)
            done[rank] = Published(
                ref=None,
                environment=manifest.environment,
                partition=manifest.partition,
                key=add_partition(root, launch_key(config), manifest),
            )
        report = publish_queue(config)
        return {rank: replace(part, queued=why_kept(report, part.key[:12])) for rank, part in done.items()}

    def close(self) -> None:
        """End what still runs, and remove the journals."""
        if self._command is not None:
            self._command.close()
            self._command = None
        shutil.rmtree(self._journals, ignore_errors=True)
        with suppress(OSError):  # others' journals lie there
            self._journals.parent.rmdir()


def _with_those_of(store: Store, done: Synced) -> Synced:
    """Add what the store went on without."""
    done.problems.extend(problem for problem in store.problems if problem not in done.problems)
    return done


def _tools_of(config: Config, placement: Placement) -> dict[str, Target]:
    """The directories of tools on this node; nodes of one world keep theirs apart, as their ranks differ."""
    # By default all that is known of the environment, and the launch: else models push under one key in turns
    known = [f"{name}={value}" for name, value in sorted(environment().items())]
    keys = list(config.exec.keys) or [*known, f"launch={launch_key(config)}"]
    keys += [f"node={placement.node_rank} of {placement.nnodes}"] if placement.nnodes > 1 else []
    paths = {
        each.tool: expanded(each.path) if each.path else str(config.cache_dir / "tools" / each.tool)
        for each in config.exec.sync
    }
    return {tool: targets([path], keys)[0] for tool, path in paths.items()}


def _check_environment(manifest: PartitionManifest) -> None:
    """Refuse artifacts whose environment is not the one that the manifest would give."""
    for request in manifest.requests:
        for name, value in manifest.environment.items():
            if (found := request.components.get(name, value)) != value:
                msg = (
                    f"the command compiled with {name} {found}, and warmrank runs with {name} {value}: "
                    "nodes would look for the launch in vain. Install warmrank where the command runs"
                )
                raise NotPublished(msg)


def publish_queue(config: Config) -> QueueReport:
    """Publish all that waits on this disk; a store that is away is why it is kept."""
    assert config.store is not None  # noqa: S101 - nothing is published without one
    try:
        return publish_pending(open_store(config.store), config.cache_dir)
    except StoreError as error:
        if is_final(error):
            raise
        return QueueReport(published=(), committed=(), kept={"": str(error)}, dropped={}, problems=())


def why_kept(report: QueueReport, name: str) -> str:
    """The reason why something still waits, or never will be published; empty for neither."""
    reasons = {**report.dropped, **report.kept}
    return next((why for label, why in reasons.items() if name in label or not label), "")
