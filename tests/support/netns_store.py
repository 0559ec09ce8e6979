"""An S3 server at an address of a network, which notes who asked for what: ``netns_store.py ADDRESS LOG``.

Run as a script it is the server, which writes one line of JSON for each request before it answers, and leaves
without an answer for a while what `CountingStore.holding` names.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.netns import Node, until
from tests.support.s3_server import BUCKET, ENVIRONMENT, PATIENT_S

PORT = 9000
_START_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request that came to the server; ``path`` begins below the bucket."""

    client: str
    method: str
    path: str


class CountingStore:
    """An S3 server that runs in a node (the switch, as a rule).

    Args:
        node: where it runs.
        log: file for what it is asked.
        environ: environment of the node's commands.
    """

    def __init__(self, node: Node, log: Path, environ: dict[str, str]) -> None:
        self._log = log
        self._hold = log.with_suffix(".hold")
        self._address = node.address
        words = log.with_suffix(".out")
        command = (sys.executable, "-m", "tests.support.netns_store", node.address, str(log))
        self._process = node.popen(*command, output=words, environ=environ)
        request = f"r.Request('{self.endpoint}/{BUCKET}', method='PUT')"
        make_bucket = f"import urllib.request as r; r.urlopen({request})"

        def answers() -> bool:
            assert self._process.poll() is None, words.with_suffix(".err").read_text()
            return node.run(sys.executable, "-S", "-c", make_bucket).returncode == 0

        until(answers, timeout_s=_START_S, what="the S3 server answers")

    @property
    def endpoint(self) -> str:
        """Its URL for all nodes."""
        return f"http://{self._address}:{PORT}"

    @property
    def environ(self) -> dict[str, str]:
        """What processes that use it need in their environment."""
        return ENVIRONMENT

    def config(self, prefix: str) -> dict[str, Any]:
        """A config's ``store``: a place of its own in this server."""
        return {
            "path": f"s3://{BUCKET}/{prefix}",
            "options": {"endpoint": self.endpoint},
            "answer_s": PATIENT_S,
            "trust": {"policy": "off"},
        }

    @contextlib.contextmanager
    def holding(self, client: str, text: str) -> Iterator[Path]:
        """Let requests of a client wait that ask for something with a text in it.

        Yields:
            A file that is there once one waits.
        """
        self._hold.write_text(json.dumps([client, text]))
        held = self._hold.with_suffix(".held")
        try:
            yield held
        finally:
            self._hold.unlink()
            held.unlink(missing_ok=True)

    def requests(self, prefix: str) -> tuple[Request, ...]:
        """What was asked below a prefix, so far."""
        lines = self._log.read_text().splitlines()
        found = (Request(**json.loads(line)) for line in lines)
        start = f"/{BUCKET}/{prefix}/"
        return tuple(
            Request(client=each.client, method=each.method, path=each.path.removeprefix(start))
            for each in found
            if each.path.startswith(start)
        )


def blob_reads(requests: Iterable[Request]) -> Counter[tuple[str, str]]:
    """How often each client read each blob."""
    return Counter(
        (each.client, each.path) for each in requests if each.method == "GET" and each.path.startswith("cas/")
    )


def _await_release(client: str, asked: str, hold: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        while True:
            held_client, text = json.loads(hold.read_text())
            if client != held_client or text not in asked:
                return
            hold.with_suffix(".held").touch()
            time.sleep(0.05)


def main() -> None:
    from werkzeug.serving import run_simple

    from tests.support.s3_child import application

    serve = application()
    path = Path(sys.argv[2])
    with path.open("w", buffering=1) as log:

        def counted(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            client, asked = environ["REMOTE_ADDR"], environ["PATH_INFO"]
            request = {"client": client, "method": environ["REQUEST_METHOD"], "path": asked}
            log.write(f"{json.dumps(request)}\n")
            _await_release(client, f"{asked}?{environ['QUERY_STRING']}", path.with_suffix(".hold"))
            return serve(environ, start_response)

        run_simple(sys.argv[1], PORT, counted, threaded=True)


if __name__ == "__main__":
    main()
