"""Hosts that are this machine, each with a Ray that is a stand-in, so that bringing them up takes no time."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.support.processes import marked, still_there
from warmrank.orchestrator.cluster.host_side import MARK

FAKE_RAY = Path(__file__).parent / "fake_ray"


@contextmanager
def fake_hosts(place: Path, *names: str, **keys: Any) -> Iterator[Path]:
    """A hosts file for hosts of these names; what they run ends with the context."""
    state = place / "ray"
    state.mkdir()
    env = {"FAKE_RAY": str(state), "PYTHONPATH": str(FAKE_RAY), **keys.pop("env", {})}
    data = {
        "name": f"t{os.getpid()}-{place.name[:16]}",
        "hosts": list(names),
        "connect": "env",
        "python": sys.executable,
        "env": env,
        **keys,
    }
    if len(names) > 1 and data["connect"] == "env":
        data["connect"] = "env THIS_HOST={host}"
    path = place / "hosts.yaml"
    path.write_text(yaml.safe_dump(data))
    try:
        yield path
    finally:
        left = marked(f"{MARK}={data['name']}/")
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert not still_there(left)


def calls(path: Path) -> list[str]:
    """What `ray start` was called with, host by host."""
    noted = path.parent / "ray" / "calls"
    return noted.read_text().splitlines() if noted.exists() else []
