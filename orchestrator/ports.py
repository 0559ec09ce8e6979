"""TCP ports."""

from __future__ import annotations

import socket


def free_port(address: str) -> int:
    """A TCP port of this host that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port
