"""The processes of an offline build's ranks: one that imports torch, and a fork of it for every rank.

A fork costs milliseconds where a start of torch costs seconds, and keeps the ranks apart: each has its own
process groups, as on a cluster. The driver starts the first process with one line of JSON on its stdin::

    {"path": [...], "address": "...", "secret": "<hex>", "ranks": [0, 1, ...], "module": "..."}

Every rank connects to the address. All of them end when the driver closes their connections, or is gone.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from warmrank.cache_store.cache_dir.private_files import ensure_cache_dir
from warmrank.orchestrator.causes import WorkerFailure
from warmrank.orchestrator.config.models import HASH_SEED, Config, EntrypointWorkload
from warmrank.orchestrator.errors import CannotStart
from warmrank.orchestrator.gang.rank_host import Opened, RankHost, RankInit, answer, failure_of, rank_spec
from warmrank.orchestrator.gang.ray_session import import_paths
from warmrank.orchestrator.nodes import Gang, Seat
from warmrank.worker import collection
from warmrank.worker.errors import DeviceUnavailable
from warmrank.worker.results import LeftOut, Retraced

if TYPE_CHECKING:
    from warmrank.worker.rank.offline import OfflineRank

logger = logging.getLogger(__name__)

BOOTSTRAP = (
    "import json, sys\n"
    "hello = json.loads(sys.stdin.readline())\n"
    "sys.path[:] = hello['path']\n"
    "from warmrank.orchestrator.build.ranks import main\n"
    "main(hello)\n"
)
"""Code of the first process: it must find this package before it can import it."""


def init_of(config: Config, rank: int) -> RankInit:
    """A rank's place among all ranks of the launch, on one node, without a port where they could meet."""
    seat = Seat(
        rank=rank,
        local_rank=rank,
        local_world_size=config.ranks,
        node_rank=0,
        node_id="here",
        host=os.uname().nodename,
        pid=os.getpid(),
    )
    return RankInit(config=config, seat=seat, master_addr="", master_port=0, no_compile=False)


class OfflineHost(RankHost):
    """`RankHost` of a rank that is not there."""

    _worker: OfflineRank

    def open(  # type: ignore[override] # the driver says more
        self, init: RankInit, environment: Mapping[str, str], real_tensors: bool = False, kernels: bool = True
    ) -> Opened:
        """Check the cache directory and bring the rank up; errors as of `RankHost.open`.

        The environment is that of the machines that are built for. Without ``kernels``, functions are only
        traced.
        """
        from warmrank.worker.rank.offline import OfflineRank
        from warmrank.worker.settings import Target

        ensure_cache_dir(init.config.cache_dir)
        self._init, self._store, self._away = init, None, ""
        machines = Target(device_kind=init.config.device, environment=dict(environment))
        self._worker = OfflineRank(
            rank_spec(init), machines=machines, real_tensors=real_tensors, kernels=kernels
        )
        self._is_open = True
        return Opened(environment=self._worker.start(), problem="")

    def left_out(self) -> tuple[LeftOut, ...]:
        """See `worker.rank.offline.OfflineRank.left_out`."""
        return self._worker.left_out()

    def rank_bound(self) -> tuple[str, ...]:
        """See `worker.rank.offline.OfflineRank.rank_bound`."""
        return self._worker.rank_bound()

    def retrace(self, functions: tuple[str, ...]) -> tuple[Retraced, ...]:
        """Trace functions again and compare with what is stored; one that fails is a result."""
        return tuple(self._retrace(name) for name in functions)

    def _retrace(self, name: str) -> Retraced:
        try:
            return self._worker.retrace(name)
        except Exception as error:  # the rank's edge, as in `RankHost._compile`
            logger.exception("%s cannot be traced", name)
            failure = failure_of(error, rank=self._init.rank, stage="compile")
            reason = f"{failure.kind}: {failure.message}"
            return Retraced(function=name, outcome="failed", reason=reason)


def main(hello: Mapping[str, Any]) -> None:
    """Import what every rank needs, fork the ranks, and wait for their end."""
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a model that prints must not spoil a report
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # by which the driver ends ranks that are at work
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    _import_ahead(hello["module"])
    gc.collect()
    collection.freeze()  # or the first collection of each rank would copy all memory that they share
    children: list[int] = []
    for rank in hello["ranks"]:
        child = os.fork()
        if child == 0:
            _be(int(rank), hello)
        children.append(child)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the ranks
    for child in children:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


def _be(rank: int, hello: Mapping[str, Any]) -> NoReturn:
    """Serve the driver as one rank, and end.

    Exit functions run, because a compiler may have private files to remove; the interpreter is not taken
    apart, which takes longer than all the rank had to do.
    """
    with (
        contextlib.suppress(KeyboardInterrupt, EOFError, OSError),  # the driver stopped, and says so itself
        Client(hello["address"], authkey=bytes.fromhex(hello["secret"])) as connection,
    ):
        connection.send(rank)
        _serve(connection, rank)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an end that takes its time is none to be interrupted
    atexit._run_exitfuncs()  # noqa: SLF001 - nothing public does it
    sys.stderr.flush()
    os._exit(0)


