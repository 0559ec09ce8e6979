"""The processes of an offline build's ranks: one that imports torch, and a fork of it for every rank.

A fork costs milliseconds where a start of torch costs seconds, and keeps the ranks apart: each has its own
process groups, as on a cluster. A rank says that it is up, answers what it is asked, and ends when the driver
closes its pipe, or is gone.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from warmrank.cache_store.cache_dir.private_files import ensure_cache_dir
from warmrank.orchestrator.config.models import HASH_SEED, Config, EntrypointWorkload
from warmrank.orchestrator.errors import ENDED_AT_ONCE, CannotStart, WorkerFailure
from warmrank.orchestrator.gang.launcher import Launcher
from warmrank.orchestrator.gang.node_group import left_s
from warmrank.orchestrator.gang.rank_host import Opened, RankHost, RankInit, answer, failure_of
from warmrank.orchestrator.gang.ray_session import import_paths, inherited
from warmrank.orchestrator.nodes import Gang, RankPlacement
from warmrank.orchestrator.signals import undisturbed
from warmrank.worker import collection
from warmrank.worker.errors import DeviceUnavailable
from warmrank.worker.results import Retraced

if TYPE_CHECKING:
    from warmrank.worker.rank.offline import OfflineRank

_STOP_TIMEOUT_S = 10.0
_IDLE_END_S = 2.0


def offline_placement(config: Config, rank: int) -> RankPlacement:
    """A rank's place among all ranks of the launch, on one node."""
    return RankPlacement(
        rank=rank,
        local_rank=rank,
        local_world_size=config.ranks,
        node_rank=0,
        node_id="here",
        host=os.uname().nodename,
        pid=os.getpid(),
    )


class OfflineHost(RankHost):
    """`RankHost` of a rank that is not there."""

    worker: OfflineRank

    def open(  # type: ignore[override] # the driver says more
        self, init: RankInit, environment: Mapping[str, str], real_tensors: bool = False, kernels: bool = True
    ) -> Opened:
        """Check the cache directory and bring the rank up; errors as of `RankHost.open`.

        The environment is that of the machines that are built for. Without ``kernels``, functions are only
        traced.
        """
        from warmrank.worker.rank.offline import OfflineRank
        from warmrank.worker.settings import Target

        ensure_cache_dir(Path(init.spec.cache_dir))
        self._take(init)
        spec = self._spec
        machines = Target(device_kind=spec.device_kind, environment=dict(environment))
        self.worker = OfflineRank(spec, machines=machines, real_tensors=real_tensors, kernels=kernels)
        self._is_open = True
        return Opened(environment=self.worker.start(), problem="")

    def retrace(self, functions: tuple[str, ...]) -> tuple[Retraced, ...]:
        """Trace functions again and compare with what is stored; one that fails is a result."""
        found = []
        for name in functions:
            try:
                found.append(self.worker.retrace(name))
            except Exception as error:  # noqa: BLE001 - the rank's edge, as in `RankHost._compile`
                failure = failure_of(error, rank=self._spec.rank, stage="compile")
                reason = f"{failure.kind}: {failure.message}"
                found.append(Retraced(function=name, outcome="failed", reason=reason))
        return tuple(found)


def _nursery(connections: Mapping[int, Connection], module: str, path: Sequence[str]) -> None:
    """Import what every rank needs, fork the ranks, and wait for their end."""
    os.setsid()  # Ctrl-C is the driver's to handle, and what hangs is ended as a whole
    sys.path[:] = path
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a model that prints must not spoil a report
    for number in (signal.SIGTERM, signal.SIGINT):  # the driver ended it, and says so itself
        signal.signal(number, signal.SIG_DFL)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    # The driver's error has it, with --debug the traceback too.
    logging.getLogger(failure_of.__module__).setLevel(logging.CRITICAL)
    _import_ahead(module)
    gc.collect()
    collection.freeze()  # or the first collection of each rank would copy all memory that they share
    children: list[int] = []
    for rank, connection in connections.items():
        child = os.fork()
        if child == 0:
            for other in connections.values():
                if other is not connection:
                    other.close()
            _be(rank, connection)
        children.append(child)
    for connection in connections.values():
        connection.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the ranks
    for child in children:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


def _be(rank: int, connection: Connection) -> NoReturn:
    """Serve the driver as one rank, and end.

    Exit functions run, because a compiler may have private files to remove; the interpreter is not taken
    apart, which takes longer than all the rank had to do.
    """
    with contextlib.suppress(KeyboardInterrupt, EOFError, OSError):  # the driver stopped, and says so itself
        # By which the driver ends ranks that are at work.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        host = OfflineHost()
        connection.send("up")
        while True:
            stage, method, arguments = connection.recv()
            connection.send(answer(host, rank, stage, method, arguments))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an end that takes its time is none to be interrupted
    atexit._run_exitfuncs()  # noqa: SLF001 - nothing public does it
    sys.stderr.flush()
    os._exit(0)


