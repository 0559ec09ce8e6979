"""Whether the cluster's head and its nodes answer, found out by connecting to them.

Ray lists a node as alive for about a minute after it went down, and would place ranks there. Raylets and head
speak gRPC, which greets whoever connects; the kernel takes connections even for a process that is stopped.
With TLS gRPC waits for the other side's word, so where nobody greets, a connection is all that can be had.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Literal

from warmrank.orchestrator.config.models import WatchConfig
from warmrank.orchestrator.gang.placement import RayNode
from warmrank.orchestrator.nodes import Node

_AT_ONCE = 256  # fewer than the files that a process may have open by default
_KNOCK_S = 2.0
_AGAIN_S = 0.2


def knock(place: tuple[str, int], timeout_s: float = _KNOCK_S) -> Literal["greets", "connects", "silent"]:
    """Connect to a place, and tell whether it greets, only takes the connection, or neither."""
    deadline = time.monotonic() + timeout_s
    try:
        connection = socket.create_connection(place, timeout=timeout_s)
    except OSError:
        return "silent"
    with connection, suppress(OSError):
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        if connection.recv(1):
            return "greets"
    return "connects"


def silent_among(nodes: Sequence[RayNode]) -> tuple[Node, ...]:
    """The nodes on which no Ray answers."""
    if not nodes:
        return ()
    with ThreadPoolExecutor(min(len(nodes), _AT_ONCE)) as pool:
        heard = list(pool.map(lambda known: knock((known.node.address, known.port)), nodes))
    fine = {"greets"} if "greets" in heard else {"connects"}
    return tuple(known.node for known, what in zip(nodes, heard, strict=True) if what not in fine)


class NodesUp:
    """Looks whether nodes stay up while ranks start on them; their watches are starting as well."""

    def __init__(self, nodes: Sequence[RayNode], settings: WatchConfig) -> None:
        self._nodes, self._settings = tuple(nodes), settings
        self._looked_s = self._heard_s = time.monotonic()

    def silent(self) -> tuple[Node, ...]:
        """The nodes that do not answer now."""
        return silent_among(self._nodes)

    def lost(self) -> tuple[Node, ...]:
        """The nodes that have been silent for too long; looks now and then."""
        if time.monotonic() - self._looked_s < self._settings.every_s:
            return ()
        silent = self.silent()
        self._looked_s = time.monotonic()
        if not silent:
            self._heard_s = self._looked_s
        return silent if self._looked_s - self._heard_s >= self._settings.node_silent_s else ()


class HeadWatch:
    """Tries to reach the cluster's head from a thread of its own; never stops the process from ending."""

    def __init__(self, address: str, settings: WatchConfig) -> None:
        host, _, port = address.rpartition(":")
        self._place, self._settings = (host.strip("[]"), int(port)), settings
        self._tried_s = time.monotonic()
        self._silent_s = 0.0
        self._is_lost = self._greets = False
        self._trying = threading.Lock()
        self._over = threading.Event()
        threading.Thread(target=self._run, name="head-watch", daemon=True).start()

    @property
    def loss(self) -> str:
        """Error text if the cluster has lost its head, else ``""``. Once lost, it stays so."""
        where, silent_s = ":".join(map(str, self._place)), self._settings.node_silent_s
        return f"the cluster's head at {where} has not answered for {silent_s:g} s" if self._is_lost else ""

    def is_there(self) -> bool:
        """True if the head answers, or is not lost yet; Ray would try for a minute, and end this process."""
        while not self._is_lost and not self._try():
            time.sleep(_AGAIN_S)
        return not self._is_lost

    def stop(self) -> None:
        """Look no more."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._settings.every_s):
            self._try()

    def _try(self) -> bool:
        with self._trying:
            heard = knock(self._place)
            # With TLS nobody is greeted: a head that never greeted needs not to.
            self._greets = self._greets or heard == "greets"
            is_reached = heard == "greets" or (heard == "connects" and not self._greets)
            # Only tries count: who was stopped for an hour has not been left without an answer for one.
            now_s = time.monotonic()
            tried_for_s = min(now_s - self._tried_s, self._settings.every_s + _KNOCK_S)
            self._tried_s = now_s
            self._silent_s = 0.0 if is_reached else self._silent_s + tried_for_s
            self._is_lost = self._is_lost or self._silent_s >= self._settings.node_silent_s
            return is_reached
