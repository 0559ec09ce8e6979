"""Reachability of Ray's processes: nodes and the cluster's head, tried side by side and within a time-out.

Ray lists a node as alive for a minute after it went down. Its raylet and its head speak gRPC, which greets
whoever connects; the kernel takes connections even for a process that is stopped. With TLS gRPC waits for the
other side's word, so where nobody greets, a connection is all that can be had.
"""

from __future__ import annotations

import errno
import selectors
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Literal

from warmrank.orchestrator.causes import CLUSTER_LOST, WorkerFailure
from warmrank.orchestrator.config.models import WatchConfig

Place = tuple[str, int]
Heard = Literal["greets", "connects", "refuses", "silent"]

_AT_ONCE = 256
"""Fewer than the files that a process may have open by default."""


def knock(places: Iterable[Place], *, timeout_s: float) -> dict[Place, Heard]:
    """Connect to each place.

    Args:
        places: address and port of each.
        timeout_s: how long those that are silent are waited for.

    Returns:
        For each place: it greets, only takes a connection, refuses it, or there is no answer at all.
    """
    wanted = list(dict.fromkeys(places))
    found: dict[Place, Heard] = {}
    for begin in range(0, len(wanted), _AT_ONCE):
        found |= _knock(wanted[begin : begin + _AT_ONCE], timeout_s)
    return found


def _knock(places: list[Place], timeout_s: float) -> dict[Place, Heard]:
    found: dict[Place, Heard] = dict.fromkeys(places, "silent")
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        for place in places:
            if (connecting := _begin(place)) is not None:
                selector.register(connecting, selectors.EVENT_WRITE, place)
        while selector.get_map() and (left_s := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                connection: socket.socket = key.fileobj  # type: ignore[assignment]
                heard = _hear(connection, is_connected=found[key.data] == "connects")
                found[key.data] = heard
                if heard == "connects" and key.events == selectors.EVENT_WRITE:
                    selector.modify(connection, selectors.EVENT_READ, key.data)
                else:
                    selector.unregister(connection)
                    connection.close()
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
    return found


def _begin(place: Place) -> socket.socket | None:
    with suppress(OSError):
        family, kind, protocol, _, address = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)[0]
        connecting = socket.socket(family, kind, protocol)
        connecting.setblocking(False)
        if connecting.connect_ex(address) in {0, errno.EINPROGRESS}:
            return connecting
        connecting.close()
    return None


def _hear(connection: socket.socket, *, is_connected: bool) -> Heard:
    if not is_connected:
        return "refuses" if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) else "connects"
    try:
        return "greets" if connection.recv(1) else "connects"
    except OSError:
        return "connects"


_CONNECT_S = 2.0
_AGAIN_S = 0.2


class HeadWatch:
    """Tries to reach the cluster's head from a thread of its own; never stops the process from ending.

    Args:
        address: of the head.
        settings: how often it is tried, and how long it may be silent.
        connect_s: how long one try may take.
    """

    def __init__(self, address: str, settings: WatchConfig, *, connect_s: float = _CONNECT_S) -> None:
        self._connect_s = connect_s
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._settings = settings
        self._tried_s = time.monotonic()
        self._silent_s = 0.0
        self._is_lost = False
        self._greets: bool | None = None
        self._trying = threading.Lock()
        self._over = threading.Event()
        threading.Thread(target=self._run, name="head-watch", daemon=True).start()

    @property
    def loss(self) -> str:
        """What stands for a cluster without a head; empty while there is one. Once lost, it stays so."""
        where, silent_s = f"{self._host}:{self._port}", self._settings.node_silent_s
        return f"the cluster's head at {where} has not answered for {silent_s:g} s" if self._is_lost else ""

    def is_there(self) -> bool:
        """Whether the head answers, or is not lost yet; Ray would try for a minute, and end this process."""
        while not self._is_lost and not self._try():
            time.sleep(_AGAIN_S)
        return not self._is_lost

    def failures(self, num_ranks: int, stage: str) -> tuple[WorkerFailure, ...]:
        """The failures of all ranks that stand for `loss`; none while there is a head."""
        loss = self.loss
        remedy = "start the cluster anew, then launch again: what was compiled is kept"
        return tuple(
            WorkerFailure(rank=rank, stage=stage, kind=CLUSTER_LOST, message=loss, remedy=remedy)
            for rank in range(num_ranks if loss else 0)
        )

    def stop(self) -> None:
        """Look no more."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._settings.every_s):
            self._try()

    def _try(self) -> bool:
        with self._trying:
            is_reached, now_s = self._reaches(), time.monotonic()
            # Only tries count: who was stopped for an hour has not been left without an answer for one.
            tried_for_s = min(now_s - self._tried_s, self._settings.every_s + self._connect_s)
            self._tried_s = now_s
            self._silent_s = 0.0 if is_reached else self._silent_s + tried_for_s
            self._is_lost = self._is_lost or self._silent_s >= self._settings.node_silent_s
            return is_reached

    def _reaches(self) -> bool:
        where = self._host.strip("[]"), self._port
        heard = knock([where], timeout_s=self._connect_s)[where]
        if heard in {"refuses", "silent"}:
            return False
        # With TLS nobody is greeted: a head that did not greet at first needs not to later.
        if self._greets is None:
            self._greets = heard == "greets"
        return heard == "greets" or not self._greets
