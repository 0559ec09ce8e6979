"""Which of Ray's processes answer, tried all at the same time.

Ray lists a node as alive for a minute after it went down. Its raylet and its head speak gRPC, which greets
whoever connects; the kernel takes connections even for a process that is stopped. With TLS gRPC waits for the
other side's word, so where nobody greets, a connection is all that can be had.
"""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Literal

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
