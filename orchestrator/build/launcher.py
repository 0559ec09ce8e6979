"""A launcher for ranks that are not there; see `orchestrator.build.ranks` for their processes.

At most ``num_jobs`` ranks work at a time, so that many ranks on few processors do not hinder each other.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from concurrent.futures import TimeoutError as NotInTime
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener
from typing import Any

from warmrank.orchestrator.build.ranks import BOOTSTRAP
from warmrank.orchestrator.causes import WorkerFailure
from warmrank.orchestrator.errors import CannotStart
from warmrank.orchestrator.seats import Gang, Seat

_STOP_TIMEOUT_S = 10.0
_IDLE_END_S = 2.0


class OfflineLauncher:
    """Holds one process for each rank; see `orchestrator.gang.launcher.Launcher`."""

    def __init__(self, ranks: Sequence[int], *, num_jobs: int, module: str) -> None:
        """Makes a launcher.

        Args:
            ranks: global ranks that get a process.
            num_jobs: ranks that work at a time.
            module: of the workload's entrypoint.
        """
        self._ranks = tuple(ranks)
        self._module = module
        self._num_jobs = max(1, num_jobs)
        self._nursery: subprocess.Popen[bytes] | None = None
        self._connections: dict[int, Connection] = {}

    def start(self, num_ranks: int, *, timeout_s: float) -> Gang:
        """Start the processes.

        Raises:
            CannotStart: they do not come up, or not in time.
        """
        del num_ranks
        secret = secrets.token_bytes(32)
        with Listener(family="AF_UNIX", backlog=len(self._ranks), authkey=secret) as listener:
            self._nursery = self._start_nursery(str(listener.address), secret)
            watch = threading.Timer(timeout_s, self._nursery.kill)
            watch.start()
            try:
                self._accept_all(listener, self._nursery)
            finally:
                watch.cancel()
        seats = tuple(
            Seat(
                rank=rank,
                local_rank=rank,
                local_world_size=len(self._ranks),
                node_rank=0,
                node_id="here",
                host=os.uname().nodename,
                pid=self._nursery.pid,
            )
            for rank in self._ranks
        )
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
        hello = {
            "path": [part or os.getcwd() for part in sys.path],  # noqa: PTH109 - as Python itself spells it
            "address": address,
            "secret": secret.hex(),
            "ranks": list(self._ranks),
            "module": self._module,
        }
        # A session of its own: Ctrl-C is the driver's to handle, and what hangs is ended as a whole.
        nursery = subprocess.Popen(  # noqa: S603 - this very Python, and a constant
            [sys.executable, "-c", BOOTSTRAP], stdin=subprocess.PIPE, start_new_session=True
        )
        assert nursery.stdin is not None  # noqa: S101 - a pipe was asked for
        nursery.stdin.write(json.dumps(hello).encode() + b"\n")
        nursery.stdin.flush()
        return nursery

    def _accept_all(self, listener: Listener, nursery: subprocess.Popen[bytes]) -> None:
        """Take the connections of all ranks; a nursery that ends wakes the listener."""
        over = threading.Event()
        threading.Thread(target=_wake, args=(nursery, str(listener.address), over), daemon=True).start()
        try:
            while len(self._connections) < len(self._ranks):
                try:
                    connection = listener.accept()
                    self._connections[connection.recv()] = connection
                except (AuthenticationError, EOFError, OSError):
                    if nursery.poll() is not None:
                        msg = (
                            f"the process of the build's ranks ended with status {nursery.returncode} before "
                            f"they were up; see its messages above, or raise timeouts.start_s"
                        )
                        raise CannotStart(msg) from None
        finally:
            over.set()


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


def _wake(nursery: subprocess.Popen[bytes], address: str, over: threading.Event) -> None:
    """Connect and hang up when the nursery ends too soon, so that nobody waits for its ranks."""
    import socket

    while not over.is_set():
        try:
            nursery.wait(0.2)
        except subprocess.TimeoutExpired:
            continue
        if not over.is_set():
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
