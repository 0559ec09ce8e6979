"""A command for `warmrank exec` that does what ranks do, without torch: artifacts, entries in the journal.

``exec_rank.py [--ranks 0,1] [--outcome compiled] [--port N] [--file PATH] [--status N] [--torch VERSION]
[--stay]``. Told to stay, it serves until it is ended.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.made_artifacts import make_artifact
from warmrank.cache_store.cache_dir.local import add_variant
from warmrank.cache_store.digests import digest_file
from warmrank.worker import journal
from warmrank.worker.results import FunctionResult


def look_up(rank: int, world_size: int, outcome: Any, environment: dict[str, str]) -> None:
    """Leave an artifact and an entry in the journal."""
    root = Path(os.environ["TORCHAIR_CACHE_HOME"])
    directory = root / "M_dynamic_aclgraphcache_0f" / f"world{world_size}global_rank{rank}" / "decode"
    there = directory / "compiled_module"
    path = there if there.exists() else add_variant(directory, b"def decode(): ...\n")
    digest = digest_file(path)
    result = FunctionResult(
        function="M.decode",
        ok=True,
        outcome=outcome,
        reason="",
        digest=digest.sha256,
        size_bytes=digest.size_bytes,
        path=str(path),
    )
    journal.append(result, make_artifact(components={"engine": "graph 1", **environment}))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", default="0,1")
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--outcome", default="compiled")
    parser.add_argument("--port", type=int)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--status", type=int, default=0)
    parser.add_argument("--torch")
    parser.add_argument("--stay", action="store_true")
    given = parser.parse_args()
    for rank in filter(None, given.ranks.split(",")):
        look_up(int(rank), given.world, given.outcome, {"torch": given.torch} if given.torch else {})
    if given.file is not None:
        given.file.touch()
    if given.port is not None:
        server = socket.create_server(("127.0.0.1", given.port))
        server.listen()
    print("ready", flush=True)  # noqa: T201 - its output is what a test reads
    while given.stay:
        time.sleep(1)
    return int(given.status)


if __name__ == "__main__":
    sys.exit(main())
