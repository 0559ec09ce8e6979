"""A real S3 server on this machine, and a proxy that breaks what it says."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

BUCKET = "warmrank-test"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}
PATIENT_S = 60.0  # for a place at this server: a busy machine is slow, and no test is about that


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
    command = [sys.executable, str(Path(__file__))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield S3Server(port=int(process.stdout.readline()))
        finally:
            process.kill()


_HOP_HEADERS = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})


class Fault(StrEnum):
    """What goes wrong with a request."""

    EXISTS = "412"
    CONFLICT = "409"
    OVERLOADED = "503"
    DENIED = "403 AccessDenied"
    SKEWED = "403 RequestTimeTooSkewed"
    FULL = "507 XMinioStorageFull"
    RESET = "reset before it is passed on"
    LOST_ACK = "passed on, then reset instead of the answer"
    LOST_ACK_503 = "passed on, then 503 instead of the answer"
    SHORT_BODY = "half of the answer's body, then closed"
    CUT_BODY = "half of the answer's body, announced as all of it"
    SILENT = "no answer at all"
    IGNORED_CONDITION = "passed on without If-None-Match"


@dataclass(slots=True, kw_only=True)
class Plan:
    """Which requests are broken.

    Attributes:
        fault: how; None lets everything pass.
        method: of the requests that are broken.
        left: how many still are.
        broken: how many were.
    """

    fault: Fault | None = None
    method: str = ""
    left: int = 0
    broken: int = 0


class FaultyProxy:
    """The running proxy; use `running_proxy`."""

    def __init__(self, upstream_port: int) -> None:
        self.upstream_port = upstream_port
        self.ends = threading.Event()
        self._lock = threading.Lock()
        self._plan = Plan()
        self.port = 0

    @property
    def options(self) -> dict[str, str]:
        """What an `ObjectBackend` needs to go through this proxy."""
        return {"endpoint": f"http://127.0.0.1:{self.port}"}

    @contextlib.contextmanager
    def breaking(self, fault: Fault, method: str, *, times: int) -> Iterator[Plan]:
        """Break the next ``times`` requests of a method; whole again at the end."""
        plan = Plan(fault=fault, method=method, left=times)
        self._set(plan)
        try:
            yield plan
        finally:
            self._set(Plan())

    def next_fault(self, method: str) -> Fault | None:
        """The fault of the request that just came."""
        with self._lock:
            if self._plan.method != method or not self._plan.left:
                return None
            self._plan.left -= 1
            self._plan.broken += 1
            return self._plan.fault

    def _set(self, plan: Plan) -> None:
        with self._lock:
            self._plan = plan


@contextlib.contextmanager
def running_proxy(upstream_port: int) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(upstream_port)

    class Handler(_Handler):
        faulty = proxy

    with _Server(("127.0.0.1", 0), Handler) as server:
        proxy.port = server.server_address[1]
        thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.05), daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.ends.set()
            server.shutdown()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # the default of 5 drops connections where 64 come at once

    def handle_error(self, *_: object) -> None:
        """Connections that clients give up are what this proxy is for."""


class _Handler(BaseHTTPRequestHandler):
    faulty: FaultyProxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.faulty.next_fault(self.command)
        if fault is not None and fault[:3].isdecimal():
            number, _, code = fault.partition(" ")
            self._answer(int(number), {}, f"<Error><Code>{code}</Code></Error>".encode() if code else b"")
        elif fault is Fault.SILENT:
            self.faulty.ends.wait()
        elif fault is Fault.RESET:
            self._reset()
        else:
            status, headers, answer = self._pass_on(body, fault)
            self._answer_of(fault, status, headers, answer)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_any  # noqa: N815 - the base class looks for them

    def _pass_on(self, body: bytes, fault: Fault | None) -> tuple[int, dict[str, str], bytes]:
        headers = dict(self.headers.items())
        if fault is Fault.IGNORED_CONDITION:
            headers.pop("if-none-match", None)
            headers.pop("If-None-Match", None)
        upstream = http.client.HTTPConnection("127.0.0.1", self.faulty.upstream_port)
        with contextlib.closing(upstream):
            upstream.request(self.command, self.path, body, headers)
            response = upstream.getresponse()
            kept = {name: text for name, text in response.getheaders() if name.lower() not in _HOP_HEADERS}
            if self.command == "HEAD":
                kept["Content-Length"] = response.getheader("Content-Length", "0")
            return response.status, kept, response.read()

    def _answer_of(self, fault: Fault | None, status: int, headers: dict[str, str], body: bytes) -> None:
        if fault is Fault.LOST_ACK:
            self._reset()
        elif fault is Fault.LOST_ACK_503:
            self._answer(503, {}, b"")
        elif fault is Fault.SHORT_BODY:
            self._answer(status, {**headers, "Content-Length": str(len(body))}, body[: len(body) // 2])
            self.close_connection = True
        elif fault is Fault.CUT_BODY:
            self._answer(status, headers, body[: len(body) // 2])
        else:
            self._answer(status, headers, body)

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, text in headers.items():
            self.send_header(name, text)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _reset(self) -> None:
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Tests say themselves what they saw."""


Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


def main(address: str = "127.0.0.1", port: str = "0", log: str = "") -> None:
    """Serve a bucket, and print the port; what is asked goes to a log, if there is one."""
    from werkzeug.serving import make_server
    from werkzeug.test import Client

    serve = _application()
    assert Client(serve).put(f"/{BUCKET}").status_code == 200
    server = make_server(address, int(port), _logged(serve, Path(log)) if log else serve, threaded=True)
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    server.serve_forever()


def _application() -> Application:
    """moto's S3, for WSGI.

    moto looks whether a name is free and then takes it, in two steps that threads can come between (2 of 60
    races of 64 writers had two winners). A real server does both at once; here, one PUT is served at a time.
    """
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    moto = DomainDispatcherApplication(create_backend_app)
    lock = threading.Lock()

    def serve(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with lock if environ["REQUEST_METHOD"] == "PUT" else contextlib.nullcontext():
            return moto(environ, start_response)  # type: ignore[no-any-return]

    return serve


def _logged(serve: Application, path: Path) -> Application:
    """Notes who asks for what; a file beside the log, ending in ``.hold``, names what has to wait."""
    path.write_text("")

    def logged(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        client, asked = environ["REMOTE_ADDR"], environ["PATH_INFO"]
        with path.open("a") as log:
            log.write(f"{json.dumps([client, environ['REQUEST_METHOD'], asked])}\n")
        _await_release(client, f"{asked}?{environ['QUERY_STRING']}", path.with_suffix(".hold"))
        return serve(environ, start_response)

    return logged


def _await_release(client: str, asked: str, hold: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        while True:
            held_client, text = json.loads(hold.read_text())
            if client != held_client or text not in asked:
                return
            hold.with_suffix(".held").touch()
            time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
