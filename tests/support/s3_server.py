"""A real S3 server on this machine: moto's, in a process of its own, for as long as a context lasts."""

from __future__ import annotations

import contextlib
import queue
import re
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BUCKET = "warmrank-test"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}
PATIENT_S = 60.0  # for a place at this server: a busy machine is slow, and no test is about that
_START_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    """Where the server listens."""

    port: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, str]:
        """What an `ObjectBackend` needs besides `ENVIRONMENT`."""
        return {"endpoint": self.endpoint}


def new_prefix() -> str:
    """A place that no other test uses."""
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


@contextlib.contextmanager
def running_s3() -> Iterator[S3Server]:
    command = [sys.executable, str(Path(__file__).with_name("s3_child.py"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            server = S3Server(port=_port(process))
            request = urllib.request.Request(f"{server.endpoint}/{BUCKET}", method="PUT")  # noqa: S310
            with urllib.request.urlopen(request, timeout=_START_S):  # noqa: S310 - this machine's own server
                yield server
        finally:
            process.kill()


def _port(process: subprocess.Popen[str]) -> int:
    ports: queue.Queue[int] = queue.Queue()

    def drain() -> None:
        assert process.stdout is not None
        with contextlib.suppress(ValueError):  # closed at the end
            for line in process.stdout:
                if match := re.search(r"Running on http://127\.0\.0\.1:([0-9]+)", line):
                    ports.put(int(match[1]))

    threading.Thread(target=drain, daemon=True).start()
    return ports.get(timeout=_START_S)
