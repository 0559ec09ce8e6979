"""The text that a host's shell gets on its standard input: set up the environment, then run `host_side`.

Invariant: whatever a hosts file holds arrives as it is written: every word is quoted once, and the
command that connects ends with one plain word, so that it may be split again, as ssh does.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from warmrank.orchestrator.cluster import host_side
from warmrank.orchestrator.cluster.hosts import Host, Hosts

_END = "END_OF_WARMRANK_HOST_SIDE"


def shell_script(host: Host, request: dict[str, Any]) -> str:
    """The script for one request to a host.

    It is one function, which the shell reads whole before it begins, so that nothing in it can eat the rest
    of the standard input. The interpreter gets its program there instead. Variables come before what is
    sourced, which may add to them.
    """
    lines = ["warmrank_host() {"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in host.env]
    lines += [_sourced(path) for path in host.source]
    lines.append(_found(host.python))
    words = f"{_path(host.python)} - {shlex.quote(json.dumps(request))}"
    program = Path(host_side.__file__).read_text(encoding="utf-8")
    return "\n".join([*lines, f"{words} <<'{_END}'", program.rstrip("\n"), _END, "}", "warmrank_host", ""])


def start_request(hosts: Hosts, host: Host, *, head_address: str = "", session: str = "") -> dict[str, Any]:
    """Ask a host to start Ray; all but the head join ``session`` at ``head_address``."""
    options = _head_options(hosts) if host.is_head else [f"--address={head_address}"]
    return {
        "action": "start",
        "mark": host.mark,
        "session": session,
        "directory": host.directory,
        "options": [*options, "--disable-usage-stats", *host.ray_options],
        # The host gives up first, and says why; a connection that is cut off says nothing.
        "timeout_s": hosts.start_s * 0.8,
    }


def status_request(host: Host) -> dict[str, Any]:
    """Ask a host what runs there."""
    return {"action": "status", "mark": host.mark}


def nodes_request(address: str, expected: list[str], timeout_s: float) -> dict[str, Any]:
    """Ask the head for the nodes that have joined, once those that are expected have."""
    return {"action": "nodes", "address": address, "expected": expected, "timeout_s": timeout_s}


def stop_request(hosts: Hosts, host: Host) -> dict[str, Any]:
    """Ask a host to end Ray."""
    return {
        "action": "stop",
        "mark": host.mark,
        "directory": host.directory,
        "timeout_s": hosts.stop_s * 0.8,
    }


def _head_options(hosts: Hosts) -> list[str]:
    if not hosts.dashboard_port:
        return ["--head", f"--port={hosts.port}", "--include-dashboard=false"]
    dashboard = [f"--dashboard-host={hosts.dashboard_host}", f"--dashboard-port={hosts.dashboard_port}"]
    return ["--head", f"--port={hosts.port}", "--include-dashboard=true", *dashboard]


def _sourced(path: str) -> str:
    """Source a script, or end with a line that names it."""
    missing = shlex.quote(f"cannot source {path}: there is no such file that can be read")
    return f"[ -r {_path(path)} ] || {{ echo {missing}; return 1; }}\n. {_path(path)}"


def _found(python: str) -> str:
    """Answer in the program's place where no interpreter is there to give one; shells word it differently."""
    failed = f"python: no program {python} was found on the host; expected an interpreter there that has Ray"
    answer = shlex.quote(host_side.ANSWER + json.dumps({"failed": failed, "unknown": True}))
    return f"command -v {_path(python)} >/dev/null || {{ printf '%s\\n' {answer}; return 1; }}"


def _path(path: str) -> str:
    """A path quoted for the shell; ``~/`` at its beginning is the user's home there."""
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)
