"""Stands in for Ray on a host: `ray start` leaves a process, and the head knows the nodes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def init(address: str, **_options: object) -> None:
    assert Path(os.environ["FAKE_RAY"], "head").read_text().split()[0] == address


def nodes() -> list[dict[str, Any]]:
    found = []
    for path in Path(os.environ["FAKE_RAY"]).glob("node-*"):
        node, address, pid = path.read_text().split()
        resources = {"CPU": 2.0, "memory": 9.0, f"node:{address}": 1.0}
        alive = Path("/proc", pid).exists()
        found.append({"NodeID": node, "NodeManagerAddress": address, "Alive": alive, "Resources": resources})
    return found