def _serve(connection: Connection, rank: int) -> None:
    host = OfflineHost()
    while True:
        try:
            stage, method, arguments = connection.recv()
        except EOFError:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done
            return
        connection.send(answer(host, rank, stage, method, arguments))


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


_STOP_TIMEOUT_S = 10.0
_IDLE_END_S = 2.0


class OfflineLauncher:
    """Holds one process for each rank; see `orchestrator.gang.launcher.Launcher`."""

    def __init__(self, config: Config, ranks: Sequence[int], *, num_jobs: int) -> None:
        """Take the config, the global ranks that get a process, and how many of these work at a time."""
        self._config = config
        self._ranks = tuple(ranks)
        self._num_jobs = max(1, num_jobs)
        self._nursery: subprocess.Popen[bytes] | None = None
        self._connections: dict[int, Connection] = {}

    def start(self, num_ranks: int, *, timeout_s: float) -> Gang:
        """Start the processes; raises `CannotStart` if they do not come up, or not in time."""
        del num_ranks
        secret = secrets.token_bytes(32)
        with Listener(family="AF_UNIX", backlog=len(self._ranks), authkey=secret) as listener:
            nursery = self._nursery = self._start_nursery(str(listener.address), secret)
            over, deadline = threading.Event(), time.monotonic() + timeout_s
            arguments = nursery, str(listener.address), over, deadline
            threading.Thread(target=_guard, args=arguments, daemon=True).start()
            try:
                while len(self._connections) < len(self._ranks):
                    self._accept(listener, nursery)
            finally:
                over.set()
        seats = tuple(replace(init_of(self._config, rank).seat, pid=nursery.pid) for rank in self._ranks)
        return Gang(seats=seats, master_addr="", master_port=0)

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
        """End every process."""
        connections, self._connections = self._connections, {}
        nursery, self._nursery = self._nursery, None
        for connection in connections.values():
            connection.close()
        if nursery is None:
            return
        _end(nursery)
        if nursery.stdin is not None:
            nursery.stdin.close()

    def stop(self) -> None:
        """End every process; there is nothing else."""
        self.release()

    def _start_nursery(self, address: str, secret: bytes) -> subprocess.Popen[bytes]:
        assert isinstance(self._config.workload, EntrypointWorkload)  # noqa: S101 - nothing else is built
        # As in a launch: the current directory first, which an installed script has not got on its path.
        first = import_paths(sys.path, Path.cwd(), (sys.prefix, sys.base_prefix))
        hello = {
            "path": [*first, *(part for part in sys.path if part and part not in first)],
            "address": address,
            "secret": secret.hex(),
            "ranks": list(self._ranks),
            "module": self._config.workload.entrypoint.partition(":")[0],
        }
        # A session of its own: Ctrl-C is the driver's to handle, and what hangs is ended as a whole.
        nursery = subprocess.Popen(  # noqa: S603 - this very Python, and a constant
            [sys.executable, "-c", BOOTSTRAP],
            env=dict([*os.environ.items(), HASH_SEED]),
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        assert nursery.stdin is not None  # noqa: S101 - a pipe was asked for
        nursery.stdin.write(json.dumps(hello).encode() + b"\n")
        nursery.stdin.flush()
        return nursery

    def _accept(self, listener: Listener, nursery: subprocess.Popen[bytes]) -> None:
        """Take the connection of a rank."""
        try:
            connection = listener.accept()
            self._connections[connection.recv()] = connection
        except (AuthenticationError, EOFError, OSError):
            if nursery.poll() is not None:
                msg = (
                    f"the process of the build's ranks ended with status {nursery.returncode} before they "
                    "were up; see its messages above, or raise timeouts.start_s"
                )
                raise CannotStart(msg) from None


def _end(nursery: subprocess.Popen[bytes]) -> None:
    """Wait for the end of all ranks; who is at work is interrupted, and who does not heed that is killed."""
    for wait_s, number in ((_IDLE_END_S, signal.SIGINT), (_STOP_TIMEOUT_S, signal.SIGKILL)):
        try:
            nursery.wait(wait_s)
        except subprocess.TimeoutExpired:
            os.killpg(nursery.pid, number)
        else:
            return
    nursery.wait()


def _guard(nursery: subprocess.Popen[bytes], address: str, over: threading.Event, deadline: float) -> None:
    """Kill a nursery that is late; connect and hang up when it ends, so that nobody waits for its ranks."""
    while not over.wait(0.2):
        if time.monotonic() >= deadline:
            nursery.kill()
        if nursery.poll() is not None:
            with socket.socket(socket.AF_UNIX) as caller:
                caller.connect(address)
            return


def _ask(
    connection: Connection, rank: int, request: tuple[str, str, tuple[Any, ...]], deadline: float
) -> tuple[int, Any] | None:
    """Send a request and wait for the answer; None where it is late."""
    stage = request[0]
    try:
        connection.send(request)
        if not connection.poll(max(0.0, deadline - time.monotonic())):
            return None
        return rank, connection.recv()
    except (EOFError, OSError) as error:
        return rank, WorkerFailure(
            rank=rank,
            stage=stage,
            kind="ProcessDied",
            message=f"the process of this rank ended ({type(error).__name__}); it may have run out of memory",
        )
