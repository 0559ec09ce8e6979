"""``ray start`` of a stand-in: notes what it was called with, and leaves a process that is called raylet."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

_WAIT = "trap exit TERM; while :; do sleep 600 & wait; done"


def main(arguments: list[str]) -> None:
    place, host = Path(os.environ["FAKE_RAY"]), os.environ["WARMRANK_HOST"].partition("/")[2]
    options = dict(word.partition("=")[::2] for word in arguments if word.startswith("--"))
    with (place / "calls").open("a") as calls:
        calls.write(f"{host} {' '.join(arguments)}\n")
    if host in os.environ.get("FAKE_RAY_FAILS", "").split():
        sys.stdout.write("line one\ncannot reach the head\n")
        sys.exit(3)
    if "--head" in options:
        (place / "head").write_text(f"10.9.9.9:{options['--port']} session_{uuid.uuid4().hex}")
    address, session = (place / "head").read_text().split()
    node = uuid.uuid4().hex
    words = [f"--node_id={node}", f"--gcs-address={address}", f"--session-name={session}"]
    Path(options["--temp-dir"]).mkdir()
    started = subprocess.Popen(
        ["raylet", "-c", _WAIT, *words],  # noqa: S607 - the name that it is to have
        executable="/bin/bash",
        start_new_session=True,
    )
    if host not in os.environ.get("FAKE_RAY_LOST", "").split():
        (place / f"node-{host}").write_text(f"{node} {options.get('--node-ip-address', host)} {started.pid}")


main(sys.argv[1:])
