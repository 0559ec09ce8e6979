"""TCP ports."""

from __future__ import annotations

import random
import socket

# Below Linux's default range of ephemeral ports (from 32768), which any process is given at any time, and
# above those that Ray gives to its workers (to 19999): between the look and the use nobody is likely to come.
_QUIET_PORTS = range(20000, 32768)
_TRIES = 100


def free_port(address: str) -> int:
    """A TCP port of this host that nothing listens on at this moment.

    Args:
        address: an address of this host, whose family counts.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in random.sample(_QUIET_PORTS, _TRIES):
        if _can_listen(family, port):
            return port
    with socket.socket(family) as probe:
        probe.bind((address, 0))
        found: int = probe.getsockname()[1]
        return found


def _can_listen(family: socket.AddressFamily, port: int) -> bool:
    """On every address, as the store of a process group does."""
    with socket.socket(family) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
