"""Serves moto's S3 at a free port of this machine, which werkzeug prints; see `tests.support.s3_server`.

moto looks whether a name is free and then takes it, in two steps that threads can come between (2 of 60 races
of 64 writers had two winners). A real server does both at once; here, one PUT is served at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


def main() -> None:
    run_simple("127.0.0.1", 0, application(), threaded=True)


def application() -> Application:
    """The server, for WSGI."""
    moto = DomainDispatcherApplication(create_backend_app)
    lock = threading.Lock()

    def serve(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "PUT":
            return moto(environ, start_response)  # type: ignore[no-any-return]
        with lock:
            return moto(environ, start_response)  # type: ignore[no-any-return]

    return serve


if __name__ == "__main__":
    main()
