"""When a command counts as ready, so that what it added may be published: a file, a port, or its end."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from warmrank.orchestrator.errors import BadArgument

_PORT = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s/:\[\]]+):)?(?P<port>[0-9]{1,5})", re.ASCII)
_CONNECT_S = 1.0
_HERE = ("127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """The condition.

    Attributes:
        kind: what is waited for; ``none`` publishes nothing.
        path: of the file; may hold placeholders.
        host: where the port is; empty for this node.
        port: the port.
    """

    kind: Literal["file", "port", "exit", "none"]
    path: str = ""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.kind == "file":
            return f"file {self.path} appears"
        if self.kind == "port":
            return f"port {self.host + ':' if self.host else ''}{self.port} accepts connections"
        return "the command ends with status 0" if self.kind == "exit" else "never"


def parse_when(text: str) -> When:
    """Read ``exit``, ``none``, ``PORT``, ``HOST:PORT``, or else the path of a file.

    Raises:
        BadArgument: it is empty, or no such port exists.
    """
    if text in ("exit", "none"):
        return When(kind="exit" if text == "exit" else "none")
    match = _PORT.fullmatch(text)
    if match is not None and 0 < int(match["port"]) < 2**16:
        return When(kind="port", host=(match["host"] or "").strip("[]"), port=int(match["port"]))
    if match is not None or not text:
        msg = (
            f"--publish-when {text!r}: expected exit, none, a port from 1 to 65535 (or HOST:PORT), or the "
            "path of a file (./NAME for one whose name is a number)"
        )
        raise BadArgument(msg)
    return When(kind="file", path=text)


class Readiness:
    """Looks, on one node, whether a condition holds.

    Made before the command starts, because a file of an earlier run, and a port that somebody else has, say
    nothing.

    Args:
        when: the condition, its placeholders filled.

    Raises:
        BadArgument: something listens at the port already.
    """

    def __init__(self, when: When) -> None:
        self._when = when
        self._before = _mark(Path(when.path)) if when.kind == "file" else None
        if when.kind == "port" and _accepts(when):
            msg = (
                f"--publish-when: {when} already, before the command was started; end what listens there, or "
                "let the command listen at another port"
            )
            raise BadArgument(msg)

    def holds(self) -> bool:
        """Whether it holds now; ``exit`` is no condition that could be looked at."""
        if self._when.kind == "file":
            mark = _mark(Path(self._when.path))
            return mark is not None and mark != self._before
        return self._when.kind == "port" and _accepts(self._when)


def _mark(path: Path) -> tuple[int, int] | None:
    """What tells a file from an earlier one under its name; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _accepts(when: When) -> bool:
    return any(_connects(host, when.port) for host in ((when.host,) if when.host else _HERE))


def _connects(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=_CONNECT_S).close()
    except OSError:
        return False
    return True