def _import_ahead(module: str) -> None:
    """Import what a compile needs, and the workload's module: seconds for each rank otherwise."""
    from warmrank.worker.torch_private.fake_ranks import import_tracer

    for name in (
        "warmrank.worker.compile.compiler",
        "warmrank.worker.runtime.function",
        "warmrank.worker.engines.graph",
        "warmrank.worker.rank.offline",
    ):
        importlib.import_module(name)
    import_tracer()
    if "torch_npu" in sys.modules:
        from warmrank.worker.engines.torchair_vendor import vendor_for

        with contextlib.suppress(DeviceUnavailable):
            vendor_for("reduce-overhead")
    with contextlib.suppress(Exception):  # the ranks meet it again, and say so
        importlib.import_module(module)


class OfflineLauncher(Launcher):
    """Holds one process for each rank; see `orchestrator.gang.launcher.Launcher`."""

    def __init__(self, config: Config, ranks: Sequence[int], *, num_jobs: int) -> None:
        """Take the config, the global ranks that get a process, and how many of these work at a time."""
        self._config = config
        self._ranks = tuple(ranks)
        self._num_jobs = max(1, num_jobs)
        self._nursery: SpawnProcess | None = None
        self._connections: dict[int, Connection] = {}

    def start(self, num_ranks: int, *, timeout_s: float) -> Gang:
        """Start the processes; raises `CannotStart` if they do not come up, or not in time."""
        del num_ranks
        assert isinstance(self._config.workload, EntrypointWorkload)  # noqa: S101 - nothing else is built
        deadline = time.monotonic() + timeout_s
        # As in a launch: the current directory first, which an installed script has not got on its path.
        first = import_paths(sys.path, Path.cwd(), (sys.prefix, sys.base_prefix))
        path = [*first, *(part for part in sys.path if part and part not in first)]
        module = self._config.workload.entrypoint.partition(":")[0]
        context = multiprocessing.get_context("spawn")  # a fork would take this process's threads along
        pipes = {rank: context.Pipe() for rank in self._ranks}
        theirs = {rank: end for rank, (_, end) in pipes.items()}
        self._connections = {rank: end for rank, (end, _) in pipes.items()}
        # No daemon, whose models could start no processes; it ends with the pipes.
        self._nursery = context.Process(target=_nursery, args=(theirs, module, path))
        with undisturbed(), inherited(*HASH_SEED):  # no Ctrl-C ends it while it starts
            self._nursery.start()
        for end in theirs.values():
            end.close()
        nursery = self._nursery
        try:
            is_up = all(end.poll(left_s(deadline)) and end.recv() for end in self._connections.values())
        except (EOFError, OSError):
            is_up = False
        if not is_up:
            self.release()
            msg = (
                f"the process of the build's ranks ended with status {nursery.exitcode} before they were up; "
                "see its messages above, or raise timeouts.start_s"
            )
            raise CannotStart(msg)
        placements = (offline_placement(self._config, rank) for rank in self._ranks)
        return Gang(
            placements=tuple(replace(each, pid=nursery.pid or 0) for each in placements),
            master_addr="",
            master_port=0,
        )

    def call(
        self, stage: str, method: str, arguments: Mapping[int, tuple[Any, ...]], *, timeout_s: float
    ) -> Iterator[tuple[int, Any]]:
        """Call some ranks, a few at a time; what has not answered in time is left out."""
        deadline = time.monotonic() + timeout_s
        pool = ThreadPoolExecutor(self._num_jobs)
        try:
            asked = [
                pool.submit(_ask, self._connections[rank], rank, (stage, method, values), deadline)
                for rank, values in arguments.items()
            ]
            for done in as_completed(asked, timeout=timeout_s):
                answer = done.result()
                if answer is not None:
                    yield answer
        except NotInTime:
            return
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def release(self) -> None:
        """End every process; who is at work is interrupted, and who does not heed that is killed."""
        connections, self._connections = self._connections, {}
        nursery, self._nursery = self._nursery, None
        for connection in connections.values():
            connection.close()
        if nursery is None or nursery.pid is None:
            return
        for wait_s, number in ((_IDLE_END_S, signal.SIGINT), (_STOP_TIMEOUT_S, signal.SIGKILL)):
            nursery.join(wait_s)
            if nursery.exitcode is None:
                with contextlib.suppress(ProcessLookupError):  # it leads no group yet
                    os.killpg(nursery.pid, number)
        nursery.join()


def _ask(
    connection: Connection, rank: int, request: tuple[str, str, tuple[Any, ...]], deadline: float
) -> tuple[int, Any] | None:
    """Send a request and wait for the answer; None where it is late."""
    stage = request[0]
    try:
        connection.send(request)
        if not connection.poll(left_s(deadline)):
            return None
        return rank, connection.recv()
    except (EOFError, OSError):
        remedy = "look whether the system killed it for want of memory (dmesg); fewer --jobs take less"
        failure = WorkerFailure(
            rank=rank, stage=stage, kind="ProcessDied", message=ENDED_AT_ONCE, remedy=remedy
        )
        return rank, failure
