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
import logging
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection
from typing import Any, NoReturn

from warmrank.cache_store.cache_dir.private_files import ensure_cache_dir

from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.gang.rank_host import Opened, Opening, RankHost, answer, failure_of, rank_spec
from warmrank.orchestrator.seats import Seat
from warmrank.worker import collection
from warmrank.worker.errors import DeviceUnavailable
from warmrank.worker.results import Retraced

logger = logging.getLogger(__name__)

BOOTSTRAP = (
    "import json, sys\n"
    "hello = json.loads(sys.stdin.readline())\n"
    "sys.path[:] = hello['path']\n"
    "from warmrank.orchestrator.build.ranks import main\n"
    "main(hello)\n"
)
"""What the first process runs: it must find this package before it can import it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineOpening:
    """What a process needs to become a rank of an offline build.

    Attributes:
        config: the launch that is built for, without its store, which the driver alone uses.
        rank: which rank this process is.
        environment: named components of the machines that are built for.
        real_tensors: build the model with memory and values.
        kernels: functions are compiled; otherwise they are only traced.
    """

    config: Config
    rank: int
    environment: Mapping[str, str]
    real_tensors: bool = False
    kernels: bool = True


class OfflineHost(RankHost):
    """`RankHost` of a rank that is not there."""

    def open(self, opening: OfflineOpening) -> Opened:  # type: ignore[override] # the driver sends this kind
        """Check the cache directory and bring the rank up.

        Raises:
            cache_store.errors.StoreError: the cache directory cannot be used.
            worker.errors.WorkerError: the rank cannot be brought up.
        """
        from warmrank.worker.keys.environment import Target
        from warmrank.worker.rank.offline import OfflineRank

        config = opening.config
        ensure_cache_dir(config.cache_dir)
        self._opening = imagined(opening)
        self._store = None
        self._away = ""
        machines = Target(device_kind=config.device, environment=dict(opening.environment))
        spec = rank_spec(self._opening)
        self._worker = OfflineRank(
            spec, machines=machines, real_tensors=opening.real_tensors, kernels=opening.kernels
        )
        return Opened(place=self._worker.start(), problem="")

    def retrace(self, functions: tuple[str, ...]) -> tuple[Retraced, ...]:
        """Trace functions again and compare with what is stored; one that fails is a result."""
        return tuple(self._retrace(name) for name in functions)

    def _retrace(self, name: str) -> Retraced:
        try:
            result: Retraced = self._worker.retrace(name)
        except Exception as error:  # the rank's edge, as in `RankHost._compile`
            logger.exception("%s cannot be traced", name)
            failure = failure_of(error, rank=self._opening.rank, stage="compile")
            reason = f"{failure.kind}: {failure.message}"
            return Retraced(function=name, outcome="failed", reason=reason)
        return result


def imagined(opening: OfflineOpening) -> Opening:
    """The rank's place among all ranks of the launch, on one node, without a port where they could meet."""
    config = opening.config
    seat = Seat(
        rank=opening.rank,
        local_rank=opening.rank,
        local_world_size=config.ranks,
        node_rank=0,
        node_id="here",
        host="",
        pid=0,
    )
    return Opening(config=config, seat=seat, master_addr="", master_port=0, no_compile=False)


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

    What was to be done at the end is done, because a compiler may have private files to remove; the
    interpreter is not taken apart, which takes longer than all the rank had to do.
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
