"""Whether the cluster's head and its nodes answer, found out by connecting to them.

Ray lists a node as alive for about a minute after it went down, and would place ranks there. Raylets and head
speak gRPC, which greets whoever connects; the kernel takes connections even for a process that is stopped.
With TLS gRPC waits for the other side's word, so where nobody greets, a connection is all that can be had.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Literal

from warmrank.orchestrator.config.models import WatchConfig

Place = tuple[str, int]  # host and port
Heard = Literal["greets", "connects", "silent"]

_AT_ONCE = 256  # fewer than the files that a process may have open by default
_KNOCK_S = 2.0
_AGAIN_S = 0.2


def knock(place: Place) -> Heard:
    """Connect to a place, and tell whether it greets, only takes the connection, or neither."""
    deadline = time.monotonic() + _KNOCK_S
    try:
        connection = socket.create_connection(place, timeout=_KNOCK_S)
    except OSError:
        return "silent"
    with connection, suppress(OSError):
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        if connection.recv(1):
            return "greets"
    return "connects"


def _heard(places: list[Place]) -> dict[Place, Heard]:
    if len(places) == 1:  # the head's: a pool would hold up the end of this process
        return {places[0]: knock(places[0])}
    with ThreadPoolExecutor(min(len(places), _AT_ONCE)) as pool:
        return dict(zip(places, pool.map(knock, places), strict=True))


class Liveness:
    """Looks at places, all of one cluster; from `begin` on by itself, in a thread that holds up no end."""

    def __init__(self, places: Iterable[Place], settings: WatchConfig) -> None:
        self._settings = settings
        self._silent_s = dict.fromkeys(places, 0.0)
        self._looked_s = time.monotonic()
        self._greets = False  # that one ever did: without TLS they all do
        self._looking, self._over = threading.Lock(), threading.Event()

    def look(self) -> set[Place]:
        """The places that do not answer now."""
        if not self._silent_s:
            return set()
        with self._looking:
            heard = _heard(list(self._silent_s))
            self._greets = self._greets or "greets" in heard.values()
            fine = "greets" if self._greets else "connects"
            silent = {place for place, what in heard.items() if what != fine}
            # Only looks count: who was stopped for an hour has not been left without an answer for one.
            now_s, lost = time.monotonic(), self.lost
            looked_for_s = min(now_s - self._looked_s, self._settings.every_s + _KNOCK_S)
            self._looked_s = now_s
            for place, silent_s in self._silent_s.items():
                self._silent_s[place] = silent_s + looked_for_s if place in silent | lost else 0.0
            return silent

    @property
    def lost(self) -> set[Place]:
        """Those that were silent for ``watch.node_silent_s``; once lost, a place stays so."""
        limit_s = self._settings.node_silent_s
        return {place for place, silent_s in self._silent_s.items() if silent_s >= limit_s}

    def is_there(self) -> bool:
        """True if all answer, before one of them is lost; waits for that."""
        while not self.lost and self.look():
            time.sleep(_AGAIN_S)
        return not self.lost

    def begin(self) -> None:
        """Look every ``watch.every_s``, until `stop`."""
        threading.Thread(target=self._run, name="liveness", daemon=True).start()

    def stop(self) -> None:
        """Look no more."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._settings.every_s):
            self.look()
